"""Parts of the gate by themselves: its test of accuracy, closures of imports, fingerprints, and plain documents."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
from gate.project import KERNEL, Project

from gradoracle.gate import accuracy
from gradoracle.gate.accuracy import FEWEST, change, sign_flip
from gradoracle.gate.fingerprints import pieces
from gradoracle.model.ledger import Piece
from gradoracle.model.serialize import Unreadable, from_plain, to_plain
from gradoracle.model.verdict import Counterexample, Status
from gradoracle.project.import_closure import Imports, closure, differing, digests
from gradoracle.project.target import resolve


@pytest.mark.parametrize(
    "differences", [(1.0,), (1.0, -2.0, 3.0), (0.5, 0.5, -0.5, 2.0), (-1.0, -2.0), (3.0, math.inf)]
)
def test_the_sign_flip_test_counts_all_flips(differences: tuple[float, ...]) -> None:
    sizes = sorted(map(abs, differences))
    ranks = {size: sum(p for p, s in enumerate(sizes, 1) if s == size) / sizes.count(size) for size in sizes}
    reached = sum(ranks[abs(each)] for each in differences if each > 0)
    flips = list(itertools.product((0, 1), repeat=len(differences)))
    large = sum(sum(ranks[abs(d)] for d, f in zip(differences, flip, strict=True) if f) >= reached for flip in flips)
    assert sign_flip(differences) == large / len(flips)


def test_the_normal_tail_is_the_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    sample = [draw.gauss(0.9, 1.0) for _ in range(60)]
    exact = sign_flip(sample)
    monkeypatch.setattr(accuracy, "_NORMAL_FROM", 10)
    assert 1e-9 < exact < sign_flip(sample) < 100 * exact


def test_accuracy_fell_where_errors_are_larger_by_half_on_all_cases_and_not_by_chance() -> None:
    draw = random.Random(0)
    base = [draw.uniform(0.5, 2.0) for _ in range(42)]
    assert change(base, [1.5 * each for each in base]).is_worse
    assert not change(base, [1.05 * each for each in base]).is_worse  # 2^0.07
    assert not change(base, base).is_worse and change(base, base).pairs == 0
    assert not change([1.5 * each for each in base], base).is_worse
    assert not any(change(base, [draw.uniform(0.5, 2.0) for _ in base]).is_worse for _ in range(200))
    few = base[: FEWEST - 1]
    assert not change(few, [9.0 * each for each in few]).is_worse
    assert change([0.0] * 42, [1.0] * 42).is_worse and change([1.0] * 42, [math.inf] * 42).is_worse


def test_a_closure_is_what_a_kernel_imports_and_nothing_else(clone: Project) -> None:
    (clone.folder / "my_kernels/apart.py").write_text("import torch\n")
    (clone.folder / "my_kernels/late.py").write_text("x = 1\n")
    clone.edit(KERNEL, ("    return _Norm", "    from . import late\n    return _Norm"))
    files = closure([clone.folder / KERNEL], clone.folder)
    assert {file.relative_to(clone.folder.resolve()).as_posix() for file in files} == {
        f"my_kernels/{name}.py" for name in ("__init__", "rmsnorm", "scaling", "late")
    }
    before = digests(files, clone.folder)
    (clone.folder / "my_kernels/late.py").write_text("x = 2\n")
    assert differing(before, digests(files, clone.folder)) == ["my_kernels/late.py"]


def test_what_a_file_imports_is_found_out_once(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    known: Imports = {}
    files = closure([clone.folder / KERNEL], clone.folder, known=known)
    monkeypatch.setattr(
        "gradoracle.project.import_closure._imported", lambda *of: pytest.fail(f"{of[0]} was read again")
    )
    assert closure([clone.folder / KERNEL], clone.folder, known=known) == files and len(known) == len(files)


def test_this_tree_s_families_are_made_of_their_own_kernels_and_the_engine() -> None:
    root = Path(__file__).resolve().parents[2]
    names = {file.relative_to(root).as_posix() for file in closure([root / "properties/lse/__init__.py"], root)}
    assert {
        "kernels/lse/fused.py",
        "kernels/tiles.py",
        "properties/universal/__init__.py",
        "gradoracle/model/family.py",
    } <= names
    assert not any(name.startswith(("kernels/sdpa", "tests/")) for name in names)


JUDGED = """
import torch
import gradoracle
from jaxtyping import Float
from torch import Tensor

