"""Complex numbers: operators on them in terms of real ones, so that every reading has rules for them.

While a program is traced, a complex tensor holds two traced real ones, its parts. An operator that takes or makes
complex tensors is written once here, on parts; a graph has none of them. Derivatives need nothing more: PyTorch's
formulas (the gradient of a real function at a + ib is df/da + i df/db) are such operators, too. Transforms are those of
Cooley and Tukey, with factors of at most 16 as products of matrices, so that budgets grow with stages as errors do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradoracle.oracle.exact.trees import followed

_REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
_FACTOR = 16  # of a transform's length: at most so long are sums by a matrix


@dataclass(frozen=True)
class Pair:
    """The real and the imaginary part of a tensor or number."""

    re: Any
    im: Any


def names(text: str) -> frozenset[str]:
    """A set of operator names from one string."""
    return frozenset(text.split())


Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def decomposed(operator: Any, plain: Rule | None, *args: Any, **kwargs: Any) -> Any:
    """What an operator gives if it takes or makes complex tensors; else that of its decomposition into real ones.

    Args:
        operator: of ATen.
        plain: its decomposition; None if it has none.
        args, kwargs: its arguments.

    Returns:
        The result; NotImplemented where neither rule nor decomposition is needed.

    Raises:
        NotImplementedError: it is one of complex numbers that has neither.
    """
    if not any(map(_is_complex, (*args, *kwargs.values()))):
        return NotImplemented if plain is None else plain(*args, **kwargs)
    name = operator._schema.name.partition("::")[2]
    if name in _LAYOUTS:
        with _disable_current_modes():
            return operator(*args, **kwargs)
    if name in _CASTS and not any(map(_is_complex, (*args[1:], *kwargs.values()))):
        to_real = "dtype" in kwargs or len(args) > 1
        args = (parts(args[0])[0], *args[1:]) if to_real else args
        return operator(*args, **kwargs) if to_real else joined(*(operator(p, **kwargs) for p in parts(args[0])))
    rule = _RULES.get(name) or (functools.partial(_by_parts, operator) if name in _BY_PARTS else None)
    if rule is not None:
        named = {name: value for name, value in kwargs.items() if name != "memory_format"}
        found = rule(*followed(_apart, tuple(args)), **followed(_apart, named))
        return _together(found) if name not in _VIEWS else _viewed(found, operator, args, kwargs)
    for simpler in (plain, operator.decompose):
        found = NotImplemented if simpler is None else simpler(*args, **kwargs)
        if found is not NotImplemented:
            return found
    raise NotImplementedError(
        f"{operator} has no rule for complex numbers; expected sums, products, quotients, exp, abs, conj, products of "
        "matrices, indexing, torch.fft and torch.polar, or real tensors of the two parts"
    )


def _is_complex(value: Any) -> bool:
    if isinstance(value, (Tensor, torch.dtype)):
        return value in _REAL if isinstance(value, torch.dtype) else value.is_complex()
    if isinstance(value, (tuple, list)):
        return any(map(_is_complex, value))
    return type(value) is complex


def _apart(value: Any) -> Any:
    """A complex tensor or number by its parts; a dtype of complex numbers is that of parts."""
    if isinstance(value, Tensor) and value.is_complex():
        return Pair(*parts(value))
    if isinstance(value, torch.dtype):
        return _REAL.get(value, value)
    return Pair(value.real, value.imag) if type(value) is complex else value


def parts(value: Tensor) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of a complex tensor; of one that no rule has made, a constant, its numbers."""
    known = getattr(value, "_parts", None)
    if known is None:
        with _disable_current_modes():
            plain = value.detach().resolve_conj().resolve_neg()
            known = plain.real.clone(), plain.imag.clone()
    return known  # type: ignore[no-any-return]


def _together(found: Any) -> Any:
    """A result of rules: each pair in it becomes a complex tensor."""
    if isinstance(found, (tuple, list)):
        return type(found)(map(_together, found))
    if not isinstance(found, Pair):
        return found
    if isinstance(found.re, Tensor):
        return joined(found.re, found.im)
    with _disable_current_modes():
        return torch.tensor(complex(found.re, found.im), dtype=torch.complex128)  # of a number alone


def _viewed(found: Any, operator: Any, args: Any, kwargs: Any) -> Any:
    """The parts that a view has as a view: PyTorch asks tensors for their strides and offsets."""
    with _disable_current_modes():
        views = operator(*args, **kwargs)
    several = isinstance(views, (tuple, list))
    for view, pair in zip(views if several else [views], found if several else [found], strict=True):
        view._parts = (pair.re, pair.im)
    return views


