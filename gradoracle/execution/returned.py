"""Returned: what a kernel returned, sorted and checked for shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.execution.call_errors import Wrong
from gradoracle.execution.widened import Wide, narrowed
from gradoracle.model.finding import malformed
from gradoracle.model.signature import Signature
from gradoracle.model.wording import counted


def floats_of(signature: Signature, sample: Sample, returned: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The float tensors of what a kernel returned, in order.

    Raises:
        Wrong: there are integer outputs, and another number of tensors was returned.
    """
    if not signature.whole:
        return tuple(returned)
    names = _names(signature, sample, returned)
    whole = {spec.name for spec in signature.whole}
    return tuple(tensor for name, tensor in zip(names, returned, strict=True) if name not in whole)


def integers_of(signature: Signature, sample: Sample, returned: Sequence[Tensor]) -> dict[str, Tensor]:
    """The integer tensors of what a kernel returned, by name.

    Raises:
        Wrong: another number of tensors was returned, or one is not of integers.
    """
    by_name = dict(zip(_names(signature, sample, returned), returned, strict=True))
    found = {}
    for spec in signature.whole:
        if (tensor := by_name.get(spec.name)) is not None:
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                raise wrong(spec.name, f"{spec.name} has dtype {str(tensor.dtype)[6:]}, expected integers")
            found[spec.name] = owned(tensor, sample)
    return found


def _names(signature: Signature, sample: Sample, returned: Sequence[Tensor]) -> tuple[str, ...]:
    names = signature.all_returned(sample.options)
    require_count(names, returned)
    return names


def require_count(names: Sequence[str], returned: Sequence[Tensor | None]) -> None:
    """Check that there is a tensor for each name.

    Raises:
        Wrong: there is another number of them.
    """
    if len(returned) != len(names):
        raise wrong(names[0], f"the kernel returned {counted(len(returned), 'tensor')}, expected {len(names)}: {names}")


def owned(result: Tensor, sample: Sample) -> Tensor:
    """A result, copied if it lies in memory of the sample, into which a call that writes there puts the old values."""
    found = narrowed(result.detach())
    given = (narrowed(tensor).untyped_storage().data_ptr() for tensor in sample.tensors().values())
    return found.clone() if found.untyped_storage().data_ptr() in given else found


def require_fit(key: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Check a tensor's shape and dtype.

    Raises:
        Wrong: one of them is another.
    """
    if tuple(tensor.shape) != shape:
        raise wrong(key, f"{key} has shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype != dtype and not isinstance(tensor, Wide):  # of those PyTorch predicts dtypes, not always as it is
        raise wrong(key, f"{key} has dtype {str(tensor.dtype)[6:]}, expected {str(dtype)[6:]}")


def detached(names: str) -> str:
    """The sentence about outputs that do not require grad."""
    return f"the output {names} has no gradient: it does not require grad"


def wrong(key: str, message: str) -> Wrong:
    """The error of a tensor that has not the form that it should have."""
    return Wrong(malformed(key, message))
