"""The lightning kernels against their definition, derivative by derivative, and their promises of memory and bits."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradoracle.kernels import lightning as kernels
from gradoracle.kernels.lightning import scan
from gradoracle.kernels.lightning.blocks import AUTOMATIC, few_enough_warps, of_part, piece_rows, programs_of_head
from gradoracle.kernels.lightning.guardrails import check
from gradoracle.kernels.lightning.tuned import PARTS, TUNED
from gradoracle.properties.lightning import FAMILY, KERNELS
from sweeps import covering

from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case, Draw
from gradoracle.oracle.truth import Oracle
from tests.kernels.assertions import assert_within_budgets
from tests.properties import judging

(KERNEL,) = KERNELS
ORACLE = Oracle(FAMILY)
DIMS = {
    "one row": {"B": 1, "H": 2, "N": 1, "D": 1, "Dv": 1},
    "tails, Dv > D": {"B": 2, "H": 2, "N": 37, "D": 3, "Dv": 33},
    "several chunks, D > Dv": {"B": 1, "H": 2, "N": 130, "D": 40, "Dv": 20},
    "several pieces, aligned": {"B": 1, "H": 1, "N": 300, "D": 32, "Dv": 48},
}
DTYPES = ("float32", "bfloat16", "float16")


def evidence(dims: str, dtype: str, blocks: str, initial: bool, state: bool) -> Evidence:
    draws = {"initial_state": Draw("normal")} if initial else {}
    options = {"return_state": True} if state else {}
    case = Case("lightning", DIMS[dims], dtype, options, draws, blocks, seed=4)
    return judging.evidence(case, KERNEL, ORACLE)


CASES = [
    *itertools.product(DIMS, DTYPES, ["", *kernels.BLOCKS], (True,), (True,)),
    *itertools.product(["several chunks, D > Dv"], DTYPES, ["", "narrow"], (False,), (False, True)),
    *itertools.product(["tails, Dv > D"], DTYPES, ["", "narrow"], (True,), (False,)),
]


@pytest.mark.parametrize(("dims", "dtype", "blocks", "initial", "state"), covering(CASES))
def test_every_derivative_is_within_its_budget(dims: str, dtype: str, blocks: str, initial: bool, state: bool) -> None:
    expected = {"o", "dq", "dk", "dv", "jvp.o", "hvp.q", "hvp.k", "hvp.v"}
    expected |= {"dinitial_state", "hvp.initial_state"} if initial else set()
    expected |= {"state", "jvp.state"} if state else set()
    assert_within_budgets(evidence(dims, dtype, blocks, initial, state), expected)


def tensors(N: int = 100, D: int = 5, Dv: int = 7) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(2, 2, N, width, generator=generator) for width in (D, D, Dv))


@pytest.mark.parametrize("blocks", kernels.BLOCKS)
def test_every_configuration_cuts_a_sequence_of_300_rows(blocks: str) -> None:
    q, k, v = tensors(300)
    problem = check(q, k, v, None, False, "ieee", kernels.BLOCKS[blocks])
    assert problem.pieces == {"narrow": 10, "tall": 3, "square": 1}[blocks]
    problem = check(*tensors(1300), None, False, "ieee", kernels.BLOCKS["square"])
    assert (problem.pieces, problem.piece_rows) == (2, 704), "few heads: pieces of at least 512 rows"


@pytest.mark.parametrize("direction", [1, -1])
def test_the_sums_of_pieces_are_those_of_their_rows(direction: int) -> None:
    q, k, v = tensors(300)
    problem = check(q, k, v, None, False, "ieee", kernels.BLOCKS["tall"])
    sums = scan.sum_pieces(problem, k, v, direction)
    assert sums is not None and sums.shape == (2, 2, 2, 5, 7)
    starts = (0, 128) if direction > 0 else (256, 128)
    for piece, start in enumerate(starts):
        rows = slice(start, start + 128)
        expected = k[:, :, rows].double().transpose(-1, -2) @ v[:, :, rows].double()
        assert torch.allclose(sums[:, :, piece].double(), expected, rtol=0, atol=1e-4)


def test_the_workspace_is_what_is_allocated() -> None:
    for N in (100, 300, 1300, 200_000):
        q, k, v = (x.expand(2, 2, N, x.shape[3]) for x in tensors(1))
        problem = check(q, k, v, None, False, "ieee", kernels.BLOCKS["tall"])
        sizes = {"batch": 2, "heads": 2, "features": 5, "value_features": 7}
        formula = kernels.workspace_bytes(**sizes, pieces=problem.pieces)
        assert problem.pieces <= 64 and formula == 4 * 4 * 35 * (problem.pieces - 1)
        if N <= 1300:
            sums = scan.sum_pieces(problem, k, v)
            assert formula == (0 if sums is None else sums.nbytes)


def test_memory_grows_with_the_sequence_and_not_with_its_square() -> None:
    q, k, v = tensors(2000, 4, 4)
    made: list[int] = []

    class Allocations(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                made.append(result.numel())
            return result

    with Allocations():
        kernels.lightning(q, k, v)
    assert made and max(made) <= q.numel()


def test_tiles_of_a_pass_keep_the_chunk_and_are_for_sm_9x_alone() -> None:
    every = itertools.product(("16 bit", "split"), (32, 64, 128), PARTS, (128, 129))
    for dots, width, part, programs in every:
        chosen = AUTOMATIC[dots]
        own = of_part(chosen, part, dots, width, programs, (9, 0))
        assert (own.chunk, own.piece) == (chosen.chunk, 0) and own.chunk % own.micro == 0
        elsewhere = of_part(chosen, part, dots, width, programs, (12, 0))
        assert elsewhere == chosen._replace(num_stages=1 if part in PARTS[3:] else chosen.num_stages)
    assert of_part(AUTOMATIC["ieee"], "scan", "ieee", 64, 1, (9, 0)) == AUTOMATIC["ieee"]


@pytest.mark.parametrize(
    ("heads", "N", "D", "Dv", "dots", "pieces"),
    [
        (64, 8192, 64, 64, "16 bit", 1),
        (64, 8192, 64, 128, "16 bit", 1),
        (64, 8192, 32, 32, "16 bit", 4),
        (63, 8192, 64, 64, "16 bit", 2),
        (16, 2048, 128, 128, "16 bit", 4),
        (4, 131072, 64, 64, "16 bit", 32),
        (4, 131072, 64, 64, "ieee", 32),
        (64, 8192, 64, 64, "split", 4),
        (64, 8192, 128, 128, "split", 2),
        (256, 8192, 64, 64, "split", 1),
        (4, 131072, 64, 64, "split", 64),
    ],
)
def test_pieces_are_of_sizes_alone(heads: int, N: int, D: int, Dv: int, dots: str, pieces: int) -> None:
    blocks = AUTOMATIC[dots]
    length = piece_rows(blocks, dots, N, heads * programs_of_head(blocks, max(D, Dv), max(D, Dv)))
    assert -(-N // length) == pieces and length % blocks.chunk == 0


def test_a_program_of_split_float32_has_two_warps_whatever_is_forced() -> None:
    for blocks in (*kernels.BLOCKS.values(), kernels.Blocks(64, 32, num_warps=8)):
        assert few_enough_warps(blocks, "split") == blocks._replace(num_warps=2)
        assert few_enough_warps(blocks, "ieee") == few_enough_warps(blocks, "16 bit") == blocks
    split = [row for (dots, *_), row in TUNED.items() if dots == "split"]
    assert len(split) == 4 and all(tiles.num_warps <= 2 for row in split for tiles in row)
    assert AUTOMATIC["split"].num_warps == 2


def test_two_runs_in_several_pieces_give_the_same_bits() -> None:
    leaves = [x.requires_grad_() for x in tensors(300)]
    first, second = (
        torch.autograd.grad(kernels.lightning(*leaves, blocks=kernels.BLOCKS["tall"]).square().sum(), leaves)
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("D", "Dv"), [(5, 7), (5, 40)])  # one launch, and two
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_part_of_the_gradients_is_the_same_as_all_of_them(dtype: torch.dtype, D: int, Dv: int) -> None:
    q, k, v = (x.to(dtype) for x in tensors(100, D, Dv))
    state = torch.randn(2, 2, D, Dv)
    leaves = {"q": q, "k": k, "v": v, "initial_state": state}

    def gradients(*expected: str) -> list[torch.Tensor]:
        own = {name: x.detach().requires_grad_(name in expected) for name, x in leaves.items()}
        o, last = kernels.lightning(own["q"], own["k"], own["v"], initial_state=own["initial_state"], return_state=True)
        return list(torch.autograd.grad(o.sum() + last.square().sum(), [own[name] for name in expected]))

    together = dict(zip(leaves, gradients(*leaves), strict=True))
    for name, whole in together.items():
        assert torch.equal(gradients(name)[0], whole), name


def test_a_third_derivative_is_refused_in_one_sentence() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(20))
    (dq,) = torch.autograd.grad(kernels.lightning(q, k, v).square().sum(), q, create_graph=True)
    (hk,) = torch.autograd.grad(dq.square().sum(), k, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"^lightning has no third derivative: expected at most two"):
        torch.autograd.grad(hk.sum(), q)


BAD = {
    "q of rank 3": ({"q": torch.zeros(2, 100, 5)}, r"q has rank 3 \(shape \(2, 100, 5\)\): expected rank 4"),
    "q is no tensor": ({"q": [1.0]}, "q is a list: expected a torch.Tensor"),
    "float64": ({"q": torch.zeros(2, 2, 100, 5, dtype=torch.float64)}, "q has dtype torch.float64: expected float32"),
    "N = 0": ({"q": torch.zeros(2, 2, 0, 5)}, r"q has N = 0 .*: expected N from 1 to 1073741824"),
    "D = 0": ({"q": torch.zeros(2, 2, 100, 0)}, r"q has D = 0 .*: expected D from 1 to 128"),
    "D = 129": ({"q": torch.zeros(2, 2, 100, 129)}, r"q has D = 129 .*: expected D from 1 to 128"),
    "Dv = 129": ({"v": torch.zeros(2, 2, 100, 129)}, r"v has Dv = 129 .*: expected Dv from 1 to 128"),
    "k of another length": (
        {"k": torch.zeros(2, 2, 99, 5)},
        r"k has shape .*: expected \[B, H, N, D\] = \(2, 2, 100, 5\)",
    ),
    "v of another length": ({"v": torch.zeros(2, 2, 99, 7)}, r"v has shape .*: expected \[B, H, N, Dv\]"),
    "k of another dtype": (
        {"k": torch.zeros(2, 2, 100, 5).half()},
        "k has dtype torch.float16: expected that of q, torch.float32",
    ),
    "a state of another shape": (
        {"initial_state": torch.zeros(2, 2, 7, 5)},
        r"initial_state has shape \(2, 2, 7, 5\): expected \[B, H, D, Dv\] = \(2, 2, 5, 7\)",
    ),
    "a state of another dtype": (
        {"initial_state": torch.zeros(2, 2, 5, 7).half()},
        "initial_state has dtype torch.float16: expected torch.float32",
    ),
    "return_state is a word": ({"return_state": "yes"}, "return_state is 'yes': expected True or False"),
    "blocks is a tuple": ({"blocks": (64, 64)}, r"blocks is \(64, 64\): expected a lightning Blocks or None"),
    "a chunk of 48": (
        {"blocks": kernels.Blocks(48, 16)},
        "blocks.chunk is 48: expected a power of two from 16 to 4096",
    ),
    "micro above chunk": ({"blocks": kernels.Blocks(32, 64)}, "blocks.micro is 64: expected at most blocks.chunk, 32"),
    "a piece of 100": ({"blocks": kernels.Blocks(32, 16, piece=100)}, "blocks.piece is 100: expected a multiple of"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_one_sentence(what: str) -> None:
    changed, message = BAD[what]
    given = dict(zip("qkv", tensors(), strict=True)) | changed
    with pytest.raises(ValueError, match=message) as error:
        kernels.lightning(given.pop("q"), given.pop("k"), given.pop("v"), **given)
    assert "\n" not in str(error.value)


def test_cotangents_are_checked_too() -> None:
    problem = check(*tensors(), None, True, "ieee", None)
    from gradoracle.kernels.lightning.guardrails import check_cotangents

    with pytest.raises(ValueError, match=r"g has shape \(1,\)|g has rank 1"):
        check_cotangents(problem, torch.zeros(1), None)
    with pytest.raises(ValueError, match=r"dstate has dtype torch.float16: expected torch.float32"):
        check_cotangents(problem, None, torch.zeros(2, 2, 5, 7).half())
