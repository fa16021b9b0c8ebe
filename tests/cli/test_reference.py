"""``gradoracle check KERNEL --reference F --like EXAMPLE``: nothing is annotated; mistakes are one sentence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from programs import Run

MINE = """
import torch
from torch import nn

def f(x, w, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w

def right(x, w, eps=1e-6):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * w).to(x.dtype)

def wrong(x, w, eps=1e-6):
    return right(x, w + 0.01 * (w - w.detach()), eps)

def inputs():
    return torch.randn(4, 37), torch.randn(37)

def wide():
    return {"x": torch.randn(4, 37).double(), "w": torch.randn(37).double(), "eps": 0.25}

half = (torch.randn(4, 37).bfloat16(), torch.randn(37).bfloat16())

def other(x, w, eps=1e-6):
    return f(x, w, eps).sum(-1)

def square():
    return torch.randn(4, 4), torch.randn(4)

def gather(table, index, factor):
    return table[index.long()] * factor

def gather_wrong(table, index, factor):
    return table[(index.long() + 1) % len(table)] * factor

def picks():
    return torch.randn(50, 6), torch.randint(0, 50, (9,), dtype=torch.int32), 2.0

def bag(table, index, offsets):
    place = torch.arange(index.shape[0])
    member = (place >= offsets[:-1, None]) & (place < offsets[1:, None])
    return torch.where(member[..., None], table[index], 0.0).sum(1)

def bag_shifted(table, index, offsets):
    place = torch.arange(index.shape[0])
    member = (place > offsets[:-1, None]) & (place < offsets[1:, None])
    return torch.where(member[..., None], table[index], 0.0).sum(1)

def bags():
    return torch.randn(5, 6), torch.arange(9) % 5, torch.tensor([0, 3, 3, 9])

def bags_ending_before():
    return torch.randn(5, 6), torch.arange(9) % 5, torch.tensor([0, 3, 3, 7])

def bags_as_many_as_rows():
    return torch.randn(3, 6), torch.arange(9) % 3, torch.tensor([0, 3, 3, 9])

def upward(x):
    return torch.cat([x, x], -1)

def best(x):
    return (*x.max(-1), x.sum(-1) > 0)

def best_off_by_one(x):
    value, at, positive = best(x)
    return value, (at + 1) % x.shape[-1] if x.shape[-1] > 1 else at + 1, positive

def best_flipped(x):
    value, at, positive = best(x)
    return value, at.int(), ~positive

def best_alone(x):
    return best(x)[:2]

def summed(x):
    return x.square(), x.sum(-1).detach()

def summed_wrong(x):
    return x.square(), 1.01 * x.sum(-1).detach()

def transformed(x):
    return x.square(), torch.fft.fft(x.detach()), x[:0].detach()

def one():
    return (torch.randn(3, 5),)

layer = nn.Linear(7, 3)

def linear(x, weight, bias):
    return x @ weight.T + bias

def twice(x, weight, bias):
    return x @ weight.T + 2 * bias

def rows():
    return torch.randn(4, 7)

def failing():
    raise ValueError("no example today")
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder holds mine.py."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


FEW = ("--device", "cpu", "--workers", "0", "--examples", "4", "--property", "[fv][oj][rp]*_matches_the_oracle")


def told(out: str) -> str:
    """A report with its lines joined."""
    return " ".join(out.split())


def faults(out: str) -> list[tuple[str, str, str]]:
    """Severity, property and kernel of each fault that counts, as the report heads them."""
    return re.findall(r"^✗ (\w+)  (\w+)  (\w+)", out, re.MULTILINE)


def checked(run: Run, kernel: str, reference: str, like: str, *words: str) -> tuple[int, str, str]:
    pair = ("--reference", f"mine.py:{reference}", "--like", f"mine.py:{like}")
    return run("check", f"mine.py:{kernel}", *pair, *FEW, *words)


@pytest.mark.parametrize(("like", "dtype"), [("inputs", "float32"), ("half", "bfloat16"), ("wide", "float64")])
def test_a_correct_kernel_holds_and_a_wrong_one_does_not(run: Run, like: str, dtype: str) -> None:
    code, out, _ = checked(run, "right", "f", like)
    assert code == 0 and f"contract {dtype}" in out
    assert "x[A B], w[B] -> out[A B]" in out
    code, out, _ = checked(run, "wrong", "f", like)
    assert code == 1 and faults(out) == [("WRONG", "vjp_matches_the_oracle", "wrong")] and "dw " in out


def test_the_replay_line_replays(run: Run) -> None:
    _, out, _ = checked(run, "wrong", "f", "inputs", "--dim", "x=B,N")
    line = next(line for line in out.splitlines() if line.split()[:1] == ["replay"])
    assert "from=mine.py:f@like=mine.py:inputs@x=B,N" in line
    words = shlex.split(line)[2:]
    code, out, _ = run(*words)
    assert code == 1 and faults(out) == [("WRONG", "vjp_matches_the_oracle", "wrong")]


