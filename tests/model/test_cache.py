"""The cache: what is read is what was written; damage and a full disk are said once, and change no answer."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gradoracle.model import cache
from gradoracle.model.cache import KEY, Cache, digest, folder, key_of, sealed


@pytest.fixture
def said() -> list[str]:
    """What a cache says."""
    return []


@pytest.fixture
def entries(tmp_path: Path, said: list[str]) -> Cache:
    """A cache with two entries."""
    made = Cache("numbers", tmp_path, said.append)
    made.write("one", {"value": 1})
    made.write("two", [2, None])
    return made


def test_a_document_is_found_under_its_name_by_every_process(entries: Cache, tmp_path: Path, said: list[str]) -> None:
    assert entries.read("one") == {"value": 1} and entries.read("two") == [2, None] and entries.read("three") is None
    assert Cache("numbers", tmp_path).read("one") == {"value": 1} and Cache("others", tmp_path).read("one") is None
    entries.write("one", {"value": 3})
    assert entries.read("one") == {"value": 3} and not said


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'0123\n{"value": 1}', None])
def test_damage_is_no_document_and_is_said_once(
    entries: Cache, tmp_path: Path, said: list[str], damage: bytes | None
) -> None:
    for name in ("one", "two"):
        file = tmp_path / "numbers" / name
        file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
        assert entries.read(name) is None
    assert len(said) == 1 and str(tmp_path / "numbers" / "one") in said[0] and "computed again" in said[0]
    entries.write("one", 4)
    assert entries.read("one") == 4


def test_only_what_was_sealed_with_the_key_of_this_folder_is_read(
    entries: Cache, tmp_path: Path, said: list[str]
) -> None:
    one, two = (tmp_path / "numbers" / name for name in ("one", "two"))
    content = b'{"value": 7}'
    for forged in (
        hashlib.sha256(content).hexdigest().encode() + b"\n" + content,  # by a digest that anybody can make
        sealed(bytes(32), "one", content),  # of another key
        two.read_bytes(),  # of another entry
    ):
        one.write_bytes(forged)
        assert entries.read("one") is None
    assert len(said) == 1
    one.write_bytes(sealed(key_of(tmp_path), "one", content))
    assert entries.read("one") == {"value": 7}


def test_a_key_that_others_can_read_is_none(entries: Cache, tmp_path: Path, said: list[str]) -> None:
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600
    (tmp_path / KEY).chmod(0o644)
    assert entries.read("one") is None and "mode 644" in said[0] and "expected 600" in said[0]
    entries.write("three", 3)
    assert not (tmp_path / "numbers" / "three").exists()


def test_a_full_disk_is_said_once_and_loses_nothing_that_is_there(
    entries: Cache, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    entries.write("one", {"value": 9})
    entries.write("three", 3)
    assert len(said) == 1 and "no space left on device" in said[0] and "no further results are kept" in said[0]
    assert entries.read("one") == {"value": 1} and entries.read("three") is None
    assert sorted(file.name for file in (tmp_path / "numbers").iterdir()) == ["one", "two"]  # no half of a file


def test_a_folder_that_cannot_be_is_said_once(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "numbers").write_text("a file")
    entries = Cache("numbers", tmp_path, said.append)
    assert entries.read("one") is None
    entries.write("one", 1)
    entries.write("one", 1)
    assert len(said) == 1 and (tmp_path / "numbers").read_text() == "a file"


def test_what_nobody_asks_for_goes(tmp_path: Path, entries: Cache) -> None:
    for name in ("one", "two"):
        long_ago = time.time() - (cache.KEPT_DAYS + 1) * 86400.0
        os.utime(tmp_path / "numbers" / name, (long_ago, long_ago))
    assert entries.read("one") is not None
    Cache("numbers", tmp_path).write("three", 3)
    assert entries.read("one") is not None and entries.read("two") is None


def test_what_another_process_has_removed_is_no_fault(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes begin to write at one time, and both remove what is old."""
    old = tmp_path / "kind" / "old"
    old.parent.mkdir()
    old.touch()
    os.utime(old, (0, 0))
    unlink = os.unlink

    def gone(path: Any, *args: Any, **fields: Any) -> None:
        unlink(path, *args, **fields)
        if Path(path) == old:
            raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", gone)
    shared = Cache("kind", tmp_path, said.append)
    shared.write("one", 1)
    shared.write("two", 2)
    assert (shared.read("one"), shared.read("two"), said, old.exists()) == (1, 2, [], False)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.setenv(cache.VARIABLE, "")
    assert folder() is None
    nowhere = Cache("numbers", None)
    nowhere.write("one", 1)
    assert nowhere.read("one") is None
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert folder() == tmp_path / "caches" / "gradoracle"


def test_a_digest_is_that_of_the_values() -> None:
    assert digest(1, {"a": 2, "b": 3}) == digest(1, {"b": 3, "a": 2}) != digest(1, {"a": 2, "b": "3"})
