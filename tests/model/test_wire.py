"""Calls and replies come through as they were, and what is none is refused."""

from __future__ import annotations

import functools
import io
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradoracle.model import wire
from gradoracle.model.call import Accesses, Call, End, Facts, Held, How, Intervention, Kind, Reply, Site
from gradoracle.model.derivative import Derivative
from gradoracle.model.reason import Reason
from gradoracle.model.tensor_bits import addresses, copies, storage_bytes
from gradoracle.model.wrong_accesses import SourceLine

FAR = 1 << 31


def call(**inputs: Tensor) -> Call:
    x = torch.arange(24.0).as_strided((3, 4), (8, 2))
    given = inputs or {"x": x, "half": torch.arange(6.0).view(2, 3).to(torch.bfloat16), "index": torch.arange(3)}
    how = How(
        "vjp", "scaled: ", wide={"x": "float16"}, accesses=Accesses.RECORDED,
        intervention=Intervention(Kind.NARROW, (SourceLine("f.py", 3, "g"),)),
    )  # fmt: skip
    return Call(
        "mine", "vjp", given, {"x": x}, {"o": torch.ones(())}, {"eps": 1e-6, "most": float("inf"), "scale": None},
        ("half",), {"o": "o[B N]"}, (), "wide", (Derivative.JVP,), how, expected=("x",),
        arguments=(x, (x, 3), Held(x.double(), "float32"), None), later={"x": x + 1},
    )  # fmt: skip


def reply(own: Call) -> Reply:
    facts = Facts(launches=3, sites=(Site(SourceLine("a.py", 1, "f"), "", 1.5),))
    return Reply({"outputs": (torch.ones(3), None), "returned": {"a": (torch.zeros(2), 3)}}, facts, None, own.tensors())


def filled(content: bytes) -> Callable[[memoryview], None]:
    source = io.BytesIO(content)

    def fill(memory: memoryview) -> None:
        if source.readinto(memory) < len(memory):
            raise EOFError

    return fill


def through(parts: list[Any], most: float = float("inf")) -> Any:
    return wire.read(filled(b"".join(bytes(part) for part in parts)), most)


def test_a_call_comes_through() -> None:
    own = call()
    found = wire.call_of(*through(wire.of_call(own, 7)))
    for name, tensor in own.tensors().items():
        mine = found.tensors()[name]
        assert torch.equal(mine, tensor) and mine.dtype is tensor.dtype and mine.stride() == tensor.stride()
        assert mine.untyped_storage().nbytes() == tensor.untyped_storage().nbytes(), "the memory between is sent too"
    assert (found.how, found.options, found.expected, found.explicit) == (
        own.how, own.options, own.expected, own.explicit
    )  # fmt: skip
    held = found.arguments[2]
    assert isinstance(held, Held) and held.dtype == "float32" and found.arguments[1][1] == 3
    assert torch.equal(found.later["x"], own.later["x"])


def test_of_a_tensor_that_is_mostly_gaps_the_elements_are_sent() -> None:
    far = addresses(FAR + 8, torch.float32).as_strided((2, 3), (FAR, 1), 0).copy_(torch.arange(6.0).view(2, 3))
    parts = wire.of_call(call(x=far), 1)
    assert sum(len(memoryview(part).cast("B")) for part in parts) < 1 << 14
    found = wire.call_of(*through(parts)).inputs["x"]
    assert torch.equal(found, far) and found.stride() == far.stride()


def test_a_reply_comes_through() -> None:
    own = call()
    found = wire.reply_of(*through(wire.of_reply(reply(own), 7)), own, 7)
    assert torch.equal(found.returned["outputs"][0], torch.ones(3)) and found.returned["outputs"][1] is None
    assert found.facts == reply(own).facts and found.returned["returned"]["a"][1] == 3
    ended = replace(reply(own), end=End("Crashed", "\x1b[2J" + "a" * 10_000, Reason.RAISED.value))
    end = wire.reply_of(*through(wire.of_reply(ended, 7)), own, 7).end
    assert end is not None and len(end.text) < 2100 and end.text.startswith("\\x1b[2J")


