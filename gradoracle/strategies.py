"""Strategies: which cases there are. Draw them, list the stream of a run, count situations, shrink a failing one."""

from __future__ import annotations

from gradoracle.drawing import cases
from gradoracle.shrinking import shrink
from gradoracle.situations import situations, wanted_situations
from gradoracle.stream import stream

__all__ = ["cases", "shrink", "situations", "stream", "wanted_situations"]
