"""The record of memory accesses: correct kernels have no fault, each kind of wrong one its own, with where and who.

What a kernel stores outside of every storage is named and not performed, in any call: a fence.
"""

from __future__ import annotations

import ast
import linecache
import sys
from pathlib import Path

import interpreted
import pytest
import torch
from places import load
from triton.tools.tensor_descriptor import TensorDescriptor

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED
interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gradoracle.host.guard_memory import Memory, fenced, poisoned  # noqa: E402
from gradoracle.host.interpreter import lockstep  # noqa: E402
from gradoracle.host.interpreter.record import fencing, recording  # noqa: E402
from gradoracle.host.interpreter.written_parameters import written_parameters  # noqa: E402
from gradoracle.model.wrong_accesses import Kind, WrongAccess  # noqa: E402

kernels = load("recorded_kernels")
N, BLOCK, PROGRAMS = 100, 16, 7


def faults(run) -> list[WrongAccess]:
    with recording() as record:
        run()
    assert record.launches
    return record.faults()


def alone(run) -> WrongAccess:
    """The one fault of a launch."""
    found = faults(run)
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


def copy(x: torch.Tensor, y: torch.Tensor, n: int = N, read: int = 0, written: int = 0) -> None:
    kernels.copied[(-(-n // BLOCK),)](x, y, n, read, written, BLOCK)


@pytest.fixture(params=["in step", "one by one"])
def either(request, monkeypatch):
    """Programs in step, and one after the other."""
    monkeypatch.setattr(lockstep, "_alone", set())
    if request.param == "one by one":
        monkeypatch.setattr(lockstep, "MOST_PROGRAMS", 1)


def test_a_correct_copy_has_no_fault_and_gives_what_it_gives_without_a_record(either):
    x, y = torch.randn(N), torch.zeros(N)
    assert not faults(lambda: copy(x, y))
    assert torch.equal(x, y)


def test_a_load_of_one_element_too_many_is_found_and_not_made(either):
    x, y = torch.randn(N), torch.zeros(N)
    fault = alone(lambda: copy(x, y, read=1))
    assert fault.kind is Kind.READ_OUTSIDE and (fault.tensor, fault.index, fault.count) == ("X", N, 1)
    assert fault.programs == ((6, 0, 0),) and fault.kernel == "copied" and fault.place.function == "copied"
    text = str(fault)
    assert "copied, program (6, 0, 0), " in text and "reads X[+100 elements" in text and "of shape [100], " in text
    assert torch.equal(x, y)


def test_an_access_in_a_function_that_kernels_share_is_told_apart_by_its_calls(either):
    x, y = torch.randn(N), torch.zeros(N)
    run = kernels.twice_copied[(PROGRAMS,)]
    assert not faults(lambda: run(x, y, N, 0, 0, BLOCK)) and torch.equal(y, 2 * x)
    (one,) = faults(lambda: run(x, y, N, 0, 1, BLOCK))
    assert one.place.function == "loaded" and [place.function for place in one.called] == ["twice_copied"]
    called = next(
        n for n, line in enumerate(Path(one.place.file).read_text().splitlines(), 1) if "other = loaded(" in line
    )
    assert one.called[0].line == called and f"{one.place}, called at {one.called[0]}: twice_copied" in str(one)
    both = faults(lambda: run(x, y, N, 1, 2, BLOCK))
    assert [(fault.called[0].line, fault.count) for fault in both] == [(called - 1, 1), (called, 2)]


def test_a_store_of_one_element_too_many_is_found_and_not_made(either):
    x, room = torch.randn(N), torch.zeros(N + 1)
    fault = alone(lambda: copy(x, room[:N], written=1))
    assert fault.kind is Kind.WRITTEN_OUTSIDE and (fault.tensor, fault.index) == ("Y", N)
    assert room[N] == 0 and torch.equal(room[:N], x)


@pytest.mark.parametrize(("by", "count"), [(0, 0), (1, 1), (BLOCK, BLOCK), (-BLOCK, BLOCK)])
def test_a_store_without_a_mask_is_made_as_far_as_it_is_inside(by, count):
    x, y = torch.randn(BLOCK), torch.zeros(BLOCK)
    found = faults(lambda: kernels.shifted[(1,)](x, y, by, BLOCK))
    assert [(fault.kind, fault.tensor, fault.count) for fault in found] == [(Kind.WRITTEN_OUTSIDE, "Y", count)][:count]
    expected = torch.zeros(BLOCK)
    if by >= 0:
        expected[by:] = x[: BLOCK - by]
    assert torch.equal(y, expected)


def test_what_lies_in_the_storage_and_not_in_the_view_is_outside():
    x, y = torch.randn(2 * N), torch.zeros(N)
    assert alone(lambda: copy(x[:N], y, read=1)).index == N
    assert alone(lambda: copy(x[4 : 4 + N], y, read=2)).count == 2
    fault = alone(lambda: copy(x[::2], y))  # a kernel that takes a strided tensor for a contiguous one
    assert fault.kind is Kind.READ_OUTSIDE and fault.index == 1 and fault.count == N // 2


@pytest.mark.parametrize(
    "layout", [lambda x: x, lambda x: x.t().contiguous().t(), lambda x: x[:, ::2], lambda x: x[::3, 1:]]
)
def test_any_layout_that_is_read_by_its_strides_is_inside(layout):
    x = layout(torch.randn(9, 12))
    y = torch.zeros(x.shape)
    assert not faults(lambda: kernels.gathered[(x.shape[0],)](x, y, *x.shape, *x.stride(), BLOCK))
    assert torch.equal(x, y)
    expanded = torch.randn(1, 12).expand(9, 12)
    assert not faults(lambda: kernels.gathered[(9,)](expanded, torch.zeros(9, 12), 9, 12, *expanded.stride(), BLOCK))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_elements_of_any_width_are_told_apart(dtype):
    x, y = torch.ones(N, dtype=dtype), torch.zeros(N, dtype=dtype)
    assert not faults(lambda: copy(x, y))
    assert alone(lambda: copy(x, y, read=1)).index == N


def test_programs_that_write_one_element_race(either):
    x, y = torch.randn(3, 10), torch.zeros(10)
    fault = alone(lambda: kernels.summed[(3,)](x, y, 10, "stored", BLOCK))
    assert fault.kind is Kind.RACE and fault.tensor == "Y" and fault.place.function == "put"
    assert len(set(fault.programs)) == 2


def test_an_update_without_an_atomic_is_a_race_and_a_store_of_what_was_loaded(either):
    x, y = torch.randn(3, 10), torch.zeros(10)
    found = faults(lambda: kernels.summed[(3,)](x, y, 10, "read and written", BLOCK))
    assert Kind.RACE in {fault.kind for fault in found} <= {Kind.RACE, Kind.LOADED_AND_STORED}
    assert {fault.tensor for fault in found} == {"Y"}


def test_atomics_do_not_race_with_each_other_but_with_a_store():
    x, y = torch.randn(3, 10), torch.zeros(10)
    assert not faults(lambda: kernels.summed[(3,)](x, y, 10, "atomic", BLOCK))
    assert torch.allclose(y, x.sum(0))
    assert alone(lambda: kernels.summed[(3,)](x, y, 10, "mixed", BLOCK)).kind is Kind.RACE


def test_a_lock_orders_what_it_guards_and_nothing_does_without_it():
    x = torch.randint(-9, 9, (5, 10)).float()  # whose sums are exact in any order
    y, lock = torch.zeros(10), torch.zeros(1, dtype=torch.int32)
    assert not faults(lambda: kernels.locked[(5,)](x, y, lock, 10, True, BLOCK))
    assert torch.equal(y, x.sum(0))
    assert {fault.kind for fault in faults(lambda: kernels.locked[(5,)](x, y, lock, 10, False, BLOCK))} == {Kind.RACE}


def test_a_load_of_what_another_program_stores_is_a_race(either):
    x = torch.randn(4 * BLOCK)
    fault = faults(lambda: kernels.reading_what_others_write[(2,)](x, torch.zeros(2 * BLOCK), BLOCK))[0]
    assert fault.kind is Kind.RACE and fault.tensor == "Y" and len(set(fault.programs)) == 2


@pytest.mark.parametrize(
    ("order", "kind", "tensor"),
    [("none", Kind.STORED_AND_LOADED, "Y"), ("in place", Kind.LOADED_AND_STORED, "X"), ("barrier", None, "")],
)
def test_within_a_program_a_barrier_orders_a_load_and_a_store(either, order, kind, tensor):
    x, y, z = torch.randn(3 * BLOCK), torch.zeros(3 * BLOCK), torch.zeros(3 * BLOCK)
    found = faults(lambda: kernels.neighbours[(3,)](x, y, z, order, BLOCK))
    assert [(fault.kind, fault.tensor, len(fault.programs)) for fault in found] == ([(kind, tensor, 1)] if kind else [])


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("permuted", {Kind.LOADED_APART_AND_STORED}),
        ("neighbours", {Kind.LOADED_APART_AND_STORED}),  # and by its own thread
        ("first", {Kind.LOADED_APART_AND_STORED, Kind.LOADED_AND_STORED}),
        ("permuted, with a barrier", set()),
        ("less their sum", {Kind.LOADED_AND_STORED}),
        ("sum", {Kind.LOADED_AND_STORED}),
        ("softmax", {Kind.LOADED_AND_STORED}),
        ("flipped", {Kind.LOADED_AND_STORED}),
    ],
)
def test_a_store_of_what_another_thread_loaded_is_told_from_one_of_what_its_own_did(either, how, kinds):
    x = torch.randn(3 * BLOCK)
    found = faults(lambda: kernels.in_place[(3,)](x, how, BLOCK))
    assert {fault.kind for fault in found} == kinds and {fault.tensor for fault in found} <= {"X"}
    if how == "permuted":
        (fault,) = found
        assert fault.count == 3 * BLOCK and fault.earlier is not None and fault.earlier.line < fault.place.line
        text = str(fault)
        assert " X[0], " in text and f" loaded at {fault.earlier}, " in text and "no barrier" in text


@pytest.mark.parametrize("order", ["none", "atomic", "barrier"])
def test_within_a_program_a_barrier_orders_two_stores(either, order):
    x, y = torch.randn(3 * BLOCK), torch.full((3 * BLOCK,), 7.0)
    found = faults(lambda: kernels.cleared[(3,)](x, y, order, BLOCK))
    assert torch.equal(y, x)
    if order == "barrier":
        assert not found
    else:
        (fault,) = found
        assert (fault.kind, fault.tensor, fault.count) == (Kind.STORED_AND_STORED, "Y", 3 * BLOCK)
        assert fault.earlier is not None and fault.earlier.line < fault.place.line
        assert f"which it also stored at {fault.earlier}, with no barrier in between" in str(fault)


def test_programs_that_part_and_run_again_are_not_taken_for_others(monkeypatch):
    monkeypatch.setattr(lockstep, "_alone", set())
    x, y = torch.randn(5 * BLOCK), torch.zeros(5 * BLOCK)
    assert not faults(lambda: kernels.parting[(5,)](x, y, BLOCK))


def test_memory_that_nothing_wrote_is_reported_when_it_is_loaded():
    y = torch.zeros(N)
    with poisoned() as memory, recording(memory.unwritten) as record:
        x = torch.empty(N)
        x[: N - 3] = 1.0
        copy(x, y)
        copy(torch.full((N,), float("nan")), y)
    (fault,) = record.faults()
    assert fault.kind is Kind.UNWRITTEN and (fault.tensor, fault.index, fault.count) == ("X", (N - 3,), 3)


def test_a_pointer_chosen_among_tensors_and_a_tuple_of_them_keep_their_tensors():
    x, y, z = torch.randn(N), torch.randn(N - 1), torch.zeros(N)
    fault = alone(lambda: kernels.chosen[(PROGRAMS,)](x, y, z, N, BLOCK))
    assert (fault.tensor, fault.index) == ("Y", N - 1)
    assert torch.equal(z[: N - 1 : 2], x[: N - 1 : 2]) and torch.equal(z[1:98:2], y[1:98:2])
    if sys.modules["triton"].__version__ >= "3.6":
        fault = alone(lambda: kernels.halves[(PROGRAMS,)]((x, torch.randn(N)), z, N, BLOCK))
        assert (fault.tensor, fault.index) == ("X[1]", N)


def test_descriptors_that_the_wrapper_makes_are_followed(either):
    x, z = torch.randn(8, 16), torch.zeros(8, 16)
    described = [TensorDescriptor(tensor, [8, 16], [16, 1], [4, 16]) for tensor in (x, z)]
    assert not faults(lambda: kernels.copied_by_descriptors[(1,)](*described, 4, 4))
    assert torch.equal(z, torch.cat([torch.zeros(4, 16), x[:4]]))
    fault = alone(lambda: kernels.copied_by_descriptors[(2,)](*described, 4, 4))
    assert (fault.kind, fault.tensor, fault.count) == (Kind.RACE, "z", 64)
    larger = [TensorDescriptor(torch.randn(6, 16), [8, 16], [16, 1], [4, 16]), described[1]]
    assert [each.kind for each in faults(lambda: kernels.copied_by_descriptors[(2,)](*larger, 0, 4))] == [
        Kind.READ_OUTSIDE,
        Kind.RACE,
    ]


def test_tensors_that_share_memory_share_their_accesses():
    x = torch.randn(N)
    found = faults(lambda: copy(x, x))  # each program in its own place
    assert [fault.kind for fault in found] == [Kind.LOADED_AND_STORED]
    assert {fault.kind for fault in faults(lambda: copy(x[:-1], x[1:], N - 1))} >= {Kind.RACE}


def test_what_may_be_stored_is_read_off_the_source():
    assert {"Y"} == written_parameters(kernels.copied.fn) & {"X", "Y"}
    assert {"Y"} == written_parameters(kernels.summed.fn) & {"X", "Y"}  # through `put`, and by atomics
    assert {"X", "Y", "Z"} == written_parameters(kernels.neighbours.fn) & {"X", "Y", "Z"}
    assert written_parameters(eval("lambda x: x")) is None  # no source: all may be


def defined(file: Path, source: str) -> dict:
    """What a source defines, written to a file."""
    file.write_text(source)
    linecache.checkcache(str(file))
    names: dict = {}
    exec(compile(source, str(file), "exec"), names)
    return names


def test_a_file_is_parsed_once_for_all_functions_that_its_kernels_call(monkeypatch, tmp_path):
    file = tmp_path / "several.py"
    tl = "class tl:\n    store = print\n"
    several = (
        "def put(X, Y):\n    tl.store(Y, X)\n"
        "def twice(X, Y):\n    put(X, Y)\n    put(X, Y)\n"
        "def other(X, Y):\n    twice(Y, X)\n"
    )
    names = defined(file, tl + several)
    parsed, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda source: parsed.append(source) or parse(source))
    assert written_parameters(names["twice"]) == {"Y"} and written_parameters(names["other"]) == {"X"}
    assert parsed == [file.read_text()]
    names = defined(file, f"{tl}def put(X, Y):\n    tl.store(X, Y)\n")  # another source is another file
    assert written_parameters(names["put"]) == {"X"} and len(parsed) == 2