def test_an_argument_of_which_no_byte_has_changed_is_the_tensor_of_the_call() -> None:
    own = call()
    after = copies(own.tensors())
    after["half"][0, 1] = 7.0
    storage_bytes(after["index"])[-1] = 1
    found = wire.reply_of(*through(wire.of_reply(replace(reply(own), after=after), 7)), own, 7).after
    assert found["x"] is own.inputs["x"] and found["do"] is own.cotangents["o"]
    assert torch.equal(found["half"], after["half"]) and torch.equal(found["index"], after["index"])
    assert found["half"].stride() == own.inputs["half"].stride()


def test_what_is_too_large_is_not_read() -> None:
    own = call()
    big = replace(reply(own), returned={"outputs": (torch.zeros(1 << 12),)})
    document, blobs = through(wire.of_reply(big, 7), 1 << 10)
    assert blobs[0] is None
    found = wire.reply_of(*through(wire.of_reply(big, 7)), own, 7)
    assert found.returned["outputs"][0].shape == (1 << 12,)
    assert document["blobs"][0] == 1 << 14


def message(document: Any, blobs: bytes = b"") -> bytes:
    text = json.dumps(document).encode()
    return struct.pack(">QQ", len(text), len(blobs)) + text + blobs


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    whole = b"".join(bytes(part) for part in wire.of_reply(reply(call()), 7))
    length, _ = struct.unpack(">QQ", whole[:16])
    document = json.loads(whole[16 : 16 + length])
    change(document)
    return message(document, whole[16 + length :])


def other(tensor: dict[str, Any]) -> dict[str, Any]:
    """The bytes of another tensor, and a number besides."""
    return {"value": 3, **tensor, "blob": 5}


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">QQ", 1 << 60, 0),
        struct.pack(">QQ", 13, 1 << 20) + b'{"blobs":[3]}' + b"abc",
        message([]),
        message({"blobs": [-1]}),
        message({"blobs": ["x"]}),
        message({"blobs": []}),
        struct.pack(">QQ", 3, 0) + b"\x80\x04.",
        edited(lambda own: own.update(number=8)),
        edited(lambda own: own["reply"].pop("facts")),
        edited(lambda own: own["reply"]["facts"].update(launches="many")),
        edited(lambda own: own["reply"].update(returned={"value": 3})),
        edited(lambda own: own["reply"].update(after={"mapping": {}})),
        edited(lambda own: own["reply"].update(end={"kind": "Nonsense", "text": "x"})),
        edited(lambda own: own["reply"].update(end={"kind": "Unavailable", "text": "x", "why": "because"})),
        edited(lambda own: own["reply"].update(returned={"mapping": {"outputs": {"value": "abc"}}})),
        edited(
            lambda own: own["reply"].update(
                returned=functools.reduce(lambda held, _: {"tuple": [held]}, range(400), {})
            )
        ),
        edited(lambda own: own["reply"]["after"]["mapping"]["x"]["tensor"].update(shape=[3, 5])),
        edited(lambda own: own["reply"]["after"]["mapping"]["x"]["tensor"].update(offset=1 << 40)),
        edited(lambda own: own["reply"]["after"]["mapping"]["x"]["tensor"].update(dtype="object")),
        edited(lambda own: own["reply"]["after"]["mapping"]["x"].update(blob=99)),
        edited(lambda own: own["reply"]["after"]["mapping"]["x"].update(blob=5)),
        edited(lambda own: own["reply"]["after"]["mapping"].update(x=other(own["reply"]["after"]["mapping"]["x"]))),
    ],
    ids=range(22),
)
def test_what_is_no_reply_is_refused(content: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.reply_of(*wire.read(filled(content)), call(), 7)


def test_an_end_in_the_middle_is_an_end() -> None:
    content = b"".join(bytes(part) for part in wire.of_reply(reply(call()), 7))
    with pytest.raises(EOFError):
        wire.read(filled(content[:-1]))


def test_texts_and_numbers_that_look_alike_stay_what_they_are() -> None:
    options = {"text": "nan", "other": "1", "number": float("inf"), "one": 1, "yes": True, "no": None}
    read = wire.call_of(*through(wire.of_call(replace(call(), options=options), 7)))
    assert read.options == options and type(read.options["one"]) is int
