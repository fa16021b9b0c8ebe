"""Activation: when it must happen, what it undoes, and the sentences it refuses with."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import interpreted
import pytest
from places import ROOT, TESTS

from gradoracle.host import interpreter
from gradoracle.host.interpreter import activation


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a process of its own, without TRITON_INTERPRET unless given."""
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    variables |= {"PYTHONPATH": str(TESTS), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=120)


ROUND = """
import torch, triton.language as tl
from host.interpreter import kernels
x, out = torch.full((16,), 1 + 2.0**-8 + 2.0**-9), torch.empty(16, dtype=torch.bfloat16)
kernels.cast[(1,)](x, out, N=16, TO=tl.bfloat16)
y, total = torch.ones(4, 8), torch.empty(4)
kernels.reduce[(1,)](y, total, 4, 8, "sum")
print(out[0].item(), total[0].item())
"""


REFUSED = """
for _ in range(2):
    try:
        interpreter.activate()
    except RuntimeError as error:
        print(error)
print(interpreter.explain_unavailable())
"""


def refusal(code: str) -> str:
    """The sentence with which activation after some code is refused, at every call."""
    result = python(code + REFUSED)
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1, result.stderr
    return lines[0]


@interpreted.NEEDED
def test_triton_may_have_no_block_pointers():
    """Triton 3.9 has none."""
    code = "from triton.runtime import interpreter as stock\nvars(stock).pop('BlockPointerHandle', None)\n"
    code += "from gradoracle.host import interpreter\ninterpreter.activate()\n"
    result = python(code + ROUND)
    assert result.stdout == "1.0078125 8.0\n", result.stderr


@interpreted.NEEDED
def test_rounds_once_active():
    code = "from gradoracle.host import interpreter\nassert not interpreter.is_active()\n"
    code += "interpreter.activate()\ninterpreter.activate()\nassert interpreter.is_active()\n"
    result = python(code + ROUND)
    assert result.stdout == "1.0078125 8.0\n", result.stderr


@interpreted.NEEDED
def test_triton_may_have_been_imported_as_a_compiler():
    result = python("import triton\nfrom gradoracle.host import interpreter\ninterpreter.activate()\n" + ROUND)
    assert result.stdout == "1.0078125 8.0\n", result.stderr


@interpreted.NEEDED
def test_tritons_own_interpreter_truncates():
    assert python(ROUND, TRITON_INTERPRET="1").stdout == "1.0 8.0\n"


@interpreted.NEEDED
def test_is_active_only_while_the_variable_stands():
    code = "import os\nfrom gradoracle.host import interpreter\ninterpreter.activate()\n"
    code += "os.environ['TRITON_INTERPRET'] = '0'\nprint(interpreter.is_active())\n"
    code += "interpreter.activate()\nprint(interpreter.is_active())"
    assert python(code).stdout == "False\nTrue\n"


@interpreted.NEEDED
def test_asking_imports_neither_triton_nor_numpy():
    code = "import sys\nfrom gradoracle.host import interpreter\nassert interpreter.explain_unavailable() is None\n"
    code += "print({'triton', 'numpy', 'torch'} & set(sys.modules))"
    assert python(code).stdout == "set()\n"


@interpreted.NEEDED
@pytest.mark.parametrize("method", ["create_fmul", "create_dot", "cast_impl"])
def test_missing_method_is_refused_and_leaves_triton_alone(method):
    code = f"""
import os
from triton.runtime import interpreter as stock
add = stock.InterpreterBuilder.create_fadd
del stock.InterpreterBuilder.{method}
from gradoracle.host import interpreter
try:
    interpreter.activate()
except RuntimeError:
    pass
assert stock.InterpreterBuilder.create_fadd is add
assert not interpreter.is_active() and "TRITON_INTERPRET" not in os.environ
"""
    sentence = refusal(code)
    assert sentence.startswith(f"Triton {metadata.version('triton')} ") and method in sentence
    assert sentence.endswith(" from 3.6.0 to 3.9.0.")


@interpreted.NEEDED
def test_method_with_other_arguments_is_refused():
    code = """
from triton.runtime import interpreter as stock
stock.InterpreterBuilder.create_select = lambda self, cond, lhs, rhs: None
stock.InterpreterBuilder.create_masked_load = lambda self, mask, ptrs, other: None
from gradoracle.host import interpreter
"""
    sentence = refusal(code)
    assert "create_masked_load" in sentence and "(self, mask, ptrs, other)" in sentence


@interpreted.NEEDED
def test_pair_that_cannot_interpret_is_one_sentence_with_both_versions():
    code = """
from gradoracle.host import interpreter
from gradoracle.host.interpreter import blocks, launch
def refuse(self):
    raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
blocks.index = launch._SCALARS["__index__"] = refuse
"""
    sentence = refusal(code)
    assert sentence.startswith(f"Triton {metadata.version('triton')} ")
    assert f" with numpy {metadata.version('numpy')} (" in sentence and "triton==3.7.1 and numpy==2.4.6" in sentence


