"""Philox: the random numbers of a kernel, computed again by a definition from the seed and the place of each.

Philox 4x32-10 maps a counter of four 32-bit words and a key of two to four words (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011). Triton and PyTorch differ in which counter an element has, and in how its word
becomes a number. All of it is integer arithmetic in int64, so the bits are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

KINDS = ("philox", "torch")
_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BLOCK = 256  # threads of a block of PyTorch's kernels that fill a tensor with random numbers
_FEWEST = 1 << 14  # elements for which every GPU has a thread each

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def random(
    seed: int | Tensor,
    offset: int | Tensor = 0,
    shape: Sequence[int] | None = None,
    *,
    kind: str = "philox",
    word: int = 0,
    threads: int | None = None,
) -> Tensor:
    """The uniform numbers that a kernel draws, exactly: those of ``tl.rand``, or of ``torch.rand`` on a GPU.

    Args:
        seed: an integer of up to 64 bits, or an integer tensor of one element, such as an input of the definition.
        offset: kind "philox": the offsets of ``tl.rand(seed, offsets)``, an integer tensor; or the offset of the first
            element, which rises by 1 from element to element in row-major order. Kind "torch": the offset of the
            generator, an integer, which is a multiple of 4.
        shape: of the numbers; default: that of the offsets, which are broadcast to it. Kind "torch": of the tensor.
        kind: "philox": Triton's stream, whose numbers are in [0, 1). "torch": that of a CUDA generator, as
            ``torch.rand`` takes it in float32, [0, 1) too.
        word: which of the four numbers of a counter: 1 to 3 are further ones of ``tl.rand4x``; kind "philox" only.
        threads: kind "torch": how many threads the GPU runs at once, by which a large tensor is divided among them:
            SMs times threads of an SM, 270336 on an H100 or H200. Up to 16384 elements it makes no difference.

    Returns:
        float64 [*shape], each a number that float32 holds: the very value that the kernel has.

    Raises:
        TypeError: seed or offset is no integer, or no tensor of integers.
        ValueError: an unknown kind, a word that is not 0 to 3, offsets that cannot be broadcast to the shape, a seed of
            several elements; of kind "torch": no shape, offsets, an offset that is no multiple of 4, another word than
            0, fewer than 256 threads, or none for a tensor of more than 16384 elements.
    """
    bits = random_bits(seed, offset, shape, kind=kind, word=word, threads=threads)
    return _of_triton(bits) if kind == "philox" else _of_curand(bits)


def random_bits(
    seed: int | Tensor,
    offset: int | Tensor = 0,
    shape: Sequence[int] | None = None,
    *,
    kind: str = "philox",
    word: int = 0,
    threads: int | None = None,
) -> Tensor:
    """The 32-bit words behind ``random``: those of ``tl.randint``, or of a CUDA generator.

    Args:
        seed, offset, shape, kind, word, threads: as of ``random``.

    Returns:
        int64 [*shape], from 0 to 2^32 - 1; ``tl.randint`` has the same bits as a 32-bit integer.

    Raises:
        TypeError, ValueError: as of ``random``.
    """
    _require(seed, offset, kind, word)
    if kind == "torch":
        return _torch_words(seed, offset, shape, word, threads)
    places = offset if isinstance(offset, Tensor) else _rising(offset, shape)
    if shape is not None:
        try:
            places = places.expand(tuple(shape))
        except RuntimeError:
            raise ValueError(
                f"random was given offsets of shape {tuple(places.shape)} and shape {tuple(shape)}; "
                "expected offsets that are broadcast to the shape"
            ) from None
    low, high = _halves(places)
    if isinstance(offset, Tensor) and places.dtype is not torch.int64:
        high = torch.zeros_like(high)  # Triton extends no offset of 32 bits or fewer
    none = torch.zeros_like(low)
    return philox((low, high, none, none), _key(seed, low))[word]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox 4x32-10: four words for each counter.

    Args:
        counter: four int64 tensors of one shape, from 0 to 2^32 - 1.
        key: two int64 tensors that broadcast to it, from 0 to 2^32 - 1.
    """
    a, b, c, d = counter
    k, m = key
    for turn in range(_ROUNDS):
        if turn:
            k, m = (k + _WEYL[0]) & _MASK, (m + _WEYL[1]) & _MASK
        high, low = _product(_MULTIPLIERS[0], a)
        other, lower = _product(_MULTIPLIERS[1], c)
        a, b, c, d = other ^ b ^ k, lower, high ^ d ^ m, low
    return a, b, c, d


