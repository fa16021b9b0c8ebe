"""Domains on the command line: shown by an example call, said with --dim, written by ``new``, checked in --inputs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from programs import Run
from torch import Tensor

import gradoracle
from gradoracle.model.errors import UsageError

MINE = """
import torch
import gradoracle
from jaxtyping import Float, Int, Int32
from torch import Tensor

def made(seed=0):
    return torch.Generator().manual_seed(seed)

X = torch.randn(12, 5, generator=made())
ORDER = torch.randperm(12, generator=made(1))
CU = torch.tensor([0, 3, 3, 12], dtype=torch.int32)
SEQ = torch.tensor([0] * 3 + [2] * 9)
POS = torch.tensor([0, 1, 2, *range(9)])

def scatter(x, order):
    return torch.zeros_like(x).index_copy(0, order, x)

def definition(x, order):
    return (order[None, :] == torch.arange(x.shape[0])[:, None]).to(x.dtype) @ x

def lossy(x, order):
    return torch.zeros_like(x).index_copy(0, order[:-1], x[:-1])

def stored(x, order):
    return torch.zeros_like(x).index_copy(0, order, x)  # of an order that repeats, one of them

def permuted():
    return X, ORDER

def counted():
    return X, torch.arange(12)

def rope(x, cu, pos):
    return x * torch.cos(0.5 * pos.to(x.dtype))[:, None] + 0 * x[cu[:-1].long().clamp(max=len(x) - 1)].sum()

def rope_of_sequences(x, cu, pos):
    place = torch.arange(len(x))
    first = cu[(place[:, None] >= cu[None, 1:]).sum(1)]
    return x * torch.cos(0.5 * (place - first).to(x.dtype))[:, None]

def rope_of_one(x, cu, pos):
    return rope_of_sequences(x, cu.new_tensor([0, len(x)]), pos)

def packed():
    return X, CU, POS

def tabled(x, table, cu, pos):
    return x * table[pos][:, None] + 0 * x[cu[:-1].long().clamp(max=len(x) - 1)].sum()

def tabled_once_more(x, table, cu, pos):
    return x * table[(pos + 1).clamp(max=len(table) - 1)][:, None]

def packed_with_a_table():
    return X, torch.randn(40, generator=made(4)), CU, POS

def moe(x, w, top):
    return torch.einsum("td,tkd->tk", x, w[top])

def moe_in_order(x, w, top):
    return moe(x, w, top.sort(-1)[0])

def experts():
    top = torch.rand(12, 7, generator=made(2)).topk(3)[1]
    return X, torch.randn(7, 5, generator=made(3)), top

def segmented(x, seq):
    return x * (1.0 + seq)[:, None]

def segments():
    return X, SEQ.clamp(max=1)

def unpack(x, packed):
    return x * ((packed >> 28) & 15)

def unpack_with_sign(x, packed):
    return x * (packed >> 28)

def bits():
    return X, torch.tensor([2**31 - 1, -(2**31), 5, -7, 99], dtype=torch.int32)

@gradoracle.family(dims={"T": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 4)}, domains={
    "cu": gradoracle.Offsets("T"), "pos": gradoracle.Positions(of="cu"), "order": gradoracle.Permutation("T"),
    "table": gradoracle.BlockTable("T")})
def everything(x: Float[Tensor, "T"], cu: Int32[Tensor, "N+1"], pos: Int[Tensor, "T"], order: Int[Tensor, "T"],
               table: Int[Tensor, "N"]) -> Float[Tensor, "T"]:
    return x[order] * (1.0 + pos) + x[table].sum()

