"""A mutant in the place of loaded code: functions, methods and jitted functions, for all who hold them."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest
import torch

from gradoracle.execution.device import prepare
from gradoracle.model.errors import UsageError
from gradoracle.mutation import compiled
from gradoracle.mutation.compiled import Asked, equivalents
from gradoracle.mutation.install import Stillborn, install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.sources import executed, sources_of
from gradoracle.mutation.specialisations import launched
from gradoracle.project.target import resolve

SOURCE = """
import functools

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"N": gradoracle.sizes(1, 40)}, dtypes=("float32",))
def twice(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return 2 * x


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def _twice(x, y, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    value = tl.load(x + n, mask=n < N, other=0.0)
    tl.store(y + n, doubled(value), mask=n < N)


def launch(x):
    y = torch.empty_like(x)
    _twice[(1,)](x, y, x.numel(), BLOCK=64, num_warps=2)
    return y


def counted(function):
    @functools.wraps(function)
    def inner(x):
        return function(x)

    return inner


@gradoracle.kernel(twice)
@counted
def kernel(x):
    return launch(x.contiguous())
"""


@pytest.fixture
def kernel(tmp_path: Path):
    """The kernel of a file of its own, and what puts a mutant in its place."""
    prepare("cpu")
    file = tmp_path / "doubling.py"
    file.write_text(SOURCE)
    target = resolve(str(file))
    (source,) = sources_of(target)

    def mutant(before: str, after: str, function: str) -> Mutant:
        assert SOURCE.count(before) == 1
        planted = SOURCE.replace(before, after)
        return Mutant(source.shown, "test", function, 1, before, after, 0, SOURCE, planted)

    def planted(before: str, after: str, function: str) -> torch.Tensor:
        install(mutant(before, after, function), source)
        return target.kernels[0].call(torch.ones(3))

    planted.mutant, planted.source, planted.target = mutant, source, target
    yield planted
    linecache.checkcache()
    linecache.cache.pop(str(file), None)


@pytest.mark.parametrize(
    ("before", "after", "function", "value"),
    [
        ("return x + x", "return x + x + x", "doubled", 3.0),
        ("tl.store(y + n, doubled(value), mask=n < N)", "tl.store(y + n, value, mask=n < N)", "_twice", 1.0),
        ("return y\n", "return y + 5\n", "launch", 7.0),
        ("launch(x.contiguous())", "launch(x.contiguous()) * 2", "kernel", 4.0),
    ],
)
def test_who_holds_a_function_runs_the_mutant(kernel, before, after, function, value):
    call = kernel.target.kernels[0].call
    assert call(torch.ones(3)).tolist() == [2.0] * 3
    assert kernel(before, after, function).tolist() == [value] * 3


def test_a_module_that_raises_and_a_function_that_is_gone_are_stillborn(kernel):
    with pytest.raises(Stillborn, match=r"^NameError: name 'missing' is not defined$"):
        kernel("import functools\n", "import functools\nmissing\n", "launch")
    with pytest.raises(Stillborn, match=r"^launch is not defined by the module$"):
        kernel("def launch(x):", "def launched(x):", "launch")
    assert kernel.target.kernels[0].call(torch.ones(3)).tolist() == [2.0] * 3


def test_lines_and_launches_of_a_call_are_seen(kernel):
    file = kernel.source.file
    with executed([file]) as lines, launched() as launches:
        kernel.target.kernels[0].call(torch.ones(3))
    ran = {SOURCE.splitlines()[line - 1].strip() for line in lines[file]}
    assert {"n = tl.arange(0, BLOCK)", "return x + x", "y = torch.empty_like(x)"} <= ran
    assert sys.gettrace() is None or "executed" not in repr(sys.gettrace())
    ((module, name, types, constants, options),) = launches
    assert (module, name, options) == (kernel.source.module, "_twice", (("num_warps", 2),))
    assert dict(types) == {"x": "*fp32", "y": "*fp32", "N": "i32", "BLOCK": "constexpr"}
    assert dict(constants) == {"BLOCK": 64}


def test_launches_with_a_dtype_for_a_constant_are_recorded():
    """Without them no launch of SDPA was compared: a mutant of what only bf16x6 runs would be equivalent in it."""
    prepare("cpu")
    call = resolve("sdpa").kernels[0].call
    with launched() as launches:
        call(*torch.ones(3, 1, 1, 2, 4), precision="bf16x6")
    constants = {name: dict(values) for _, name, _, values, _ in launches}
    assert constants.keys() == {"parts_kernel", "forward_kernel"}
    found = constants["forward_kernel"]
    assert str(found["ACCUMULATE"]) == "fp32" and found["PRECISION"] == "parts"


def test_only_mutants_that_compile_to_the_same_code_are_equivalent(kernel, monkeypatch):
    mutants = [
        kernel.mutant("n = tl.arange(0, BLOCK)", "n = tl.arange(0, BLOCK) + 0", "_twice"),
        kernel.mutant("mask=n < N, other=0.0", "mask=n < N, other=1.0", "_twice"),
        kernel.mutant("return x + x", "return x + x + x", "doubled"),
        kernel.mutant("return y\n", "return y + 5\n", "launch"),
    ]
    with launched() as launches:
        kernel.target.kernels[0].call(torch.ones(3))
    source = kernel.source
    questions = tuple((mutant, source) for mutant in mutants)
    path = tuple(entry for entry in sys.path if isinstance(entry, str))
    asked = Asked(path, str(kernel.target.source), None, None, (source.module,), questions, tuple(launches))
    found = equivalents(asked, 3)
    assert found.keys() == {mutant.key for mutant in mutants}
    assert {key for key, reason in found.items() if reason} == {mutants[0].key}, found
    assert found[mutants[0].key].endswith("in 1 specialisations")
    monkeypatch.setattr(compiled, "TIME_LIMIT", 0.0)
    assert equivalents(asked) == {}  # there was no time for any, and none is said to differ


def test_a_kernel_whose_source_is_in_no_file_cannot_be_mutated():
    import gradoracle

    namespace: dict = {}
    exec("def call(x):\n    return x", namespace)
    target = resolve("sdpa")
    made = gradoracle.Kernel("made", "sdpa", namespace["call"])
    with pytest.raises(UsageError, match=r"^the source of made is not in a file; expected a kernel written in Python$"):
        sources_of(type(target)(target.family, [made], None, "made"))
