"""The gated delta kernels against a loop over tokens in float64, and their promises of memory, bits and refusals."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from gradoracle.kernels import gated_delta as kernels
from gradoracle.kernels.gated_delta import chunks, gradients, states
from gradoracle.kernels.gated_delta.blocks import AUTOMATIC, feature_columns, forced_on, of_part, piece_chunks
from gradoracle.kernels.gated_delta.compilations import PASSES, compilations
from gradoracle.kernels.gated_delta.guardrails import check, check_cotangents
from gradoracle.kernels.gated_delta.tuned import PARTS, TUNED
from sweeps import covering, slow

from tests.kernels.assertions import assert_refused, assert_same_bits
from tests.kernels.gated_delta.recurrence import NAMES, deviations, failures, results, truth

DIMS = {
    "one row": (1, 2, 1, 3, 5),
    "a tail, Dv > D": (2, 2, 37, 5, 33),
    "several chunks, D > Dv": (1, 2, 130, 40, 20),
    "aligned": (1, 1, 96, 32, 48),
    "D aligned alone": (1, 1, 33, 16, 100),
    "Dv aligned alone": (1, 1, 33, 100, 16),
}
DECAYS = {"none": 0.0, "ordinary": 1.0, "strong": 30.0}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SCALE = 0.7


def tensors(
    B: int = 2, H: int = 2, T: int = 37, D: int = 5, Dv: int = 7, dtype: torch.dtype = torch.float32, decay: float = 1.0
) -> list[torch.Tensor]:
    """q, k, v, g, beta, initial state, and cotangents of o and the last state; keys of length 1, beta from 0 to 1."""
    generator = torch.Generator().manual_seed(T + D)
    q, k, v, do = (torch.randn(B, H, T, width, generator=generator) for width in (D, D, Dv, Dv))
    g, beta = (torch.rand(B, H, T, generator=generator) for _ in range(2))
    initial, dstate = (torch.randn(B, H, D, Dv, generator=generator) for _ in range(2))
    k = torch.nn.functional.normalize(k, dim=-1)
    q, k, v, beta, do = (x.to(dtype) for x in (q, k, v, beta, do))
    return [q, k, v, -decay * g, beta, initial, do, dstate]


def kernel(*given: torch.Tensor, blocks: kernels.Blocks | None = None) -> Any:
    *rows, initial = given
    return kernels.gated_delta(*rows, scale=SCALE, initial_state=initial, return_state=True, blocks=blocks)


@functools.cache
def judged(dims: str, dtype: torch.dtype, decay: str) -> Any:
    """Inputs with cotangents, what the loop gives, and its deviations."""
    given = tensors(*DIMS[dims], dtype, DECAYS[decay])
    return given, truth(given[:6], given[6:], SCALE), deviations(given[:6], given[6:], SCALE, dtype)


@pytest.mark.parametrize(
    ("dims", "dtype", "blocks", "decay"), covering(itertools.product(DIMS, DTYPES, ["", *kernels.BLOCKS], DECAYS))
)
def test_results_and_gradients_are_off_by_what_rounding_explains(
    dims: str, dtype: torch.dtype, blocks: str, decay: str
) -> None:
    given, exact, sigmas = judged(dims, dtype, decay)
    forced = kernels.BLOCKS[blocks] if blocks else None
    found = results(lambda *x: kernel(*x, blocks=forced), given[:6], given[6:])
    assert [x.dtype for x in found] == [dtype, torch.float32, dtype, dtype, dtype, torch.float32, dtype, torch.float32]
    assert failures(found, exact, sigmas) == []


WRONG = {
    "o: a larger scale": (0, lambda o: o * 1.00001),
    "o: no tail": (0, lambda o: torch.cat([o[:, :, :-1], o[:, :, -1:] * 0], 2)),
    "state: without its last row": (1, lambda state: torch.cat([state[:, :, :-1], state[:, :, -1:] * 0], 2)),
    "dq: off by a row": (2, lambda dq: dq.roll(1, 2)),
    "dk: one chunk missing": (3, lambda dk: torch.cat([dk[:, :, :16], dk[:, :, 16:32] * 0.999, dk[:, :, 32:]], 2)),
    "dv: one sign": (4, lambda dv: torch.cat([dv[..., :1], -dv[..., 1:2], dv[..., 2:]], 3)),
    "dg: of the row before": (5, lambda dg: dg.roll(-1, 2)),
    "dg: one NaN": (5, lambda dg: torch.where(torch.arange(dg.shape[2]) == 3, torch.nan, dg)),
    "dbeta: of another head": (6, lambda dbeta: dbeta.flip(1)),
    "dinitial_state: decayed twice": (7, lambda dinitial: dinitial * 0.99),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_result_is_caught_where_the_right_one_holds(what: str) -> None:
    given, exact, sigmas = judged("a tail, Dv > D", torch.float32, "ordinary")
    found = results(kernel, given[:6], given[6:])
    assert failures(found, exact, sigmas) == []
    number, wrong = WRONG[what]
    found[number] = wrong(found[number])
    (failure,) = failures(found, exact, sigmas)
    assert failure.startswith(NAMES[number] + ":")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("forgotten", [-torch.inf, -1e6, -200.0])
def test_a_row_that_forgets_all_begins_anew(forgotten: float, dtype: torch.dtype) -> None:
    given = tensors(1, 2, 70, 5, 7, dtype)
    given[3][:, :, 21] = forgotten
    given[3][:, :, 64] = forgotten
    exact, sigmas = truth(given[:6], given[6:], SCALE), deviations(given[:6], given[6:], SCALE, dtype)
    found = results(kernel, given[:6], given[6:])
    assert failures(found, exact, sigmas) == []
    assert not found[5][:, :, [21, 64]].any(), "exactly zero"
    rest = [x[:, :, 64:] for x in given[:5]]
    alone = kernels.gated_delta(*rest, scale=SCALE)
    assert torch.allclose(found[0][:, :, 64:].float(), alone.float(), rtol=0.02 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("blocks", kernels.BLOCKS)
def test_a_state_that_grows_does_not_overflow_on_the_way(blocks: str) -> None:
    """By e^60 within a chunk: no exponential of more than what is there is taken, while some of its digits are lost."""
    given = tensors(1, 1, 60, 4, 4)
    given[3][:] = 1.4
    given[3][:, :, ::2] *= -1
    given[3][:, :, 20:40] = (
        3.0  # e^G_i e^-G_j would be beyond float32, which ends at e^88.7, with the cotangent's share
    )
    exact = truth(given[:6], given[6:], SCALE)
    found = results(lambda *x: kernel(*x, blocks=kernels.BLOCKS[blocks]), given[:6], given[6:])
    for name, each, true in zip(NAMES, found, exact, strict=True):
        assert true.abs().max() > 1e23
        assert (each.double() - true).norm() <= 2.0**-13 * true.norm(), name


def test_keys_whose_products_overflow_in_one_row_alone_do_no_harm() -> None:
    q, k, v, g, beta, *_ = tensors(1, 1, 1, 4, 4)
    o = kernels.gated_delta(q * 1e-20, k * 1e20, v, g, beta)
    expected = (q.double() * k.double()).sum(-1, keepdim=True) / 2 * beta.double()[..., None] * v.double()
    assert torch.allclose(o.double(), expected, rtol=1e-6)


def test_without_beta_the_state_only_decays() -> None:
    q, k, v, g, _, initial, *_ = tensors(1, 2, 50)
    beta = torch.zeros(1, 2, 50, requires_grad=True)
    o, state = kernels.gated_delta(q, k, v, g, beta, initial_state=initial, return_state=True)
    decay = g.double().cumsum(2).exp()
    expected = decay[..., None] * (q.double() @ initial.double()) / 5**0.5
    assert torch.allclose(o.double(), expected, rtol=1e-5, atol=1e-7)
    assert torch.allclose(state.double(), decay[:, :, -1, None, None] * initial.double(), rtol=1e-5)
    (dbeta,) = torch.autograd.grad(o.sum(), beta)
    assert dbeta.abs().min() > 0, "its gradient is not zero"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_strides_of_inputs_and_cotangents_change_no_bit(dtype: torch.dtype) -> None:
    plain = tensors(2, 2, 40, 16, 32, dtype)
    expected = results(kernel, plain[:6], plain[6:])

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, -1).contiguous().transpose(1, -1)

    def sliced(x: torch.Tensor) -> torch.Tensor:
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan, dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]

    for layout in (turned, sliced):
        assert not layout(plain[0]).is_contiguous()
        leaves = [layout(x).detach().requires_grad_() for x in plain[:6]]
        out = kernel(*leaves)
        found = torch.autograd.grad(out, leaves, [layout(x) for x in plain[6:]])
        assert_same_bits([*out, *found], expected)
    one = [x[:, :, :1].expand(x.shape) for x in plain[:5]]
    assert_same_bits(kernel(*one, plain[5]), kernel(*(x.contiguous() for x in one), plain[5]))


def test_two_runs_give_the_same_bits() -> None:
    given = tensors(1, 2, 130, 40, 20, torch.bfloat16)
    assert_same_bits(results(kernel, given[:6], given[6:]), results(kernel, given[:6], given[6:]))


def test_a_part_of_the_gradients_is_the_same_as_all_of_them() -> None:
    *given, do, dstate = tensors()
    whole = results(kernel, given, (do, dstate))[2:]
    for number, expected in enumerate(whole):
        leaves = [x.detach().requires_grad_(i == number) for i, x in enumerate(given)]
        (found,) = torch.autograd.grad(kernel(*leaves), leaves[number], (do, dstate))
        assert torch.equal(found, expected), NAMES[2 + number]


def test_the_cotangent_of_one_output_alone() -> None:
    *given, do, dstate = tensors()
    both = results(kernel, given, (do, dstate))[2:]
    leaves = [x.detach().requires_grad_() for x in given]
    o, state = kernel(*leaves)
    of_o = torch.autograd.grad(o, leaves, do, retain_graph=True)
    of_state = torch.autograd.grad(state, leaves, dstate, allow_unused=True, materialize_grads=True)
    assert not of_state[0].any(), "the last state is no function of q"
    for a, b, c in zip(of_o, of_state, both, strict=True):
        assert torch.allclose(a + b, c, rtol=1e-4, atol=1e-5)


def test_without_an_initial_state_it_is_zero() -> None:
    *rows, initial, _, _ = tensors()
    expected = kernels.gated_delta(*rows, initial_state=torch.zeros_like(initial))
    assert isinstance(expected, torch.Tensor)
    assert torch.equal(kernels.gated_delta(*rows), expected)


def test_tf32_is_coarser_than_ieee_and_only_of_float32() -> None:
    given, exact, sigmas = judged("several chunks, D > Dv", torch.float32, "ordinary")
    rows, initial = given[:5], given[5]

    def coarse(*x: torch.Tensor) -> Any:
        return kernels.gated_delta(*x[:5], scale=SCALE, initial_state=x[5], return_state=True, precision="tf32")

    found = results(coarse, given[:6], given[6:])
    assert len(failures(found, exact, sigmas)) == len(NAMES)
    assert failures(found, exact, [2.0**14 * sigma for sigma in sigmas]) == [], "as of 10 bits"
    half = [x.half() for x in rows]
    half[3] = rows[3]
    assert_same_bits(
        kernels.gated_delta(*half, initial_state=initial, return_state=True, precision="tf32"),
        kernels.gated_delta(*half, initial_state=initial, return_state=True),
    )


@pytest.mark.parametrize(("T", "D", "Dv", "chunk"), [(1, 5, 7, 16), (100, 5, 40, 32), (130, 128, 64, 64)])
@pytest.mark.parametrize("backward", [False, True])
def test_the_workspace_is_what_is_allocated(T: int, D: int, Dv: int, chunk: int, backward: bool) -> None:
    *given, do, dstate = tensors(1, 2, T, D, Dv, torch.bfloat16)
    blocks = {each.chunk: each for each in kernels.BLOCKS.values()}[chunk]
    made: dict[int, int] = {}

    class Allocations(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function is torch.ops.aten.new_empty.default and result.numel() > 1:
                made[len(made)] = result.nbytes
            return result

    leaves = [x.detach().requires_grad_() for x in given]
    out: Any = ()
    with Allocations():
        out = kernel(*leaves, blocks=blocks)
    kept = sum(x.nbytes for x in out)
    if backward:
        residuals = sum(x.nbytes for x in out[0].grad_fn.saved_tensors[5:] if x is not None)
        made.clear()
        with Allocations():
            kept = sum(x.nbytes for x in torch.autograd.grad(out, leaves, (do, dstate)))
        kept -= residuals  # which are there already
    sizes = {"batch": 1, "heads": 2, "rows": T, "features": D, "value_features": Dv, "chunk": chunk, "itemsize": 2}
    pieces = len(range(0, T, blocks.piece)) if blocks.piece else 1
    assert sum(made.values()) - kept == kernels.workspace_bytes(**sizes, pieces=pieces, backward=backward)


@pytest.mark.parametrize(
    ("heads", "T", "Dv", "chunk", "pieces"),
    [
        (64, 8192, 64, 64, 1),
        (16, 8192, 128, 64, 1),
        (16, 8192, 64, 64, 8),
        (4, 131_072, 64, 64, 32),
        (1, 131_072, 1, 32, 32),
        (1, 2047, 1, 64, 2),
        (1, 1024, 1, 64, 1),
    ],
)
def test_few_heads_have_several_pieces(heads: int, T: int, Dv: int, chunk: int, pieces: int) -> None:
    count = -(-T // chunk)
    length = piece_chunks(kernels.Blocks(chunk), count, heads, Dv)
    assert -(-count // length) == pieces and length * pieces >= count
    assert piece_chunks(kernels.Blocks(chunk, piece=2 * chunk), count, heads, Dv) == max(2, -(-count // 32))


@pytest.mark.parametrize("backward", [False, True])
def test_pieces_start_from_the_states_of_the_whole_sequence(backward: bool) -> None:
    q, k, v, g, beta, initial, do, dstate = tensors(1, 2, 150, 5, 7, decay=0.01)
    options: dict[str, Any] = {"scale": 1.0, "initial_state": initial, "return_state": True, "precision": "ieee"}
    whole, cut = (check(q, k, v, g, beta, **options, blocks=kernels.Blocks(16, piece=piece)) for piece in (160, 48))
    assert (whole.pieces, cut.pieces, cut.piece_chunks) == (1, 4, 3)
    decays, inverse = chunks.inverses(cut, k, g, beta)
    local = gradients.local_cotangents(cut, q, k, do, decays)
    one, several = (states.forward_pieces(each, k, v, beta, initial, decays, inverse) for each in (whole, cut))
    assert one == (None, None) and several.entries is not None and several.entries.shape == (1, 2, 4, 64, 64)
    if backward:
        found, expected = (
            states.backward_states(each, q, k, beta, do, dstate, decays, inverse, local, own, wanted=True)
            for each, own in ((cut, several), (whole, one))
        )
    else:
        found, expected = (
            states.forward_states(each, k, v, beta, initial, decays, inverse, own, wanted=True)
            for each, own in ((cut, several), (whole, one))
        )
        assert torch.allclose(several.entries, expected[0][:, :, ::3], rtol=0, atol=2e-5)
    for a, b in zip(found, expected, strict=True):
        assert a is not None and b is not None
        assert a.shape == b.shape and a.abs().max() > 0.1 and torch.allclose(a, b, rtol=0, atol=5e-5)


def test_tiles_of_every_pass_keep_the_chunk() -> None:
    assert set(TUNED) == set(itertools.product(((8, 0), (9, 0)), AUTOMATIC, (64, 128)))
    for (capability, dots, width), row in TUNED.items():
        assert len(row) == len(PARTS)
        for part, tiles in zip(PARTS, row, strict=True):
            chosen = of_part(AUTOMATIC[dots], part, dots, width, capability)
            assert chosen == (AUTOMATIC[dots].chunk, *tiles[:2], 0, *tiles[2:])
            assert tiles.value & (tiles.value - 1) == 0 == tiles.feature & (tiles.feature - 1)
            assert tiles.num_warps <= (2 if dots == "split" and part != "entries" else 8)
    tiles = TUNED[(8, 0), "ieee", 128][PARTS.index("states")]
    assert of_part(AUTOMATIC["ieee"], "states", "ieee", 65, (12, 0)) == (32, *tiles[:2], 0, *tiles[2:])


def test_forced_blocks_are_changed_where_a_pass_cannot_have_them() -> None:
    square = kernels.BLOCKS["square"]
    assert forced_on(square, "states", "16 bit") == square
    assert forced_on(square, "states", "split") == square._replace(num_warps=2)
    assert forced_on(square, "inverse", "16 bit") == square._replace(num_warps=1)
    assert forced_on(square, "entries", "split") == square._replace(value=16, num_warps=8)


@pytest.mark.parametrize(
    ("dots", "width", "capability", "columns"),
    [
        ("16 bit", 64, (9, 0), 64),
        ("16 bit", 64, (10, 0), 32),
        ("16 bit", 64, (8, 0), 32),
        ("16 bit", 128, (9, 0), 32),
        ("split", 64, (9, 0), 16),
        ("ieee", 64, (12, 0), 16),
    ],
)
def test_gradients_in_16_bit_have_all_columns_of_64_on_sm_90_alone(
    dots: str, width: int, capability: tuple[int, int], columns: int
) -> None:
    assert feature_columns(kernels.Blocks(64, feature=16), dots, width, capability) == columns
    assert feature_columns(kernels.Blocks(64, feature=128), dots, width, capability) == width


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_compilations_name_every_pass_of_every_configuration(dtype: str) -> None:
    found = [name for name, *_ in compilations(dtype)]
    configurations = [*kernels.fitting(getattr(torch, dtype)), "automatic"]
    expected = {f"{name}, D = Dv = 128, {label}" for name in PASSES for label in configurations}
    assert {part for part, *_ in PASSES.values()} == set(PARTS)
    assert expected <= set(found) and len(found) == len(set(found)), "each once"
    assert ("square" in configurations) == (dtype != "float32")
    assert any("tf32" in name for name in found) == (dtype == "float32")
    assert compilations("float64") == []


def test_a_second_derivative_and_forward_mode_are_refused() -> None:
    q, *rest = tensors()[:5]
    leaf = q.requires_grad_()
    (dq,) = torch.autograd.grad(kernels.gated_delta(leaf, *rest).square().sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"^gated_delta has no second derivative: expected one derivative"):
        torch.autograd.grad(dq.sum(), leaf)
    with pytest.raises(NotImplementedError, match=r"^gated_delta has no forward mode: expected one derivative"):
        torch.func.jvp(lambda x: kernels.gated_delta(x, *rest), (q.detach(),), (q.detach(),))


BAD = {
    "q of rank 3": ({"q": torch.zeros(2, 37, 5)}, ["q has rank 3", "rank 4"]),
    "g is no tensor": ({"g": 0.5}, ["g is a float", "torch.Tensor"]),
    "float64": ({"q": torch.zeros(2, 2, 37, 5, dtype=torch.float64)}, ["q has dtype torch.float64", "float32"]),
    "T = 0": ({"q": torch.zeros(2, 2, 0, 5)}, ["q has T = 0", "T from 1 to 1073741824"]),
    "D = 129": ({"q": torch.zeros(2, 2, 37, 129)}, ["q has D = 129", "D from 1 to 128"]),
    "Dv = 129": ({"v": torch.zeros(2, 2, 37, 129)}, ["v has Dv = 129", "Dv from 1 to 128"]),
    "k of another length": ({"k": torch.zeros(2, 2, 36, 5)}, ["k has shape", "[B, H, T, D] = (2, 2, 37, 5)"]),
    "v of another length": ({"v": torch.zeros(2, 2, 36, 7)}, ["v has shape", "[B, H, T, Dv]"]),
    "k of another dtype": ({"k": torch.zeros(2, 2, 37, 5).half()}, ["k has dtype torch.float16", "that of q"]),
    "g in float16": ({"g": torch.zeros(2, 2, 37).half()}, ["g has dtype torch.float16", "torch.float32"]),
    "g of rank 4": ({"g": torch.zeros(2, 2, 37, 1)}, ["g has rank 4", "rank 3"]),
    "g [B, T, H]": ({"g": torch.zeros(2, 37, 2)}, ["g has shape (2, 37, 2)", "[B, H, T] = (2, 2, 37)"]),
    "beta of another dtype": ({"beta": torch.zeros(2, 2, 37).half()}, ["beta has dtype torch.float16", "that of q"]),
    "a state of another shape": (
        {"initial_state": torch.zeros(2, 2, 7, 5)},
        ["initial_state has shape (2, 2, 7, 5)", "[B, H, D, Dv] = (2, 2, 5, 7)"],
    ),
    "a state of another dtype": (
        {"initial_state": torch.zeros(2, 2, 5, 7).half()},
        ["initial_state has dtype torch.float16", "torch.float32"],
    ),
    "a scale of 0": ({"scale": 0.0}, ["scale is 0.0", "above 0"]),
    "return_state is a word": ({"return_state": "yes"}, ["return_state is 'yes'", "True or False"]),
    "a precision of lightning's": ({"precision": "bf16x6"}, ["precision is 'bf16x6'", "'ieee' or 'tf32'"]),
    "blocks is a tuple": ({"blocks": (64, 64)}, ["blocks is (64, 64)", "gated_delta Blocks or None"]),
    "a chunk of 128": ({"blocks": kernels.Blocks(128)}, ["blocks.chunk is 128", "16, 32 or 64"]),
    "a value of 24": ({"blocks": kernels.Blocks(64, value=24)}, ["blocks.value is 24", "power of two"]),
    "a piece of 100": (
        {"blocks": kernels.Blocks(64, piece=100)},
        ["blocks.piece is 100", "multiple of blocks.chunk, 64"],
    ),
    "no warps": ({"blocks": kernels.Blocks(64, num_warps=0)}, ["blocks.num_warps is 0", "1, 2, 4, 8 or 16"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_one_sentence(what: str) -> None:
    changed, words = BAD[what]
    given = dict(zip(("q", "k", "v", "g", "beta"), tensors(), strict=False)) | changed
    assert_refused(lambda: kernels.gated_delta(**given), words)


def test_cotangents_are_checked_too() -> None:
    options = {"scale": None, "initial_state": None, "return_state": True, "precision": "ieee", "blocks": None}
    problem = check(*tensors()[:5], **options)
    assert_refused(lambda: check_cotangents(problem, torch.zeros(2, 2, 37, 5), None), ["do has shape", "[B, H, T, Dv]"])
    wrong = torch.zeros(2, 2, 5, 7).half()
    assert_refused(lambda: check_cotangents(problem, None, wrong), ["dstate has dtype torch.float16", "torch.float32"])


@pytest.mark.parametrize("T", [slow(131_072)])
def test_a_long_sequence_ends_as_its_last_rows_do(T: int) -> None:
    """A decay of at least e^-64 over 128 rows leaves nothing of those before."""
    given = tensors(1, 1, T, 16, 16)
    given[3][:, :, -256:-128] = -0.5
    found = results(kernel, given[:6], given[6:])
    last = [x[:, :, -256:] if x.shape[2] == T else x for x in given]
    assert all(x.isfinite().all() for x in found)
    alone = results(kernel, last[:6], last[6:])
    for name, a, b in zip(NAMES[:1] + NAMES[2:7], (found[0], *found[2:7]), (alone[0], *alone[2:7]), strict=True):
        assert torch.allclose(a[:, :, -128:], b[:, :, -128:], rtol=1e-4, atol=1e-5), name
