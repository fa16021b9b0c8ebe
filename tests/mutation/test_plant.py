"""Mutants of whole files: where faults go and where not, what names a mutant, and what a sample of them holds."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gradoracle.model.errors import UsageError
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.operators import Source
from gradoracle.mutation.plant import choose, mutants
from gradoracle.project.shipped_names import family_names

ROOT = Path(__file__).resolve().parents[2]
PLANTED = [pytest.param(name, marks=pytest.mark.xdist_group(f"mutants of {name}")) for name in family_names()]
RMSNORM = (ROOT / "examples" / "rmsnorm.py").read_text()

PLACES = '''
"""A file: n < N in words."""
import torch, triton
import triton.language as tl
from triton import jit
from .sums import add, sum_kernel

WIDTH = 3 + 4

@triton.jit
def attribute(X): tl.store(X, 1.0)

@jit
def bare(X): tl.store(X, 1.0)

@triton.autotune(configs=[triton.Config({"B": 16 + 16})], key=["N"])
@triton.heuristics({"E": lambda a: a["N"] == 1})
@triton.jit(do_not_specialize=["N"])
def tuned(X): tl.store(X, 1.0)

if torch.cuda.is_available():
    @triton.jit
    def on_a_gpu(X): tl.store(X, 1.0)

class Scaled(torch.autograd.Function):
    def __init__(self): self.a = 1
    @staticmethod
    def forward(ctx, x): return x + 1
    @staticmethod
    def refuse_more(ctx, x): return x + 1

class Holder:
    def __init__(self, x): attribute[(1,)](x); self.a = 1
    def holds(self, x): attribute[(1,)](x); return x + 1
    def calls(self, x): return self.holds(x) + 1
    def does_neither(self, x): return x + 1

def launches(x): attribute[(1,)](x); return x + 1
def applies(x): return Scaled.apply(x) + 1
def hands(x): return add(sum_kernel, x) + 1
def hands_own(x): return add(attribute, x) + 1
def runs(x): return sums.run(x) + 1
def calls(x): return launches(x) + 1
def calls_in_turn(x): return calls(x) + 1
def plain(x): return x + 1
def check_launch(x): attribute[(1,)](x); return x + 1
def test_launch(x): attribute[(1,)](x); return x + 1
def _refuse(x):
    """Say no."""
    raise ValueError(attribute[(1,)](x + 1))
'''

UNTOUCHED = '''
import triton
import triton.language as tl

@triton.jit
def kernel(X, N: tl.constexpr = 1 + 1, M=2 * 3) -> tl.tensor:
    """Store 1 + 1 where n < N."""
    tl.static_assert(N + 1 < M)
    tl.static_print(N + 1)
    assert N < M
    BLOCK: tl.constexpr = 16
    n = tl.arange(0, 16)
    shape: tl.tensor = tl.multiple_of(tl.load(X), 16)

def launch(x, blocks=1 + 1):
    if x.numel() + 1 < 3:
        raise ValueError(x.numel() + 1)
    check(x.numel() + 1, x, blocks)
    kernel[grid](x, BLOCK=16, num_warps=4, num_stages=1 + 1)
'''


@functools.cache
def of(name):
    files = sorted((ROOT / "kernels" / name).glob("*.py"))
    return [each for path in files for each in mutants(path.read_text(), f"{name}/{path.name}")]


def test_faults_go_into_kernels_autograd_functions_and_what_launches():
    kernels = ["attribute", "bare", "tuned", "on_a_gpu"]
    found = Source(PLACES, "places.py").places
    assert [each.name for each in found if each.kernel] == kernels
    assert [each.name for each in found if not each.kernel] == [
        "Scaled.forward", "Holder.holds", "Holder.calls", "launches", "applies", "hands", "hands_own", "runs", "calls",
        "calls_in_turn",
    ]  # fmt: skip
    assert {each.function for each in mutants(PLACES, "places.py")} == {each.name for each in found}


def test_no_fault_goes_into_declarations_checks_and_launch_options():
    assert [(each.before, each.after) for each in mutants(UNTOUCHED, "untouched.py")] == [
        ("tl.arange(0, 16)", "tl.arange(0, 16) + 1"),
        ("X", "X + 1"),
    ]


@pytest.mark.parametrize(
    "source",
    ["", "x = 1 + 1\n", "def f(x):\n    return x + 1\n", "import triton\n\n\n@triton.jit\ndef f():\n    pass\n"],
)
def test_a_source_may_hold_nothing_to_mutate(source):
    assert mutants(source, "nothing.py") == []


@pytest.mark.parametrize("name", PLANTED)
def test_every_family_has_mutants_enough_which_compile_and_are_distinct(name):
    found = of(name)
    operators = Counter(each.operator for each in found)
    assert len(found) >= 1000 and len(operators) >= 40
    assert len({(each.module, each.source) for each in found}) == len(found)
    assert len({(each.module, each.key) for each in found}) == len(found)
    for each in choose(found, 120, seed=0):
        assert ast.dump(ast.parse(each.source)) != ast.dump(ast.parse(each.original))
        compile(each.source, each.module, "exec", dont_inherit=True)


def test_a_mutant_differs_from_the_original_in_the_piece_that_it_names():
    found = mutants(RMSNORM, "rmsnorm.py")
    lines = RMSNORM.splitlines()
    for each in found:
        assert each.original == RMSNORM and "\n" not in each.before + each.after
        changed = [i for i, (a, b) in enumerate(zip(lines, each.source.splitlines(), strict=True), 1) if a != b]
        assert changed == [each.line]
        assert each.before in lines[each.line - 1] and (each.after or "pass") in each.source.splitlines()[each.line - 1]


def test_the_order_is_that_of_the_source_and_the_same_every_time():
    found = mutants(RMSNORM, "rmsnorm.py")
    functions = list(dict.fromkeys(each.function for each in found))
    assert functions == ["_forward", "_backward", "_RMSNorm.forward", "_RMSNorm.backward", "triton_rmsnorm"]
    assert found == mutants(RMSNORM, "rmsnorm.py")


def test_keys_stay_when_lines_are_inserted_above_and_other_functions_change():
    before = mutants(RMSNORM, "rmsnorm.py")
    moved = RMSNORM.replace("@triton.jit\ndef _forward", "\n\n# a line\nWIDTH = 3\n\n\n@triton.jit\ndef _forward")
    after = mutants(moved, "elsewhere/rmsnorm.py")
    assert [each.key for each in before] == [each.key for each in after]
    assert [each.line for each in before] != [each.line for each in after]
    other = mutants(RMSNORM.replace("r = tl.load(R + row)", "r = tl.load(R + row) * 2.0"), "rmsnorm.py")
    keys = {each.key for each in before if each.function != "_backward"}
    assert keys == {each.key for each in other if each.function != "_backward"}


def test_equal_pieces_of_a_function_are_numbered():
    found = [each for each in mutants(RMSNORM, "rmsnorm.py") if each.operator == "comparison"]
    assert [(each.function, each.occurrence) for each in found] == [
        *(("_forward", i) for i in range(3)), *(("_backward", i) for i in range(5)),
    ]  # fmt: skip


def test_a_source_of_other_line_ends_and_letters_is_kept_as_it_is():
    source = RMSNORM.replace("float32 inside", "float32 inside, ψ ≥ 1").replace("\n", "\r\n")
    found = mutants(source, "rmsnorm.py")
    assert [each.key for each in found] == [each.key for each in mutants(RMSNORM, "rmsnorm.py")]
    assert all("ψ ≥ 1" in each.source and "\n" not in each.source.replace("\r\n", "") for each in found)


def test_a_source_that_is_no_python_is_refused():
    with pytest.raises(UsageError, match=r"^broken\.py cannot be parsed, at line 2: expected a file of Python$"):
        mutants("x = 1\ndef f(:\n", "broken.py")


def test_without_libcst_one_sentence_says_what_to_install(monkeypatch):
    for name in [each for each in sys.modules if each.startswith("gradoracle.mutation.operators")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    plant = importlib.import_module("gradoracle.mutation.plant")
    with pytest.raises(
        UsageError, match=r"^libcst is not installed; gradoracle mutate needs it: pip install 'gradoracle\[mutate\]'$"
    ):
        plant.mutants(RMSNORM, "rmsnorm.py")


@pytest.mark.xdist_group("mutants of lightning")
def test_a_sample_begins_with_every_smaller_one_and_depends_on_the_seed():
    found = of("lightning")
    assert choose(found, 50, seed=1) == choose(found, 100, seed=1)[:50]
    assert choose(found, 100, seed=1) == choose(found[::-1], 100, seed=1)
    assert choose(found, 100, seed=1) != choose(found, 100, seed=2)
    assert sorted(choose(found, 10**6, seed=1), key=repr) == sorted(found, key=repr)
    assert choose(found, 0, seed=1) == choose([], 5, seed=1) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_sample_has_every_operator_and_no_function_dominates_it(name):
    operators = {each.operator for each in of(name)}
    sample = choose(of(name), 3 * len(operators), seed=0)
    counts = Counter(each.operator for each in sample)
    assert set(counts) == operators and counts.most_common(1)[0][1] <= 4
    functions = Counter((each.module, each.function) for each in sample)
    assert functions.most_common(1)[0][1] <= len(sample) / 5
    assert len(functions) >= 10


def mutant(function, number, operator="sign", module="m.py"):
    return Mutant(module, operator, function, 1, f"a{number}", "b", 0, "x", f"y{number}")


def test_functions_take_turns_whatever_their_number_of_sites():
    long = [mutant("long", i) for i in range(300)]
    others = [mutant(name, i) for name in ("one", "two", "three") for i in range(10)]
    counts = Counter(each.function for each in choose([*long, *others], 40, seed=5))
    assert counts == {"long": 10, "one": 10, "two": 10, "three": 10}


def test_modules_take_turns_before_their_functions():
    many = [mutant(f"f{i}", i, module="many.py") for i in range(30)]
    single = [mutant("g", i, module="single.py") for i in range(30)]
    counts = Counter(each.module for each in choose([*many, *single], 20, seed=5))
    assert counts == {"many.py": 10, "single.py": 10}


def test_further_sites_leave_the_others_in_their_order():
    found = [mutant("f", i) for i in range(40)]
    more = [mutant("f", i) for i in range(45)]
    old = {each.key for each in found}
    assert [each for each in choose(more, 45, seed=3) if each.key in old] == choose(found, 40, seed=3)
    other = replace(mutant("g", 0), operator="constant")
    assert [each for each in choose([*found, other], 41, seed=3) if each is not other] == choose(found, 40, seed=3)