def test_the_tested_triton_is_that_of_the_constraints():
    assert f"triton=={activation.TESTED_TRITON}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        ({"numpy": "2.0.0"}, "triton is not installed and interpreting Triton kernels needs it: install triton."),
        ({"triton": "3.7.1"}, "numpy is not installed and interpreting Triton kernels needs it: install numpy."),
        (
            {"triton": "3.5.1", "numpy": "2.0.0"},
            "Triton 3.5.1 was found and interpreting kernels needs 3.6.0 or later: install triton>=3.7.1.",
        ),
        ({"triton": "3.6.0", "numpy": "2.5.2"}, None),
        ({"triton": "3.10.0+git1", "numpy": "2.5.2"}, None),
    ],
)
def test_explain_unavailable(monkeypatch, versions, sentence):
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(activation, "_failure", None)
    assert interpreter.explain_unavailable() == sentence


AFTER = """
import importlib.util, sys
import torch, triton.language as tl
spec = importlib.util.spec_from_file_location("launched_before", {path!r})
before = sys.modules["launched_before"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(before)
holders = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.core.tensor_descriptor_base)
first = [dict(vars(holder)) for holder in holders]
x, stock, out = torch.linspace(-1, 1, 9), torch.empty(9), torch.empty(9)
def left():
    names = {{n for own, holder in zip(first, holders) for n in own if vars(holder).get(n) is not own[n]}}
    return sorted(names - {{"__annotations__"}})
{stock}
replaced = left()
from gradoracle.host import interpreter
interpreter.activate()
assert left() == {left!r}, left()
before.kernel[(1,)](x, out, 9, BLOCK=16)
assert before.of_range[0] == "Int32", before.of_range
assert left() == {left!r}, left()
print(len(replaced) > 0, torch.equal(stock, out) if stock.isfinite().all() else None, out.tolist())
"""
LAUNCHED_BEFORE = """
import triton, triton.language as tl
of_range = []

@triton.jit
def helper(x):
    return tl.where(x > 0, tl.exp(x), tl.sigmoid(x))

@triton.jit
def kernel(X, Y, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(X + n, mask=n < N, other=0.0)
    for i in range(2):
        of_range[:] = [type(i).__name__]
        x = helper(x) - tl.max(x)
    x = x + tl.cumsum(x, 0) / tl.cdiv(N, 2) + tl.softmax(x) + tl.sum(x)
    tl.store(Y + n, x, mask=n < N)
"""
OF_A_HOST_CALL = ["T", "__str__", "associative_scan", "reduce"]  # which no original is known of; launches replace them


@interpreted.NEEDED
@pytest.mark.parametrize(
    ("stock", "left"),
    [
        ("before.kernel[(1,)](x, stock, 9, BLOCK=16)", []),
        ("stock.fill_(torch.nan)\nassert before.tl.cdiv(9, 2) == 5", OF_A_HOST_CALL),
    ],
    ids=["a launch", "a device function called on the host"],
)
def test_what_tritons_own_interpreter_ran_before_does_not_matter(tmp_path, stock, left):
    """A device function that ran before leaves triton.language replaced, and the kernel rewritten without loops."""
    path = tmp_path / "launched_before.py"
    path.write_text(LAUNCHED_BEFORE)
    after = python(AFTER.format(path=str(path), stock=stock, left=left), TRITON_INTERPRET="1")
    assert after.returncode == 0, after.stderr
    fresh = python(AFTER.format(path=str(path), stock="stock.fill_(torch.nan)", left=[]), TRITON_INTERPRET="1")
    assert fresh.returncode == 0, fresh.stderr
    assert after.stdout.startswith("True") and after.stdout.split("[")[1] == fresh.stdout.split("[")[1]


@interpreted.NEEDED
def test_whatever_fails_is_the_same_sentence_at_every_call():
    code = """
from gradoracle.host import interpreter
from gradoracle.host.interpreter import language
def fail():
    raise ValueError("nothing like a function")
language.reach = fail
"""
    sentence = refusal(code)
    assert "(ValueError: nothing like" in sentence
    assert sentence.endswith(" from 3.6.0 to 3.9.0.")


METHODS = """
import torch
import triton
import triton.language as tl
from gradoracle.host import interpreter
interpreter.activate()

@triton.jit
def kernel(x, out, N: tl.constexpr):
    loaded = tl.load(x + tl.arange(0, N))
    tl.store(out, loaded.sum() + loaded.max(0) + loaded.sigmoid().sum(axis=0) + tl.sum(loaded, 0))


x, out = torch.tensor([0.0, 0.0, 0.0, 4.0]), torch.zeros(1)
kernel[(1,)](x, out, 4)
print(float(out - torch.sigmoid(x).sum()))
"""


@interpreted.NEEDED
def test_a_method_of_a_tensor_takes_the_tensor_where_triton_was_imported_as_a_compiler(tmp_path):
    """Methods that are Triton's own device functions, such as ``x.sum()``."""
    (tmp_path / "methods.py").write_text(METHODS)
    found = python(f"import runpy; runpy.run_path({str(tmp_path / 'methods.py')!r})")
    assert found.returncode == 0, found.stderr
    assert abs(float(found.stdout) - 12.0) < 1e-5
