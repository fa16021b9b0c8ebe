"""Packages: which public operations of released packages are judged by the adapters of examples/packages, and how.

    python benchmarks/packages.py examples/packages/*.py     (judges every kernel, then writes the page)
    python benchmarks/packages.py examples/packages/*.py --device cuda    (on a GPU; no page)
    python benchmarks/packages.py                            (the page alone, from the rows there are)

A row of results/coverage.csv is one kernel in one dtype, as in severities.csv; those of a GPU are in coverage_gpu.csv;
the page is docs/coverage.md. Which operation an adapter calls is read from its code. A kernel is not run again for
which the same commit has rows of as many examples. The packages have to be installed: `pip install --no-deps` and the
names in ``PACKAGES``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import torch
from severities import (
    CRASHES,
    ERROR,
    GREEN,
    NOT_RUN,
    NOW,
    STATED,
    UNDECIDED,
    WRONG,
    Row,
    called_names,
    judged,
    judging_commit,
    of_file,
    read,
    record,
    sentence,
)

from gradoracle.execution.device import prepare
from gradoracle.model.claims import Mark
from gradoracle.model.errors import UsageError
from gradoracle.project.target import resolve

ROOT = Path(__file__).resolve().parent.parent
ADAPTERS = ROOT / "examples" / "packages"
ROWS = ROOT / "benchmarks" / "results" / "coverage.csv"
GPU_ROWS = ROWS.with_name("coverage_gpu.csv")
PAGE = ROOT / "docs" / "coverage.md"
DERIVATIVES = {"forward": "forward", "VJP": "vjp", "JVP": "jvp", "HVP": "hvp"}
SHORT = {GREEN: "holds", STATED: "precision", NOT_RUN: "not judged", WRONG: "**wrong**", CRASHES: "**crashes**"}
LONGEST = 110  # characters of a reason


@dataclass(frozen=True)
class Package:
    """A released package.

    Attributes:
        name: as pip knows it.
        module: whose public functions are its operations.
        prefix: of their names, which is left out on the page.
        listed: the operations, where its functions are not (or not all) of what the adapters are about.
    """

    name: str
    module: str = ""
    prefix: str = ""
    listed: tuple[str, ...] = ()

    def operations(self) -> list[str]:
        """Those listed, else the public functions: of ``__all__``, or all that begin with the prefix."""
        if self.listed:
            return sorted(self.listed)
        module = importlib.import_module(self.module)
        listed = getattr(module, "__all__", None)
        names = dir(module) if listed is None else listed
        return sorted(
            name for name in names if name.startswith(self.prefix) and isinstance(getattr(module, name), FunctionType)
        )

    def called_by(self, distributions: str) -> bool:
        """Whether an adapter of these distributions, each with its version, calls this one; torch if it has none."""
        names = {_plain(each) for each in distributions.split()[::2]}
        return _plain(self.name) in names if self.name != "torch" else not names


def _plain(name: str) -> str:
    """The name of a distribution; pip takes - and _ for the same."""
    return name.lower().replace("_", "-")


OF_TORCH = (
    *("softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "group_norm", "normalize", "cosine_similarity"),
    *("gelu", "silu", "softplus", "logsigmoid", "cross_entropy", "kl_div", "smooth_l1_loss", "huber_loss"),
    *("cumsum", "cumprod", "cdist", "embedding"),
)
PACKAGES = (
    Package("liger-kernel", "liger_kernel.transformers.functional", "liger_"),
    Package("fla-core", "fla.ops"),
    Package("entmax", "entmax"),
    Package("torch", listed=OF_TORCH),
    Package("torch-struct", listed=("LinearChainCRF", "SemiMarkovCRF")),
    Package("accelerated-scan", listed=("scan",)),
    Package("sparsemax", listed=("Sparsemax",)),
    Package("crossentropy-triton", listed=("TritonCausalLMLoss",)),
    Package("jvp_flash_attention", listed=("JVPAttn",)),
    Package("adasplash", "adasplash"),
)


def operations_of(adapters: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """(package, operation, file:kernel) for each public operation that an adapter's code names."""
    public = [(package, set(package.operations())) for package in PACKAGES]
    for file in adapters:
        for job in of_file(str(file)):
            names = called_names(resolve(job.target).kernels[0].call)
            for package, known in public:
                for name in sorted(known & names) if package.called_by(job.package) else ():
                    yield package.name, name, f"{file.name}:{job.name}"


