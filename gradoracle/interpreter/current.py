"""The record that launches are entered in now, where there is one: what every launch and access asks for first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Record

record: Record | None = None
