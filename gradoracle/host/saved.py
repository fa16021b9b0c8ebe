"""Saved tensors: what a kernel saves for its backward, and whether that is the same when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gradoracle.host.widened import narrowed
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.reason import Reason

_MOST_SAVED = 1 << 28  # bytes of saved tensors that are copied


class Saved:
    """The tensors that were saved through ``save_for_backward``, each with its bits then, and when it is unpacked.

    Args:
        state: tensors that the kernel may change, as it declares: those that are saved in their memory do not count.
    """

    def __init__(self, state: Sequence[Tensor] = ()) -> None:
        self._state = state
        self._now: list[Tensor] = []
        self._then: list[Tensor] = []
        self._unpacked: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> int:
        """Keep a tensor.

        Raises:
            Unavailable: all of them are too large to copy.
        """
        if sum(each.nbytes for each in self._then) > _MOST_SAVED:
            raise Unavailable("memory: the saved tensors are too large to copy", Reason.MEMORY)
        self._now.append(tensor)
        self._then.append(tensor.detach().clone())
        return len(self._now) - 1

    def unpack(self, index: int) -> Tensor:
        """Give one back."""
        self._unpacked.setdefault(index, self._now[index].detach().clone())
        return self._now[index]

    def parts(self) -> dict[str, tuple[Tensor | None, ...]]:
        """As they were saved, when they were first unpacked (None: never), and as they are now."""
        changing = {_memory(each) for each in self._state} - {None}
        own = [i for i, each in enumerate(self._now) if _memory(each) not in changing]
        return {
            "saved": tuple(self._then[i] for i in own),
            "unpacked": tuple(self._unpacked.get(i) for i in own),
            "saved in the end": tuple(narrowed(self._now[i].detach()) for i in own),
        }


def _memory(tensor: Tensor) -> int | None:
    """Where the elements begin of the storage that a tensor is a part of; None if it has no such memory."""
    return tensor.untyped_storage().data_ptr() or None if tensor.layout is torch.strided else None


@contextmanager
def watching_saved(state: Sequence[Tensor] = ()) -> Iterator[Saved]:
    """Watch what is saved within, but for ``state``, which may grow."""
    saved = Saved(state)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        yield saved