def test_worker_processes_derive_the_same_family(run: Run) -> None:
    words = ("check", "mine.py:gather", "--reference", "mine.py:gather", "--like", "mine.py:picks", "--workers", "1")
    code, out, _ = run(*words, "--examples", "3", "--property", "vjp_matches*", "--device", "cpu")
    assert code == 0, out


@pytest.mark.parametrize(("reference", "code"), [("linear", 0), ("twice", 1), ("layer", 0)])
def test_a_module_in_a_process_of_its_own_has_its_parameters_as_inputs(run: Run, reference: str, code: int) -> None:
    """The judge makes a module that stands for it, of the names, dtypes and shapes that the host says."""
    words = ("check", "mine.py:layer", "--reference", f"mine.py:{reference}", "--like", "mine.py:rows")
    own, out, _ = run(*words, "--workers", "1", "--device", "cpu", "--examples", "3", "--property", "vjp_m*", "-v")
    assert own == code and "input[A B], weight[C B], bias[C] -> out[A C]" in told(out), out


def test_integers_take_their_range_from_the_example_and_other_arguments_are_passed_on(run: Run) -> None:
    assert checked(run, "gather", "gather", "picks")[0] == 0
    code, out, _ = checked(run, "gather_wrong", "gather", "picks")
    assert code == 1 and "forward_matches_the_oracle" in out


@pytest.mark.parametrize(
    ("like", "words", "dims"),
    [
        ("bags", (), "table[A B], index[C] int64, offsets[D+1] int64 -> out[D B]"),
        ("bags_ending_before", (), "table[A B], index[C] int64, offsets[D+1] int64 -> out[D B]"),
        ("bags", ("offsets=N+1",), "table[A B], index[C] int64, offsets[N+1] int64 -> out[N B]"),
        ("bags_as_many_as_rows", ("offsets=N+1", "table=V,B", "out=N,B"), "offsets[N+1] int64 -> out[N B]"),
    ],
)
def test_offsets_have_one_more_than_the_sequences(run: Run, like: str, words: tuple[str, ...], dims: str) -> None:
    corrections = [part for word in words for part in ("--dim", word)]
    code, out, err = checked(run, "bag", "bag", like, *corrections)
    assert code == 0 and dims in told(out), out + err
    assert checked(run, "bag_shifted", "bag", like, *corrections)[0] == 1


def test_dims_are_corrected(run: Run) -> None:
    assert "x[A A], w[A] -> out[A A]" in checked(run, "right", "f", "square", "--dim", "A=3")[1]
    code, out, _ = checked(run, "right", "f", "square", "--dim", "x=B,N", "--dim", "w=N", "--dim", "out=B,N")
    assert code == 0 and "x[B N], w[N] -> out[B N]" in out
    assert "table[V D], index[T]" in checked(
        run, "gather", "gather", "picks", "--dim", "table=V,D", "--dim", "index=T", "--dim", "index<V"
    )[1]  # fmt: skip


def test_an_output_may_be_a_multiple_of_a_dim(run: Run) -> None:
    code, out, _ = checked(run, "upward", "upward", "one")
    assert code == 0 and "x[A B] -> out[A 2*B]" in out


def test_integer_and_bool_outputs_are_compared(run: Run) -> None:
    """Equal to the reference's, beside the outputs of floats; none of them is left out."""
    few = ("--not-property", "jvp*", "--property", "integer_outputs*", "--property", "[fv][oj][rp]*_matches_the_oracle")
    for kernel, code, named in (
        ("best", 0, ""),
        ("best_off_by_one", 1, "out1 [exact] out1 differs from that of the definition"),
        ("best_flipped", 1, "out2 [exact] out2 differs from that of the definition"),
        ("best_alone", 1, "the kernel returned 2 tensors, expected 3: ('out0', 'out1', 'out2')"),
    ):
        found, out, _ = checked(run, kernel, "best", "one", *few)
        assert found == code, out
        assert code or ("x[A B] -> out0[A], " in told(out) and "out1[A] int64, out2[A] bool;" in told(out))
        assert "not compared" not in out
        assert named in told(out)
        violated = ("WRONG", "integer_outputs_equal_those_of_the_definition", kernel)
        assert (violated in faults(out)) is (kernel in ("best_off_by_one", "best_flipped"))


def test_an_output_to_which_the_reference_gives_no_gradient_is_compared_by_value(run: Run) -> None:
    code, out, _ = checked(run, "summed", "summed", "one")
    assert code == 0 and "by value alone" in told(out) and "no gradient: out1" in told(out)
    code, out, _ = checked(run, "summed_wrong", "summed", "one")
    assert code == 1 and "out1 [" in told(out) and "out0 [" not in told(out)
    assert len(faults(out)) == 1 and "1 property violated" in told(out)