ByKernel = dict[str, dict[str, Row]]


def by_kernel(rows: Iterable[Row]) -> ByKernel:
    """The rows of each file:kernel by dtype."""
    found: ByKernel = {}
    for row in rows:
        found.setdefault(f"{row.source}:{row.kernel}", {})[row.dtype] = row
    return found


def page(rows: Sequence[Row], of_gpu: Sequence[Row], called: Sequence[tuple[str, str, str]]) -> str:
    """The whole page."""
    here, there = by_kernel(rows), by_kernel(of_gpu)
    lines = [HEAD.rstrip().replace("SENTENCE", sentence(rows))]
    for package in PACKAGES:
        adapters: dict[str, list[str]] = {}
        for name, operation, kernel in called:
            if name == package.name:
                adapters.setdefault(operation, []).append(kernel)
        lines += ["", *section(package, adapters, here, there)]
    return "\n".join(lines) + "\n"


def section(package: Package, adapters: dict[str, list[str]], here: ByKernel, there: ByKernel) -> Iterator[str]:
    """A package's heading, counts and table."""
    operations = package.operations()
    on_cpu, on_gpu = (
        [name for name in operations if any(_is_run(rows.get(k, {})) for k in adapters.get(name, ()))]
        for rows in (here, there)
    )
    yield f"## {package.name} {importlib.metadata.version(package.name)}"
    yield ""
    of = f"of {len(operations)} public operations are judged"
    on = f"on the CPU ({_share(on_cpu, operations)})"
    gpu = f", {len(on_gpu)} on a GPU ({_share(on_gpu, operations)})" if there else ""
    yield f"{len(on_cpu)} {of} {on}{gpu}."
    yield ""
    yield f"| operation | adapter | {' | '.join(DERIVATIVES)} | severity | reason | GPU |"
    yield "|---|---|" + "---|" * (len(DERIVATIVES) + 3)
    for name in operations:
        shown = name.removeprefix(package.prefix)
        if name not in adapters:
            yield f"| {shown} | | " + " | ".join([""] * (len(DERIVATIVES) + 1)) + " | no adapter | |"
        for kernel in adapters.get(name, ()):
            own, gpu = here.get(kernel, {}), _on_gpu(there.get(kernel, {}))
            cells = (_standing(own, derivative) for derivative in DERIVATIVES.values())
            yield f"| {shown} | {kernel} | {' | '.join(cells)} | {_gravest(own)} | {_reason(own)} | {gpu} |"


def _share(run: Sequence[str], operations: Sequence[str]) -> str:
    return f"{len(run) / len(operations):.0%}"


def _is_run(own: dict[str, Row]) -> bool:
    return any(row.is_run for row in own.values())


def _standing(own: dict[str, Row], derivative: str) -> str:
    """The standing of a derivative, the gravest first, each with its dtypes where these differ."""
    dtypes: dict[str, list[str]] = {}
    for dtype, row in own.items():
        if row.is_run:
            dtypes.setdefault(getattr(row, derivative), []).append(dtype)
    if len(dtypes) < 2:
        return next(iter(dtypes), "")
    marks = [mark.value for mark in (Mark.FAILS, Mark.NOTED, Mark.OPEN, Mark.HOLDS, Mark.ABSENT)]
    ordered = sorted(dtypes.items(), key=lambda item: marks.index(item[0][0]))
    return ", ".join(f"{standing} ({' '.join(names)})" for standing, names in ordered)


def _gravest(own: dict[str, Row]) -> str:
    found = min((row.now for row in own.values() if row.is_run), key=NOW.index, default=NOT_RUN)
    return SHORT.get(found, found)


def _on_gpu(there: dict[str, Row]) -> str:
    """What a GPU says of forward and gradients: the gravest dtype, with its number of cases."""
    judged = [row for row in there.values() if row.cases and row.is_run]
    if not judged:
        return next((f"not judged ({_short(row.reason)})" for row in there.values()), "")
    row = min(judged, key=lambda row: NOW.index(row.now))
    return f"{SHORT.get(row.now, row.now)} ({row.dtype}, {row.cases} case{'s' if row.cases > 1 else ''})"


