"""The catalogue of the gated delta rule."""

from __future__ import annotations

PROPERTIES = ()
