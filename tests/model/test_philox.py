"""Random numbers of a definition: published vectors of Philox, the bits of Triton's tl, and of torch.rand on a GPU."""

from __future__ import annotations

import interpreted
import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.host import interpreter
from gradoracle.model.case import parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.philox import philox
from gradoracle.oracle.truth import Oracle

interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

pytestmark = interpreted.NEEDED

VECTORS = [  # Random123, tests/kat_vectors: "philox4x32 10": counter, key, words
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SEEDS = (0, 1, -1, 12345, 2**31 - 1, 2**32 + 7, 2**62 + 99, -(2**63))
OFFSETS = {torch.int32: (0, 5, 2**31 - 600, -3), torch.int64: (0, 2**31 - 5, 2**32 - 7, 2**40, 2**62, -3)}


def words(text: str) -> list[Tensor]:
    return [torch.tensor(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_words(counter: str, key: str, expected: str) -> None:
    (a, b, c, d), (k, m) = words(counter), words(key)
    assert list(philox((a, b, c, d), (k, m))) == words(expected)


def edges() -> Tensor:
    """Words where a conversion to float32 may round in either way: all near powers of two, and a random million."""
    near = [torch.arange(max(2**power - 300, 0), min(2**power + 300, 2**32)) for power in range(33)]
    more = [torch.arange(2**31 - 70_000, 2**31 + 70_000), torch.arange(2**32 - 70_000, 2**32)]
    return torch.cat([*near, *more, torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 1_000_000))])


def test_words_become_the_floats_of_triton_and_of_curand(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = edges()
    own = bits.numpy().astype(np.uint32)
    signed = own.view(np.int32)
    triton = np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)
    curand = own.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    monkeypatch.setattr("gradoracle.model.philox.random_bits", lambda *args, **how: bits)
    assert torch.equal(gradoracle.random(0), torch.from_numpy(triton).double())
    assert torch.equal(gradoracle.random(0, kind="torch"), torch.from_numpy(np.where(curand == 1, 0, curand)).double())
    assert triton.max() < 1 and (curand == 1).any()


@triton.jit
def filled(SEED, OFFSETS, BITS, UNIFORM, NORMAL, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    seed, offset = tl.load(SEED), tl.load(OFFSETS + i)
    a, b, c, d = tl.randint4x(seed, offset)
    tl.store(BITS + 4 * i, a.to(tl.int32, bitcast=True))
    tl.store(BITS + 4 * i + 1, b.to(tl.int32, bitcast=True))
    tl.store(BITS + 4 * i + 2, c.to(tl.int32, bitcast=True))
    tl.store(BITS + 4 * i + 3, d.to(tl.int32, bitcast=True))
    tl.store(UNIFORM + i, tl.rand(seed, offset))
    tl.store(NORMAL + i, tl.randn(seed, offset))


def test_every_number_is_that_of_triton() -> None:
    count = 256
    for seed in SEEDS:
        for dtype, firsts in OFFSETS.items():
            for first in firsts:
                offsets = (first + torch.arange(count)).to(dtype)
                bits, own, normal = torch.empty(count, 4, dtype=torch.int32), torch.empty(count), torch.empty(count)
                filled[(1,)](torch.tensor([seed]), offsets, bits, own, normal, BLOCK=count)
                for given in (seed, torch.tensor([seed])):
                    for word in range(4):
                        found = gradoracle.random_bits(given, offsets, word=word)
                        assert torch.equal(found.to(torch.int32), bits[:, word])
                    assert torch.equal(gradoracle.random(given, offsets), own.double())
                if dtype is torch.int64:
                    assert torch.equal(gradoracle.random(seed, first, (count,)), own.double())
                one, two = (gradoracle.random(seed, offsets, word=word) for word in (0, 1))
                box = (-2 * one.clamp(min=1e-7).log()).sqrt() * (6.283185307179586 * two).cos()
                assert (box - normal.double()).abs().max() < 4e-6  # tl.randn computes it in float32


def test_numbers_of_a_cuda_generator_are_those_of_torch_rand() -> None:
    # published by users of torch.rand(.., device="cuda") after torch.manual_seed(0) and (42)
    published = {0: [0.3990, 0.5167, 0.0249, 0.9401, 0.9459], 42: [0.6130, 0.0101, 0.3984, 0.0403, 0.1563]}
    for seed, numbers in published.items():
        found = gradoracle.random(seed, 0, (len(numbers),), kind="torch")
        assert (found - torch.tensor(numbers)).abs().max() < 6e-5  # they are shown to four digits


def test_a_large_tensor_is_divided_among_the_threads_of_a_gpu() -> None:
    count, threads = 5000, 512
    found = gradoracle.random_bits(7, 8, (count,), kind="torch", threads=threads)
    for place in (0, 511, 512, 1600, 2047, 2048, 4999):
        thread, turn = place % threads, place // threads
        low = torch.tensor(2 + turn // 4)
        own = philox((low, low * 0, torch.tensor(thread), low * 0), (torch.tensor(7), torch.tensor(0)))
        assert found[place] == own[turn % 4]
    few = gradoracle.random_bits(7, 0, (40, 20), kind="torch")
    assert torch.equal(few, gradoracle.random_bits(7, 0, (40, 20), kind="torch", threads=270336))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"seed": 0.5}, TypeError, "a seed of float; expected an integer"),
        ({"seed": 0, "offset": torch.zeros(2)}, TypeError, "an offset of torch.float32; expected an integer"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, ValueError, "a seed of shape (2,); expected one element"),
        ({"seed": 0, "kind": "mt19937"}, ValueError, "kind 'mt19937'; expected one of philox, torch"),
        ({"seed": 0, "word": 4}, ValueError, "word 4; expected 0, 1, 2 or 3"),
        ({"seed": 0, "offset": torch.arange(3), "shape": (2,)}, ValueError, "offsets of shape (3,) and shape (2,)"),
        ({"seed": 0, "kind": "torch"}, ValueError, "expects a shape, word 0 and the offset of a generator"),
        ({"seed": 0, "offset": 2, "shape": (3,), "kind": "torch"}, ValueError, "a multiple of 4"),
        ({"seed": 0, "shape": (20_000,), "kind": "torch"}, ValueError, "20000 elements and threads=None; expected the"),
        ({"seed": 0, "shape": (3,), "kind": "torch", "threads": 7}, ValueError, "threads=7; expected the number"),
    ],
)
def test_what_is_no_seed_offset_or_kind_is_refused_in_a_sentence(
    given: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as raised:
        gradoracle.random(**given)  # type: ignore[arg-type]
    assert says in str(raised.value) and str(raised.value).startswith("random")


@gradoracle.family(domains={"seed": gradoracle.IndexDomain(2**31)})
def dropped(x: Float[Tensor, "M N"], seed: Int[Tensor, ""], *, p: float = 0.25) -> Float[Tensor, "M N"]:
    """x / (1 - p) where tl.rand(seed, M N + n) is above p, else 0."""
    rows = torch.arange(x.shape[0])[:, None] * x.shape[1] + torch.arange(x.shape[1])
    return torch.where(gradoracle.random(seed, rows) > p, x / (1 - p), 0.0)


@pytest.mark.parametrize("reading", ["float64", "certified", "mpmath"])
def test_every_reading_of_a_definition_has_the_same_numbers(reading: str) -> None:
    case = parse("case:1 dropped cpu float32 family=dropped M=4 N=7 seed=3")[2]
    sample, oracle = build(case, dropped.signature, domains=dropped.domains), Oracle(dropped, reading)
    contract = gradoracle.PRESETS["ieee32"]
    x, g = sample.inputs["x"].double(), sample.cotangents["out"].double()
    keep = gradoracle.random(sample.inputs["seed"], 0, x.shape) > 0.25
    assert 0 < keep.sum() < keep.numel()
    for derivative, expected in ((Derivative.FORWARD, {"out": x}), (Derivative.VJP, {"out": x, "dx": g})):
        budgets = oracle.budgets(sample, derivative, contract)
        truths = oracle.truth(sample, derivative, budgets, contract)
        for name, values in expected.items():
            true = torch.where(keep, values / 0.75, 0.0)
            assert (truths[name].value - true).abs().max() <= 1e-15 * true.abs().max()
            assert torch.equal(budgets[name].sigma > 0, keep)