def test_a_function_that_many_call_is_read_once(tmp_path):
    """Each calls the one before twice: as many times as there are functions, and not 2^40 times."""
    calls = "".join(f"def f{i}(X, Y):\n    f{i - 1}(X, Y)\n    f{i - 1}(X, Y)\n" for i in range(1, 40))
    first = "class tl:\n    store = print\ndef f0(X, Y):\n    tl.store(Y, X)\n"
    names = defined(tmp_path / "chain.py", first + calls)
    assert written_parameters(names["f39"]) == {"Y"}


def test_of_a_function_that_calls_itself_every_parameter_may_be_stored(tmp_path):
    names = defined(tmp_path / "itself.py", "def one(X, Y):\n    other(X, 1)\ndef other(X, Y):\n    one(X, Y)\n")
    for name in ("one", "other", "one"):
        assert "X" in written_parameters(names[name])


def test_a_tensor_without_elements_has_nothing_to_be_read():
    y = torch.zeros(N)
    fault = alone(lambda: copy(torch.empty(0), y))
    assert fault.kind is Kind.READ_OUTSIDE and (fault.tensor, fault.index, fault.count) == ("X", 0, N)


def test_recordings_are_not_nested_and_end_with_an_error():
    with pytest.raises(RuntimeError, match="expected one recording at a time"), recording(), recording():
        raise AssertionError
    with pytest.raises(ZeroDivisionError), recording():
        _ = 1 / 0
    with recording() as record:
        pass
    assert record.launches == 0 and not record.faults()


