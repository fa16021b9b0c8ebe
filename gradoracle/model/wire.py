"""Wire: how calls and replies travel between a judge and a host in another process.

A message is two lengths, a JSON document, and the bytes of the tensors that it names: so many bytes each. What a host
sends is read as input from a stranger: nothing in it is executed, and what is not as described here is refused.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.call import Call, End, Facts, Held, Reply
from gradoracle.model.call_errors import error_of
from gradoracle.model.serialize import from_plain, to_brief, to_plain
from gradoracle.model.tensor_bits import NoAddresses, addresses, is_sparse, storage_bytes
from gradoracle.model.wording import printable

Fill = Callable[[memoryview], None]
"""Fills memory with the next bytes that the other side sends; raises EOFError where there are none."""

_LENGTHS = struct.Struct(">QQ")
_SMALL = 1 << 18  # bytes of a message that is sent at once
MOST_TEXT = 1 << 24  # bytes of a JSON document
_VALUES = ("inputs", "tangents", "cotangents", "later", "options", "arguments")  # fields of a call that hold tensors
_DTYPES: Mapping[str, torch.dtype] = {
    str(each)[6:]: each
    for each in (
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn),
        *(
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
        ),
        *(torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.complex128),
        *(torch.float8_e5m2fnuz, torch.float8_e4m3fnuz),
    )
}


class Malformed(Exception):
    """The other side sent what is no message; says what."""


class _Packed:
    """Values and the bytes of their tensors, as they are written.

    Args:
        whole: whether the memory around the elements of a tensor is sent too, and shared storages once.
    """

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._storages: dict[int, int] = {}
        self.blobs: list[Tensor] = []

    def plain(self, value: Any) -> Any:
        """A value as JSON can hold it; tensors, and mappings and tuples that hold some, included."""
        if isinstance(value, Tensor):
            layout, blob = self._tensor(value)
            return {"tensor": layout, "blob": blob}
        if isinstance(value, Held):
            return {"held": self.plain(value.tensor), "dtype": value.dtype}
        if isinstance(value, Mapping):
            return {"mapping": {str(name): self.plain(each) for name, each in value.items()}}
        if isinstance(value, (tuple, list)):
            return {"tuple": [self.plain(each) for each in value]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        return {"value": to_plain(value)}

    def _tensor(self, tensor: Tensor) -> tuple[dict[str, Any], int]:
        """Its layout, and the number of its blob."""
        found: dict[str, Any] = {"dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape)}
        if found["dtype"] not in _DTYPES or tensor.is_meta:
            return {**found, "where": "meta" if found["dtype"] in _DTYPES else "nowhere"}, -1
        if not self._whole:
            return {**found, "where": "elements"}, self._add(_bytes_of(tensor))
        storage = tensor.untyped_storage()
        found |= {"stride": list(tensor.stride()), "offset": tensor.storage_offset(), "size": storage.nbytes()}
        if tensor.numel() and is_sparse(tensor):
            return {**found, "where": "apart"}, self._add(_bytes_of(tensor))
        where = storage.data_ptr()
        if where not in self._storages or not where:
            self._storages[where] = self._add(storage_bytes(tensor))
        return {**found, "where": "storage"}, self._storages[where]

    def _add(self, blob: Tensor) -> int:
        self.blobs.append(blob)
        return len(self.blobs) - 1

    def message(self, document: Mapping[str, Any]) -> list[Any]:
        """The parts of a message, to be sent one after the other."""
        sizes = [blob.numel() for blob in self.blobs]
        text = json.dumps({**document, "blobs": sizes}, separators=(",", ":")).encode()
        parts = [_LENGTHS.pack(len(text), sum(sizes)), text, *(blob.numpy() for blob in self.blobs if blob.numel())]
        is_small = len(text) + sum(sizes) < _SMALL
        return [b"".join(map(bytes, parts))] if is_small else parts  # each part sent may wake the other side


class _Unpacked:
    """Values of a message, as they are read."""

    def __init__(self, document: Any, blobs: list[Tensor | None]) -> None:
        self.document, self._blobs = document, blobs

    def value(self, plain: Any) -> Any:
        """What ``_Packed.plain`` was given.

        Raises:
            Malformed: it was given nothing that looks so.
        """
        kind, own = _only(plain)
        if kind == "tensor":
            return self._tensor(own, plain.get("blob"))
        if kind == "held":
            return Held(self.value(own), _text(plain.get("dtype")))
        if kind == "mapping" and isinstance(own, dict):
            return {name: self.value(each) for name, each in own.items()}
        if kind == "tuple" and isinstance(own, list):
            return tuple(self.value(each) for each in own)
        if kind == "value" and (own is None or isinstance(own, (bool, int, float, str))):
            return own
        if kind == "float" and own in ("inf", "-inf", "nan"):
            return float(own)
        raise Malformed(f"{str(plain)[:60]} is no value")

    def after(self, name: str, before: Tensor, plain: Any) -> Tensor:
        """A tensor of a call as it is after it: itself, if every byte is what it was.

        Raises:
            Malformed: it has another layout, or was too large to be read.
        """
        packed = _Packed(whole=True)
        is_alike = isinstance(plain, dict) and plain.get("tensor") == packed.plain(before)["tensor"]
        blob = self._blob(plain.get("blob")) if is_alike and packed.blobs else None
        if not is_alike or (packed.blobs and blob is None):
            raise Malformed(f"{name} of a reply has another layout than in the call")
        if blob is None or torch.equal(blob, packed.blobs[0]):
            return before
        return self._tensor(plain["tensor"], plain["blob"])

    def _blob(self, number: Any) -> Tensor | None:
        try:
            return self._blobs[_size(number)]
        except (ValueError, IndexError) as error:
            raise Malformed(f"{str(number)[:60]} is no blob: {error}") from None

    def _tensor(self, own: Any, number: Any) -> Tensor:
        try:
            return self._made(own, number)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError, OverflowError, NoAddresses) as error:
            raise Malformed(f"{str(own)[:100]} is no tensor: {error}") from None

    def _made(self, own: Any, number: Any) -> Tensor:
        shape = [_size(each) for each in own["shape"]]
        if own["where"] == "nowhere":
            return torch.empty(shape, dtype=torch.uint8, device="meta")
        dtype = _DTYPES[own["dtype"]]
        if own["where"] == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        blob, count, width = self._blob(number), math.prod(shape), dtype.itemsize
        if blob is None:  # it was too large to be read
            return torch.empty(shape, dtype=dtype, device="meta")
        if own["where"] != "storage" and blob.numel() != count * width:
            raise ValueError(f"{blob.numel()} bytes, expected {count * width}")
        if own["where"] == "elements":
            return blob.view(dtype).view(shape)
        stride, offset, size = [_size(each) for each in own["stride"]], _size(own["offset"]), _size(own["size"])
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if count else offset - 1
        if (last + 1) * width > size:
            raise ValueError(f"its last element lies behind the {size} bytes of its storage")
        if own["where"] == "apart":
            return addresses(size // width, dtype).as_strided(shape, stride, offset).copy_(blob.view(dtype).view(shape))
        if blob.numel() != size:
            raise ValueError(f"{blob.numel()} bytes, expected {size}")
        return torch.empty(0, dtype=dtype).set_(blob.untyped_storage(), offset, shape, stride)


def _bytes_of(tensor: Tensor) -> Tensor:
    """The elements of a tensor in order, byte by byte."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _only(plain: Any) -> tuple[str, Any]:
    if not isinstance(plain, dict) or not plain:
        raise Malformed(f"{str(plain)[:60]} is no value")
    return next(iter(plain.items()))  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{str(value)[:60]} is no text")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{str(value)[:60]} is no size")
    return value