def _product(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of 32-bit words; no step needs more than 50 bits."""
    upper, lower = (factor >> 16) * x, (factor & 0xFFFF) * x
    total = lower + ((upper & 0xFFFF) << 16)
    return (upper >> 16) + (total >> 32), total & _MASK


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits of integers."""
    wide = x.to(torch.int64)
    return wide & _MASK, (wide >> 32) & _MASK


def _key(seed: int | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The key of a seed."""
    if isinstance(seed, Tensor):
        return _halves(seed.reshape(()))
    return like.new_full((), seed & _MASK), like.new_full((), (seed >> 32) & _MASK)


def _rising(first: int, shape: Sequence[int] | None) -> Tensor:
    """Offsets from a first one on, in row-major order; one if there is no shape."""
    own = () if shape is None else tuple(shape)
    return first + torch.arange(math.prod(own), dtype=torch.int64).reshape(own)


def _torch_words(
    seed: int | Tensor, offset: int | Tensor, shape: Sequence[int] | None, word: int, threads: int | None
) -> Tensor:
    """The words of a tensor that PyTorch fills on a GPU: a thread has a subsequence, and takes every so many elements.

    Thread t of n fills the elements t, t + n, t + 2n, t + 3n with the four words of its first counter, the next four
    with those of its second.
    """
    if isinstance(offset, Tensor) or offset % 4 or shape is None or word:
        raise ValueError(
            "random of kind 'torch' expects a shape, word 0 and the offset of a generator, a multiple of 4; got "
            f"shape {shape}, word {word}, offset {'a tensor' if isinstance(offset, Tensor) else offset}"
        )
    count = math.prod(shape)
    if (count > _FEWEST) if threads is None else threads < _BLOCK:
        raise ValueError(
            f"random of kind 'torch' was given {count} elements and threads={threads}; expected the number of threads "
            f"that the GPU runs at once, {_BLOCK} or more"
        )
    blocks = max(-(-count // _BLOCK), 1)
    at_once = _BLOCK * (blocks if threads is None else min(blocks, threads // _BLOCK))
    place = torch.arange(count, dtype=torch.int64)
    thread, turn = place % at_once, place // at_once
    low, high = _halves(offset // 4 + turn // 4)
    words = philox((low, high, *_halves(thread)), _key(seed, low))
    chosen = torch.stack(words).gather(0, (turn % 4)[None])[0]
    return chosen.reshape(tuple(shape))


def _of_triton(bits: Tensor) -> Tensor:
    """``uint_to_uniform_float``: the word as an int32 (-1 - x of a negative one) to float32, times 4.6566127342e-10.

    That is (1 - 2^-24) 2^-31 in float32, so the product is the float32 below x 2^-31.
    """
    folded = _nearest(torch.where(bits > _MASK >> 1, _MASK - bits, bits))
    step = _power(2 * folded - 1)  # half of the last place below it, times 2^24; 0 of 0
    return ((folded << 24) - step).to(torch.float64) * 2.0**-55


def _of_curand(bits: Tensor) -> Tensor:
    """``curand_uniform``: x 2^-32 + 2^-33 in float32, in (0, 1]; PyTorch gives 0 for 1."""
    found = _nearest(2 * _nearest(bits) + 1)
    return torch.where(found < 1 << 33, found, 0).to(torch.float64) * 2.0**-33


def _nearest(x: Tensor) -> Tensor:
    """Integers from 0 to 2^34 rounded to 24 significant bits, to nearest and to even, as float32 holds them."""
    spacing = (_power(x) >> 23).clamp(min=1)
    odd = (x // spacing) & 1
    return (2 * x + (spacing - 1) + odd) // (2 * spacing) * spacing


def _power(x: Tensor) -> Tensor:
    """The largest power of two up to x; 0 of 0 and of -1."""
    for shift in (1, 2, 4, 8, 16, 32):
        x = x | (x >> shift)
    return (x + 1) >> 1


def _require(seed: int | Tensor, offset: int | Tensor, kind: str, word: int) -> None:
    """Check the arguments of ``random``.

    Raises:
        TypeError, ValueError: as of ``random``.
    """
    if kind not in KINDS:
        raise ValueError(f"random was given kind {kind!r}; expected one of {', '.join(KINDS)}")
    if word not in range(4):
        raise ValueError(f"random was given word {word!r}; expected 0, 1, 2 or 3")
    for name, value in (("a seed", seed), ("an offset", offset)):
        is_whole = isinstance(value, int) or (
            isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
        )
        if not is_whole:
            given = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"random was given {name} of {given}; expected an integer or a tensor of integers")
    if isinstance(seed, Tensor) and seed.numel() != 1:
        raise ValueError(f"random was given a seed of shape {tuple(seed.shape)}; expected one element")