@gradoracle.kernel(everything)
def same(x, cu, pos, order, table):
    return x[order] * (1.0 + pos) + x[table].sum()
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder holds indexed.py."""
    (tmp_path / "indexed.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


FEW = ("--device", "cpu", "--workers", "0", "--examples", "12", "--property", "[fv][oj][rp]*_matches_the_oracle", "-v")


def told(out: str) -> str:
    """A report with its lines joined."""
    return " ".join(out.split())


def checked(run: Run, kernel: str, reference: str, like: str, *words: str) -> tuple[int, str]:
    said = [part for word in words for part in ("--dim", word)]
    pair = ("--reference", f"indexed.py:{reference}", "--like", f"indexed.py:{like}")
    code, out, err = run("check", f"indexed.py:{kernel}", *pair, *FEW, *said)
    return code, told(out + err)


@pytest.mark.parametrize(
    ("right", "wrong", "reference", "like", "says"),
    [
        ("scatter", "lossy", "definition", "permuted", "order is taken as a permutation of A; say another domain"),
        (
            "rope",
            "rope_of_one",
            "rope_of_sequences",
            "packed",
            "pos is taken as the place of each token in its sequence",
        ),
        (
            "tabled",
            "tabled_once_more",
            "tabled",
            "packed_with_a_table",
            "of each token in its sequence in cu, below C;",
        ),
        ("moe", "moe_in_order", "moe", "experts", "top is taken as indices 0 to C-1, distinct in a row"),
        ("segmented", "rope", "segmented", "segments", "seq is taken as segments 0 to 1, sorted"),
        ("unpack", "unpack_with_sign", "unpack", "bits", "packed is taken as any 32 bits"),
    ],
)
def test_an_example_shows_the_domain(run: Run, right: str, wrong: str, reference: str, like: str, says: str) -> None:
    code, out = checked(run, right, reference, like)
    assert code == 0 and says in out, out
    if like != "segments":
        code, out = checked(run, wrong, reference, like)
        assert code == 1, out


def test_what_chance_explains_is_asked_for_in_one_sentence(run: Run) -> None:
    """0, 1, 2... may be an order, positions or indices: taken as indices, where a scatter may store twice."""
    code, out = checked(run, "stored", "definition", "counted")
    hint = (
        "order may hold positions, from 0 in each sequence or a permutation of A; if so, say --dim 'order=Positions()'"
    )
    assert code == 1 and hint in out, out
    code, out = checked(run, "stored", "definition", "counted", "order=Permutation(A)")
    assert code == 0 and "may hold" not in out
    code, out = checked(run, "lossy", "definition", "counted", "order=Permutation(A)")
    assert code == 1


def test_a_said_domain_is_in_the_line_that_replays(run: Run) -> None:
    pair = ("--reference", "indexed.py:definition", "--like", "indexed.py:counted")
    said = ("--dim", "x=T,D", "--dim", "order=T", "--dim", "order=Permutation(T)")
    code, out, _ = run("check", "indexed.py:lossy", *pair, *FEW, *said)
    line = next(line for line in out.splitlines() if line.split()[:1] == ["replay"])
    assert code == 1 and "@x=T,D@order=T@order=Permutation(T)" in line and "order~identity" in line
    code, out, _ = run(*shlex.split(line)[2:])
    assert code == 1 and "vjp_matches_the_oracle" in out


def test_offsets_that_are_said_have_one_more_than_the_sequences(run: Run) -> None:
    code, out = checked(run, "rope", "rope_of_sequences", "packed", "cu=N+1", "cu=Offsets(A)", "pos=Positions(of=cu)")
    assert code == 0 and "cu[N+1] int32" in out
    code, out = checked(run, "rope", "rope_of_sequences", "packed", "cu=Offsets(A,minimum=0)", "pos=Positions(of=cu)")
    assert code == 0 and "cu[C+1] int32" in out


@pytest.mark.parametrize(
    ("like", "words", "says"),
    [
        ("permuted", ("order=Permute(A)",), "'order=Permute(A)' is invalid: Permute is no domain; expected one of"),
        ("permuted", ("order=Permutation(B)",), "order has the last dim A, but a permutation of B has B"),
        ("permuted", ("order=Positions()",), "but in the example order holds"),
        ("permuted", ("other=Permutation(A)",), "--dim names the tensor 'other', which is none of x, order, out"),
        ("permuted", ("order=Segments(Q)",), "the domain of order names Q, which is no dim; expected some of"),
        ("permuted", ("order=Positions(of=cu)",), "reads 'cu'; expected an input of offsets, which it has not"),
        ("permuted", ("x=Seed()",), "--dim says what integers x holds, which holds floats; expected an integer input"),
    ],
)
def test_a_said_domain_that_does_not_fit_is_one_sentence(
    run: Run, like: str, words: tuple[str, ...], says: str
) -> None:
    said = [part for word in words for part in ("--dim", word)]
    pair = ("--reference", "indexed.py:definition", "--like", f"indexed.py:{like}")
    code, out, err = run("check", "indexed.py:scatter", *pair, *FEW, *said)
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1 and "Traceback" not in err


def test_new_writes_the_domains_that_an_example_shows(run: Run) -> None:
    for kernel, like, written in (
        ("scatter", "permuted", 'domains={"order": gradoracle.Permutation("A")}'),
        ("moe", "experts", '"top": gradoracle.Distinct("C")'),
        ("unpack", "bits", '"packed": gradoracle.Bits()'),
        ("rope", "packed", '"cu": gradoracle.Offsets("A"), "pos": gradoracle.Positions(of="cu")'),
    ):
        code, _, err = run(
            "new", f"indexed.py:{kernel}", "--like", f"indexed.py:{like}", "--output", f"{kernel}_family.py"
        )
        text = Path(f"{kernel}_family.py").read_text()
        assert code == 0 and written in text, err + text
    file = Path("scatter_family.py")
    file.write_text(re.sub(r"raise NotImplementedError\(.*\)", "return " + DENSE, file.read_text()))
    assert run("check", str(file), *FEW)[0] == 0


DENSE = "(order[None, :] == torch.arange(x.shape[0])[:, None]).to(x.dtype) @ x"
GOOD = {
    "x": torch.arange(5.0),
    "cu": torch.tensor([0, 2, 5]),
    "pos": torch.tensor([0, 1, 0, 1, 2]),
    "order": torch.tensor([3, 0, 4, 1, 2]),
    "table": torch.tensor([4, 1]),
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, ""),
        ({"cu": torch.tensor([0, 6, 5])}, "cu falls from 6 to 5 at [2], expected offsets that rise from 0 to 5"),
        ({"pos": torch.tensor([0, 1, 2, 3, 4])}, "pos holds 2 at [2], expected 0 by the sequences of cu"),
        ({"order": torch.tensor([3, 0, 4, 3, 2])}, "order holds 3 at [3] a second time, expected each value once"),
        ({"table": torch.tensor([4, 5])}, "table holds 5 at [1], expected blocks from 0 to 4"),
    ],
)
def test_saved_tensors_outside_of_a_domain_are_one_sentence(run: Run, changed: dict[str, Tensor], says: str) -> None:
    torch.save(GOOD | changed, "saved.pt")
    code, out, err = run("check", "indexed.py:same", "--inputs", "saved.pt", *FEW)
    if not says:
        assert code == 0, out + err
        return
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert err.strip() == f"gradoracle: --inputs saved.pt: {says}" or says in err


def rope(x: Tensor, cu: Tensor, pos: Tensor) -> Tensor:
    return x * torch.cos(0.5 * pos.to(x.dtype))[:, None]


def test_gradcheck_of_tensors_of_every_domain() -> None:
    """As of offsets, one row for each gap of which was once called a fault of the caller."""
    x = torch.randn(6, 3, requires_grad=True)
    cu, pos, order = torch.tensor([0, 2, 2, 6]), torch.tensor([0, 1, 0, 1, 2, 3]), torch.tensor([5, 3, 1, 0, 2, 4])
    assert gradoracle.gradcheck(rope, (x, cu, pos), reference=rope)
    assert gradoracle.gradcheck(lambda x, i: x[i], (x, order), reference=lambda x, i: x[i])
    said = {"i": gradoracle.Permutation("A")}
    assert gradoracle.gradcheck(lambda x, i: x[i], (x, order), reference=lambda x, i: x[i], domains=said)
    wrong = lambda x, i: x[i].cumsum(0).diff(dim=0, prepend=x[:1] * 0)[: len(i)].flip(0)  # noqa: E731
    assert not gradoracle.gradcheck(wrong, (x, order), reference=lambda x, i: x[i], domains=said, raise_exception=False)
    for domains, given, says in (
        (
            said,
            torch.tensor([0, 1, 2, 3, 4, 4]),
            "i is a permutation of A, but in the example i holds 4 at [5] a second",
        ),
        ({"i": gradoracle.Distinct("B")}, order, "but in the example i holds 5 at [0], expected indices from 0 to 2"),
        ({"j": gradoracle.Seed()}, order, "names the tensor 'j', which is none of x, i, out"),
    ):
        with pytest.raises(UsageError) as caught:
            gradoracle.gradcheck(lambda x, i: x[i], (x, given), reference=lambda x, i: x[i], domains=domains)
        assert says in str(caught.value)
    table, index = torch.randn(9, 4, requires_grad=True), torch.rand(20, 9).topk(3)[1]
    assert gradoracle.gradcheck(lambda t, i: t[i].sum(1), (table, index), reference=lambda t, i: t[i].sum(1))
    ends = torch.tensor([1, 1, 2, 4, 4, 6], dtype=torch.int32)
    assert gradoracle.gradcheck(by_expert, (x, ends), reference=by_expert)
    assert gradoracle.gradcheck(by_seed, (x, torch.tensor([2**40 + 3])), reference=by_seed)
    packed = torch.tensor([2**31 - 1, -(2**31), 7], dtype=torch.int32)
    assert gradoracle.gradcheck(by_bits, (x, packed), reference=by_bits)


def by_expert(x: Tensor, ends: Tensor) -> Tensor:
    return x * (1.0 + (torch.arange(x.shape[0])[:, None] >= ends[None, :]).sum(1))[:, None]


def by_seed(x: Tensor, seed: Tensor) -> Tensor:
    return x * (seed >> 40)


def by_bits(x: Tensor, packed: Tensor) -> Tensor:
    return x * ((packed >> 28) & 15)
