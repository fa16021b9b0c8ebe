"""Documents that gradoracle writes, as tests read them: reports."""

from __future__ import annotations

import json

from gradoracle.model.serialize import from_plain
from gradoracle.model.verdict import Report


def reports_in(text: str) -> list[Report]:
    """The reports of a JSON document; pools of findings are not in it."""
    return from_plain(list[Report], json.loads(text)["reports"], "reports")