EPS = 1e-6

def inner(x):
    return x.square().mean(-1, keepdim=True) + EPS

@gradoracle.family(dims={"N": gradoracle.multiples(4, 64)})
def unit(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return x * torch.rsqrt(inner(x))

@gradoracle.kernel(unit)
def mine(x):
    return x * torch.rsqrt(inner(x))
"""


def judged(folder: Path, text: str) -> dict[str, Piece]:
    folder.mkdir()
    (folder / "unit.py").write_text(text)
    target = resolve(str(folder / "unit.py"))
    return pieces(target.family, target.kernels, str(folder))


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("rsqrt(inner(x))\n\n@gradoracle.kernel", "rsqrt(\n        inner(x))  # of it\n\n@gradoracle.kernel", []),
        ("def mine(x):\n    return x *", "def mine(x):\n    return 2 * x *", []),
        ("EPS = 1e-6", "EPS = 1e-5", ["the definition of unit"]),
        ("mean(-1, keepdim=True)", "mean(-1, keepdim=True) + 0", ["the definition of unit"]),
        ("multiples(4, 64)", "multiples(4, 32)", ["the domain of unit"]),
        ("@gradoracle.kernel(unit)", "@gradoracle.kernel(unit, deterministic=True)", ["deterministic of kernel mine"]),
        ("@gradoracle.kernel(unit)", "@gradoracle.kernel(unit, no_gradient=('x',))", ["no_gradient of kernel mine"]),
    ],
)  # fmt: skip
def test_a_fingerprint_changes_with_what_its_piece_does(
    tmp_path: Path, before: str, after: str, changed: list[str]
) -> None:
    assert before in JUDGED
    base, head = judged(tmp_path / "base", JUDGED), judged(tmp_path / "head", JUDGED.replace(before, after))
    assert base == judged(tmp_path / "again", JUDGED)
    assert differing(base, head) == changed


def test_plain_documents_come_back_as_they_were_and_say_what_is_wrong() -> None:
    made = Counterexample("a case", (), further=(), message="m")
    assert from_plain(Counterexample, to_plain(made)) == made
    assert to_plain([math.inf, Status.HOLDS, (1, None)]) == ["inf", "holds", [1, None]]
    assert from_plain(dict[str, float], {"a": "-inf"}) == {"a": -math.inf}
    for kind, value, said in (
        (Counterexample, {"case": "c"}, "Counterexample has no field 'findings'"),
        (Counterexample, {"case": 3, "findings": []}, "Counterexample.case is 3; expected str"),
        (list[Status], ["well"], r"\[0\] is 'well'; expected one of crashed, violated"),
        (tuple[int, str], [1], "expected 2 items"),
        (dict[str, int], {"a": True}, "a is True; expected int"),
    ):
        with pytest.raises(Unreadable, match=said):
            from_plain(kind, value)


def test_a_tensor_of_one_element_has_a_fingerprint_whatever_its_strides(tmp_path: Path) -> None:
    file = tmp_path / "unit.py"
    text = "SHIFT = torch.zeros(3, dtype=torch.int64).as_strided((1, 1), (0, 0))\n"
    assert "EPS = 1e-6\n" in JUDGED and "+ EPS" in JUDGED
    file.write_text(JUDGED.replace("EPS = 1e-6\n", f"EPS = 1e-6\n{text}").replace("+ EPS", "+ EPS + SHIFT.sum()"))
    target = resolve(str(file))
    assert pieces(target.family, target.kernels, str(tmp_path))