def of_plain(document: Mapping[str, Any]) -> list[Any]:
    """A document without tensors as a message."""
    return _Packed(whole=False).message(document)


def of_call(call: Call, number: int) -> list[Any]:
    """A call as a message; the reply has its number."""
    packed = _Packed(whole=True)
    own = {each.name: getattr(call, each.name) for each in fields(Call)}
    document = {name: packed.plain(value) if name in _VALUES else to_brief(value) for name, value in own.items()}
    return packed.message({"call": document, "number": number})


def call_of(document: Mapping[str, Any], blobs: list[Tensor | None]) -> Call:
    """The call of a message."""
    unpacked, own, hints = _Unpacked(document, blobs), document["call"], _hints(Call)
    return Call(
        **{n: unpacked.value(v) if n in _VALUES else from_plain(hints[n], v, n) for n, v in own.items()}  # type: ignore[arg-type]
    )


def of_reply(reply: Reply, number: int) -> list[Any]:
    """The reply to the call of a number: what was returned by its elements, arguments with the memory around them."""
    returned, after = _Packed(whole=False), _Packed(whole=True)
    document = {
        "returned": returned.plain(reply.returned),
        "facts": to_brief(reply.facts),
        "end": to_brief(reply.end),
    }
    after.blobs = returned.blobs
    return after.message({"reply": {**document, "after": after.plain(reply.after)}, "number": number})