@triton.jit
def moved(x, y, by, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(y + i, value * 2)
    if HOW == "store":
        tl.store(y + i + by, value)
    elif HOW == "masked":
        tl.store(y + i + by, value, mask=i < N - 1)
    elif HOW == "add":
        tl.atomic_add(y + i + by, value)
    elif HOW == "exchange":
        tl.atomic_xchg(y + i + by, value)
    elif HOW == "compare":
        tl.atomic_cas(y.to(tl.pointer_type(tl.int32)) + by, 0, 1)
    elif HOW == "load":
        tl.store(y + i, tl.load(x + i + by) + value)


FENCED = 8
FAR = (10**12, -(10**12), 2**62 - 2**58, -(2**46) * 3, 2**50 + 3)


@pytest.mark.parametrize("by", FAR)
@pytest.mark.parametrize("how", ["store", "masked", "add", "exchange", "compare", "load"])
@pytest.mark.parametrize("guard", [fencing, lambda: recording(lambda tensor: None)])
def test_an_access_far_outside_is_named_and_not_made(how, by, guard):
    x, y = torch.randn(FENCED), torch.zeros(FENCED)
    with guard() as record:
        moved[(1,)](x, y, by, how, FENCED)
    (fault,) = (fault for fault in record.faults() if fault.kind in (Kind.READ_OUTSIDE, Kind.WRITTEN_OUTSIDE))
    assert fault.kind is (Kind.READ_OUTSIDE if how == "load" else Kind.WRITTEN_OUTSIDE)
    assert fault.place.file == __file__ and fault.place.function == "moved"
    assert torch.equal(y, x if how == "load" else 2 * x)


def test_what_lies_in_the_storage_is_left_to_the_kernel():
    x, room = torch.randn(FENCED), torch.zeros(3 * FENCED)
    with fencing() as fence:
        moved[(1,)](x, room[FENCED : 2 * FENCED], FENCED, "store", FENCED)
        moved[(1,)](x, room[FENCED : 2 * FENCED], -FENCED, "store", FENCED)
    assert not fence.faults()
    assert torch.equal(room, torch.cat([x, 2 * x, x]))


def test_a_fence_notes_what_it_does_not_let_through():
    x, y, memory = torch.randn(FENCED), torch.zeros(FENCED), Memory()
    with fenced(memory):
        moved[(1,)](x, y, FAR[0], "store", FENCED)
    (fault,) = memory.outside
    assert fault.place.file == __file__ and str(fault).count("moved, program") == 1 and "writes y[" in str(fault)
    with recording(lambda tensor: None) as record:
        moved[(1,)](x, y, FAR[0], "add", FENCED)
    assert {each.tensor for each in record.faults()} == {"y"}


def test_a_correct_kernel_passes():
    x, y, memory = torch.randn(FENCED), torch.zeros(FENCED), Memory()
    with fenced(memory):
        moved[(1,)](x, y, 0, "store", FENCED)
    assert torch.equal(y, x) and not memory.outside
