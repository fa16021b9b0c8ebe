"""Plots: the time of one sequence against its length, an SVG a family with a panel for each of its scans."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from .scans import Scan, members

_COLOURS = ("#3574b8", "#d1722b", "#3f9463", "#b5538f", "#8a7a2e", "#5d6cc9", "#8f4a3c", "#4f9aa8")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradoracle",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,
}
PANEL = 4.4, 3.4  # inches


@matplotlib.rc_context(_STYLE)
def plot(scans: Sequence[Scan]) -> str:
    """The SVG of a family: milliseconds of a call divided by B H, on logarithmic axes, the floor dashed.

    Times are of CUDA graphs where a call was timed as one. The same rows give the same text.
    """
    figure = Figure(figsize=(PANEL[0] * len(scans), PANEL[1]), layout="constrained")
    figure.patch.set_facecolor("white")
    names = list(dict.fromkeys(entry for scan in scans for entry in scan.entries))
    for axes, scan in zip(figure.subplots(1, len(scans), squeeze=False)[0], scans, strict=True):
        batch: dict[int, int] = {}
        for entry, rows in scan.entries.items():
            place = names.index(entry)
            batch |= {size: members(line) for size, line in rows.items()}
            times = [(line.best or 0.0) / members(line) for line in rows.values()]
            axes.plot(
                list(rows), times, marker=_MARKERS[place % len(_MARKERS)], color=_COLOURS[place % len(_COLOURS)],
                markersize=4, linewidth=1.8 if place == 0 else 1.0, label=entry,
            )  # fmt: skip
        floors = {size: least / batch[size] for size, least in scan.floors.items() if size in batch}
        if floors:
            axes.plot(list(floors), list(floors.values()), "--", color="#555555", linewidth=0.9, label="floor")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted(batch))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid(True, color="#e4e4e4", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_title(scan.title, fontsize=9)
        axes.set_xlabel(scan.dim)
        axes.set_ylabel("ms of one sequence and head" if "H" in _dims(scan) else "ms of one sequence")
        axes.legend(fontsize=7)
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return "\n".join(line.rstrip() for line in text[text.index("<svg") :].splitlines()) + "\n"


def _dims(scan: Scan) -> set[str]:
    return {dim for rows in scan.entries.values() for line in rows.values() for dim in line.sizes}


def _short(size: float) -> str:
    if size >= 1 << 20:
        return f"{size / (1 << 20):g}M"
    return f"{size / 1024:g}k" if size >= 1024 else f"{size:g}"