def joined(re: Tensor, im: Tensor) -> Tensor:
    """The complex tensor of two parts of one shape."""
    re, im = _held(re), _held(im)
    with _disable_current_modes():
        wide = torch.promote_types(re.dtype, im.dtype)
        value = torch.complex(re.detach().to(wide), im.detach().to(wide)).contiguous()
    value._parts = (re, im)  # type: ignore[attr-defined]
    return value


def _held(part: Tensor) -> Tensor:
    """A part with memory, which a tangent that is 0 has not."""
    return torch.zeros(part.shape, dtype=part.dtype) if part._is_zerotensor() else part


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators by name, without overload: a function of parts."""

    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _pair(value: Any) -> Pair:
    """A real tensor or number, too, as a pair."""
    if isinstance(value, Pair):
        return value
    return Pair(value, torch.zeros_like(value) if isinstance(value, Tensor) else 0.0)


# ---- operators that act on each part by itself ----

_BY_PARTS = names(
    "_unsafe_view view select slice expand permute transpose t unsqueeze squeeze alias detach clone lift_fresh "
    "lift_fresh_copy flip roll index index_select gather cat stack unbind split split_with_sizes constant_pad_nd "
    "slice_scatter select_scatter copy diagonal diagonal_scatter repeat tril triu where index_put scatter unfold "
    "sum cumsum neg zeros_like new_zeros zeros empty empty_like new_empty empty_strided new_empty_strided "
    "_efficientzerotensor _new_zeros_with_same_feature_meta _to_copy convert_element_type contiguous"
)
_VIEWS = names(
    "view select slice expand permute transpose t unsqueeze squeeze alias detach unbind split split_with_sizes "
    "diagonal unfold as_strided"
)
_LAYOUTS = names("is_same_size _has_same_storage_numel")  # these ask for no numbers
_PLACED = names("index index_select gather index_put scatter")  # in these, integers are places
_CASTS = names("_to_copy convert_element_type")


def _by_parts(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator that is linear in all its tensors of numbers, or makes zeros."""
    name = operator._schema.name.partition("::")[2]
    operator = torch.ops.aten.reshape.default if name in ("view", "_unsafe_view") else operator

    def is_number(value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        return name in _CASTS or (value.dtype is not torch.bool and (value.is_floating_point() or name not in _PLACED))

    def part(of: str) -> Any:
        def own(value: Any) -> Any:
            value = _pair(value) if is_number(value) else value
            return getattr(value, of) if isinstance(value, Pair) else value

        return operator(*followed(own, args), **followed(own, kwargs))

    re, im = part("re"), part("im")
    if isinstance(re, (tuple, list)):
        return type(re)(map(Pair, re, im))
    return Pair(re, im)


@rule("masked_fill")
def _masked_fill(x: Any, mask: Tensor, value: Any) -> Pair:
    x, value = _pair(x), _pair(value)
    return Pair(x.re.masked_fill(mask, value.re), x.im.masked_fill(mask, value.im))


@rule("full", "new_full", "ones", "new_ones", "scalar_tensor")
def _full(*args: Any, **kwargs: Any) -> Pair:
    """A size and a value; before them, perhaps, a tensor whose dtype is taken."""
    sizes = [list(each) for each in args if isinstance(each, (tuple, list))]
    value = args[-1] if isinstance(args[-1], (Pair, int, float)) else 1.0
    dtype = kwargs.get("dtype") or (_pair(args[0]).re.dtype if not isinstance(args[0], (tuple, list)) else None)
    own = _pair(value)
    size = sizes[0] if sizes else []
    return Pair(*(torch.full(size, each, dtype=dtype) for each in (own.re, own.im)))


@rule("full_like", "ones_like")
def _full_like(x: Any, value: Any = 1.0, **kwargs: Any) -> Pair:
    own = _pair(value)
    return Pair(*(torch.full_like(_pair(x).re, each, **kwargs) for each in (own.re, own.im)))


@rule("as_strided")
def _as_strided(x: Pair, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Pair:
    """Of a tensor that is no view, hence contiguous (``joined``)."""
    return Pair(*(each.contiguous().as_strided(size, stride, offset) for each in (x.re, x.im)))


@rule("as_strided_scatter")
def _as_strided_scatter(x: Any, source: Any, *place: Any) -> Pair:
    x, source = _pair(x), _pair(source)
    pairs = ((x.re, source.re), (x.im, source.im))
    return Pair(*(torch.as_strided_scatter(into.contiguous(), own, *place) for into, own in pairs))


# ---- arithmetic ----


@rule("add")
def _add(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return _summed(x, y if alpha == 1 else _mul(y, alpha), torch.add)


@rule("sub")
def _sub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return _summed(x, y if alpha == 1 else _mul(y, alpha), torch.sub)


def _summed(x: Any, y: Any, add: Any) -> Pair:
    """x + y or x - y; of a real one nothing is added to the imaginary part."""
    if isinstance(x, Pair) and isinstance(y, Pair):
        return Pair(add(x.re, y.re), add(x.im, y.im))
    if isinstance(x, Pair):
        re = add(x.re, y)
        return Pair(re, x.im.expand(re.shape))
    re = add(x, y.re)
    return Pair(re, (y.im if add is torch.add else -y.im).expand(re.shape))


@rule("rsub")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return _sub(y, x, alpha)


@rule("mul")
def _mul(x: Any, y: Any) -> Any:
    if not isinstance(x, Pair) and not isinstance(y, Pair):
        return x * y
    if isinstance(x, Pair) and isinstance(y, Pair):
        if not isinstance(y.re, Tensor) and y.re == 0:  # a number such as 1j only turns
            return Pair(-(x.im * y.im), x.re * y.im)
        return Pair(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)
    return Pair(x.re * y, x.im * y) if isinstance(x, Pair) else Pair(x * y.re, x * y.im)


@rule("div")
def _div(x: Any, y: Any) -> Any:
    if not isinstance(y, Pair):
        return Pair(x.re / y, x.im / y)
    size = y.re * y.re + y.im * y.im
    above = _mul(x, Pair(y.re, -y.im))
    return Pair(above.re / size, above.im / size)


@rule("reciprocal")
def _reciprocal(x: Pair) -> Pair:
    size = x.re * x.re + x.im * x.im
    return Pair(x.re / size, -x.im / size)


@rule("pow")
def _pow(x: Any, exponent: Any) -> Any:
    if isinstance(exponent, (Pair, Tensor)) or exponent != int(exponent) or abs(exponent) > 64:
        raise NotImplementedError("a complex power with another exponent than an integer up to 64 has no rule")
    if exponent == 0:
        return Pair(torch.ones_like(x.re), torch.zeros_like(x.re))
    found = functools.reduce(_mul, [x] * abs(int(exponent)))
    return _reciprocal(found) if exponent < 0 else found


@rule("square")
def _square(x: Pair) -> Any:
    return _mul(x, x)


@rule("exp")
def _exp(x: Pair) -> Pair:
    size = torch.exp(x.re)
    return Pair(size * torch.cos(x.im), size * torch.sin(x.im))


@rule("abs")
def _abs(x: Pair) -> Tensor:
    return torch.sqrt(x.re * x.re + x.im * x.im)


@rule("sgn")
def _sgn(x: Pair) -> Pair:
    """z / |z|; 0 at 0, as in PyTorch."""
    size = _abs(x)
    safe = torch.where(size == 0, 1.0, size)
    return Pair(x.re / safe, x.im / safe)


@rule("conj", "_conj", "conj_physical", "_conj_physical", "_conj_copy")
def _conj(x: Pair) -> Pair:
    return Pair(x.re, -x.im)


@rule("resolve_conj", "resolve_neg")
def _itself(x: Pair) -> Pair:
    return x


@rule("eq")
def _eq(x: Any, y: Any) -> Tensor:
    x, y = _pair(x), _pair(y)
    return (x.re == y.re) & (x.im == y.im)


@rule("ne")
def _ne(x: Any, y: Any) -> Tensor:
    return ~_eq(x, y)


@rule("mm", "bmm")
def _product(x: Any, y: Any) -> Pair:
    x, y = _pair(x), _pair(y)
    return Pair(x.re @ y.re - x.im @ y.im, x.re @ y.im + x.im @ y.re)


@rule("view_as_real", "view_as_real_copy")
def _view_as_real(x: Pair) -> Tensor:
    return torch.stack([x.re, x.im], -1)


def view_as_complex(x: Tensor) -> Tensor:
    """[... 2] to complex [...]."""
    return joined(x[..., 0], x[..., 1])


def polar(size: Tensor, angle: Tensor) -> Tensor:
    """size (cos angle + i sin angle)."""
    return joined(size * torch.cos(angle), size * torch.sin(angle))


# ---- transforms ----


def real_transform(x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """``torch.fft.rfftn``."""
    found = _transformed(Pair(x, None), dims, normalization, forward=True)
    half = x.shape[dims[-1]] // 2 + 1
    if onesided:
        found = Pair(*(each.narrow(dims[-1], 0, half) for each in (found.re, found.im)))
    return joined(found.re, found.im)


@rule("_fft_c2c")
def _fft_c2c(x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    return _transformed(x, dims, normalization, forward)


@rule("_fft_c2r")
def _fft_c2r(x: Pair, dims: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """The real part of the inverse transform, in which the second half of the last dim mirrors the first."""
    *others, last = dims
    if others:
        x = _transformed(x, others, 0, forward=False)
    kept = x.re.shape[last]
    mirrored = torch.tensor(range(last_dim_size - kept, 0, -1), dtype=torch.int64)
    re = torch.cat([x.re, x.re.index_select(last, mirrored)], last)
    im = torch.cat([x.im, -x.im.index_select(last, mirrored)], last)
    found = _transformed(Pair(re, im), [last], 0, forward=False)
    return _scaled(found, normalization, last_dim_size * math.prod(x.re.shape[d] for d in others)).re


def _transformed(x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    for dim in reversed(dims):
        moved = Pair(*(None if each is None else each.movedim(dim, -1) for each in (x.re, x.im)))
        found = _transform_of_last(moved, -1 if forward else 1)
        x = Pair(found.re.movedim(-1, dim), found.im.movedim(-1, dim))
    return _scaled(x, normalization, math.prod(x.re.shape[d] for d in dims))


def _scaled(x: Pair, normalization: int, size: int) -> Pair:
    if normalization == 0:
        return x
    by: Any = float(size) if normalization == 2 else torch.full((), float(size), dtype=torch.float64).sqrt()
    return Pair(x.re / by, x.im / by)


def _transform_of_last(x: Pair, sign: int) -> Pair:
    """X_k = sum over j of exp(sign 2 pi i j k / n) x_j along the last dim; an imaginary part of None is 0."""
    n = int(x.re.shape[-1])
    first = max((d for d in range(2, min(n, _FACTOR) + 1) if n % d == 0), default=n)
    second = n // first
    if n == 1:
        return Pair(x.re, torch.zeros_like(x.re) if x.im is None else x.im)
    if second == 1 or n <= _FACTOR:
        return _turned(x, n, sign)
    # j = j1 second + j2 and k = k1 + first k2: over j1 first, times exp(sign 2 pi i j2 k1 / n), then over j2
    split = Pair(*(None if e is None else e.unflatten(-1, (first, second)).transpose(-1, -2) for e in (x.re, x.im)))
    inner = _turned(split, first, sign)  # [..., j2, k1]
    turns = [[j * k for k in range(first)] for j in range(second)]
    inner = _mul(inner, _roots(turns, n, sign))
    outer = _transform_of_last(Pair(inner.re.transpose(-1, -2), inner.im.transpose(-1, -2)), sign)  # [..., k1, k2]
    return Pair(*(each.transpose(-1, -2).flatten(-2) for each in (outer.re, outer.im)))


def _turned(x: Pair, n: int, sign: int) -> Pair:
    """The transform of the last dim by a matrix."""
    roots = _roots([[j * k for k in range(n)] for j in range(n)], n, sign)
    if x.im is None:
        return Pair(x.re @ roots.re, x.re @ roots.im)
    return Pair(x.re @ roots.re - x.im @ roots.im, x.re @ roots.im + x.im @ roots.re)


def _roots(turns: list[list[int]], n: int, sign: int) -> Pair:
    """cos and sin of sign 2 pi m / n for integers m, by the nearest quarter of a turn, so that 0 and 1 are exact."""
    with _disable_current_modes():
        m = torch.tensor(turns) % n
        quarter = (8 * m + n).div(2 * n, rounding_mode="floor")  # the nearest to 4 m / n
        rest = (4 * m - quarter * n).to(torch.float64)  # of a quarter, in units of 1/n: at most n / 2
        odd, down, back = quarter % 2 == 1, (quarter % 4 == 1) | (quarter % 4 == 2), quarter % 4 >= 2
        back = back if sign > 0 else ~back
    angle = rest * math.pi / float(2 * n)
    c, s = torch.cos(angle), torch.sin(angle)
    cos, sin = torch.where(odd, s, c), torch.where(odd, c, s)
    return Pair(torch.where(down, -cos, cos), torch.where(back, -sin, sin))


def of_real() -> dict[Any, Rule]:
    """The operators that make complex tensors of real ones."""
    aten = torch.ops.aten
    return {
        aten.view_as_complex.default: view_as_complex,
        aten.complex.default: joined,
        aten.polar.default: polar,
        aten._fft_r2c.default: real_transform,
    }