def reply_of(document: Any, blobs: list[Tensor | None], call: Call, number: int) -> Reply:
    """The reply to the call of a number, as its host sent it.

    Raises:
        Malformed: it is none.
    """
    try:
        own = document["reply"]
        if document["number"] != number:
            raise Malformed(f"a reply to call {document['number']}, expected one to call {number}")
        unpacked = _Unpacked(document, blobs)
        returned, given = unpacked.value(own["returned"]), own["after"]["mapping"]
        facts = from_plain(Facts, own["facts"])
        if facts.raised is not None:
            facts = replace(facts, raised=replace(facts.raised, text=printable(facts.raised.text)))
        end = None if own["end"] is None else _cut(from_plain(End, own["end"]))
        if end is not None:
            error_of(end)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"a reply is incomplete: {error}") from None
    before = call.tensors()
    if not isinstance(returned, dict) or not isinstance(given, dict) or given.keys() != before.keys():
        raise Malformed("a reply has other tensors than the call")
    if not all(part == "returned" or _is_part(own) for part, own in returned.items()):  # of a further entry point
        raise Malformed("a reply returns something other than tensors")
    after = {name: unpacked.after(name, tensor, given[name]) for name, tensor in before.items()}
    return Reply(returned, facts, end, after)


def _is_part(part: Any) -> bool:
    return isinstance(part, tuple) and all(each is None or isinstance(each, Tensor) for each in part)


def _cut(end: End) -> End:
    return End(end.kind, printable(end.text), end.why, printable(end.call), printable(end.tensor))


def read(fill: Fill, most: float = math.inf) -> tuple[Any, list[Tensor | None]]:
    """The next message: its document, and the bytes of its tensors; None from where they exceed ``most`` bytes on.

    Raises:
        Malformed: it is none.
        EOFError: there is none.
    """
    length, every = _LENGTHS.unpack(_filled(fill, _LENGTHS.size))
    if length > MOST_TEXT:
        raise Malformed(f"a message of {length} bytes")
    is_small = length + every < _SMALL and every <= most
    content = _filled(fill, length + every if is_small else length)  # each read may wait for the other side
    try:
        document = json.loads(content[:length].decode())
        sizes = [_size(each) for each in document["blobs"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Malformed("a message that is no JSON") from None
    if sum(sizes) != every:
        raise Malformed(f"a message of {every} bytes besides its text, which names {sum(sizes)}")
    blobs: list[Tensor | None] = []
    at = length
    for size in sizes:
        if sum(sizes[: len(blobs) + 1]) > most:
            return document, [*blobs, *[None] * (len(sizes) - len(blobs))]
        blob = torch.empty(size, dtype=torch.uint8)
        if size and is_small:
            blob.numpy()[:] = memoryview(content)[at : at + size]
        elif size:
            fill(memoryview(blob.numpy()))  # type: ignore[arg-type]
        at += size
        blobs.append(blob)
    return document, blobs


def _filled(fill: Fill, size: int) -> bytearray:
    found = bytearray(size)
    if size:
        fill(memoryview(found))
    return found


_hints = functools.cache(typing.get_type_hints)