def _short(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:LONGEST]


def _reason(own: dict[str, Row]) -> str:
    """Which property is violated, or why nothing was judged."""
    for now in (WRONG, CRASHES, ERROR, UNDECIDED, NOT_RUN):
        for row in own.values():
            if row.now == now:
                text = row.properties.split(" ")[0] if now in (WRONG, UNDECIDED) and row.properties else row.reason
                return _short(text)
    kept = Counter(row.keeps for row in own.values() if row.now == STATED)
    return ", ".join(f"keeps {preset}" for preset in kept if preset)


HEAD = """# Coverage

Which operations of released packages does `gradoracle check` judge as they are installed, and what does it report?

`python benchmarks/packages.py examples/packages/*.py` writes this page. It judges every kernel that an adapter in
[examples/packages](../examples/packages) declares, by every property in three dtypes, on the CPU in Triton's
interpreter. The adapters are short files of definitions. To check one yourself, run `gradoracle check
examples/packages/FILE.py:KERNEL`.

- **Derivatives**: `✓` holds. `✗` is wrong, or loses precision that a declared contract forbids. `!` has an error that
  does not count: lost precision, or an error in a derivative that the kernel does not claim
  ([claims](how-to/claims.md)). `?` is undecided. `-` is not offered. Dtypes are named where they differ.
- **Severity** is the gravest finding of all dtypes. **wrong**: the error stays with every float in float64, or no
  rounding explains it, such as a changed argument or an access outside of a tensor. *precision*: the error goes away;
  *keeps* names the precision contract that explains it. *robustness*: the error is in what the kernel does not claim.
  *not judged*: the operation does not run here.
- **Reason** is the property of highest rank with that severity. [Findings](findings.md) explains the wrong ones.
- **GPU**: the gravest dtype on an H200, by every property that is judged there. Most of the time of such a run is
  compilation, so a GPU judged 1 to 4 cases of most kernels. Accesses are recorded on the CPU alone.

Rows are of 2026-11-28, with torch 2.11.0 and Triton 3.6.0, those of 17 kernels with torch 2.13.0 and Triton 3.7.1.

SENTENCE
"""


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("adapters", nargs="*", metavar="FILE.py[:kernel]")
    options.add_argument("--examples", type=int, default=24, help="cases of each kernel, over all dtypes")
    options.add_argument("--seconds", type=float, default=60.0, help="for each kernel")
    options.add_argument("--workers", type=int, default=1, help="kernels that are judged at a time")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--file", type=Path, help="of the rows")
    options.add_argument("--page", type=Path, default=PAGE)
    given = options.parse_args(words)
    torch.set_num_threads(1)
    prepare(given.device)
    commit, is_here = judging_commit(), given.device == "cpu"
    file = given.file or (ROWS if is_here else GPU_ROWS)
    done = {(row.source, row.kernel) for row in read(file) if row.commit == commit and row.examples >= given.examples}
    waiting = [job for source in given.adapters for job in of_file(source) if (job.source, job.name) not in done]
    start = multiprocessing.get_context("fork" if is_here else "spawn")
    with ProcessPoolExecutor(given.workers, start) as pool:
        running = [pool.submit(judged, job, given.examples, given.seconds, commit, given.device) for job in waiting]
        for each in as_completed(running):
            record(file, each.result())
            for row in each.result():
                print(
                    row.source,
                    row.kernel,
                    row.dtype,
                    row.cases,
                    row.now,
                    row.forward,
                    row.vjp,
                    row.jvp,
                    row.hvp,
                    row.properties,
                    flush=True,
                )
    if not is_here:
        return
    adapters = sorted(ADAPTERS.glob("*.py"))
    try:
        text = page(read(file), read(GPU_ROWS), list(operations_of(adapters)))
        given.page.write_text(text, encoding="utf-8")
    except (ImportError, UsageError) as error:
        print(f"packages: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{given.page.name} written")


if __name__ == "__main__":
    main(sys.argv[1:])