def test_an_output_that_cannot_be_compared_is_named(run: Run) -> None:
    code, out, _ = checked(run, "transformed", "transformed", "one")
    (note,) = (line for line in out.splitlines() if "outputs not compared" in line)
    assert code == 0
    assert re.findall(r"number (\d) of 3 \((\w+) ", note) == [("2", "complex64"), ("3", "float32")]


def test_the_parameters_of_a_module_are_inputs(run: Run) -> None:
    code, out, _ = checked(run, "layer", "linear", "rows")
    assert code == 0 and "input[A B], weight[C B], " in told(out) and "bias[C] -> out[A C]" in told(out)
    code, out, _ = checked(run, "layer", "twice", "rows")
    assert code == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mine.py:right", "--reference", "mine.py:f"), "--reference goes with --like; expected both"),
        (("mine.py:right", "--like", "mine.py:inputs"), "--like goes with --reference; expected both"),
        (("mine.py:right", "--reference", "mine.py:f", "--like", "mine.py:inputz"), "no callable named 'inputz'"),
        (("mine.py", "--reference", "mine.py:f", "--like", "mine.py:inputs"), "expected mine.py:callable"),
        (("mine.py:right", "--reference", "gone.py:f", "--like", "mine.py:inputs"), "no file gone.py"),
        (("mine.py:right", "--reference", "mine.py:f", "--like", "mine.py:failing"), "ValueError: no example today"),
        (("mine.py:right", "--reference", "mine.py:f", "--like", "mine.py:one"), "missing a required argument: 'w'"),
        (
            ("mine.py:right", "--reference", "mine.py:f", "--like", "mine.py:inputs", "--family", "sdpa"),
            "--reference cannot be combined with --family",
        ),
        (("sdpa", "--dim", "q=B,N"), "names the dims of a tensor, which only goes with --reference and --like"),
    ],
)
def test_a_mistake_is_one_sentence_and_exits_with_2(run: Run, words: tuple[str, ...], says: str) -> None:
    code, out, err = run("check", *words, "--device", "cpu", "--workers", "0")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1, (code, out, err)
    assert says in err


@pytest.mark.parametrize(
    ("dim", "says"),
    [
        ("x=B", "names 1 dims, but x has shape (4, 37) in the example"),
        ("x=N,N", "--dim x=N,N gives N the size 37, but it is 4 elsewhere in the example"),
        ("x=B,2*B", "--dim x=B,2*B gives 2*B the size 8, but x has shape (4, 37) in the example"),
        ("x=B,2*M", "--dim x=B,2*M has no size of M with which 2*M is 37, as in the example"),
        ("x=B,L*M", "names the dim 'L', which no tensor has"),
        ("x=B,N!", "is invalid; expected TENSOR=DIM,DIM of names, numbers and expressions"),
        ("v=B,N", "--dim names the tensor 'v', which is none of x, w, out"),
        ("Q=3", "has no dim Q; it has A, B"),
    ],
)
def test_a_dim_that_conflicts_with_the_example_is_one_sentence(run: Run, dim: str, says: str) -> None:
    code, out, err = checked(run, "right", "f", "inputs", "--dim", dim)
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1, err


def test_a_reference_of_another_shape_is_reported(run: Run) -> None:
    code, out, _ = checked(run, "right", "other", "inputs")
    assert code == 1 and "out has shape" in out and "expected" in out


FAR = """
import torch, triton
import triton.language as tl

@triton.jit
def _copy(X, Y, stride, n_stride, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + n * n_stride, mask=n < N, other=0.0)
    tl.store(Y + row * N + n, x * 2.0, mask=n < N)

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        block = triton.next_power_of_2(x.shape[1])
        _copy[(x.shape[0],)](x, y, x.stride(0), x.stride(1), x.shape[1], BLOCK=block)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2.0 * g

def kernel(x):
    return Copy.apply(x)

def twice(x):
    return 2 * x

def inputs():
    return torch.randn(5, 7)
"""


def test_an_offset_in_32_bits_is_reported_with_its_tensor_and_line_and_can_be_excluded(run: Run) -> None:
    Path("far.py").write_text(FAR)
    words = ("check", "far.py:kernel", "--reference", "twice", "--like", "inputs", "--device", "cpu", "--examples", "4")
    code, out, _ = run(*words, "--workers", "1", "--property", "o*")
    assert code == 1 and "input x along dim" in told(out)
    assert "far.py:9: _copy, program" in told(out) and "reads X[" in told(out)
    code, out, _ = run(*words, "--workers", "1", "--property", "[dfo][eof]*_*e*", "--not-property", "off*")
    assert code == 0 and "--not-property: off*" in out
    code, _, err = run(*words, "--not-property", "nowhere*")
    assert code == 2 and "--not-property nowhere*" in err and "twice" in err
