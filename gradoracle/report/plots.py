"""Plots of the HTML view, as SVG that takes the page's text colour and needs no script and no network."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from gradoracle.model.error_map import ErrorMap, sigmas
from gradoracle.model.finding import LOCAL_SIGMA
from gradoracle.model.statistics import LEAST, Convergence, Growth, edge
from gradoracle.report.shown_fault import printable
from gradoracle.report.summary import short

INK = "#0a0b0c"  # stands for the page's text colour until the SVG is written
WIDTH = 4.6  # inches: what a phone shows without making its text smaller than it can be read
_COLOURS = ("#3574b8", "#d1722b", "#3f9463", "#b5538f", "#8a7a2e", "#5d6cc9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHED = (0, (4, 3))
_LARGEST = 1e300  # differences of larger numbers overflow
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradoracle",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,
}
# Errors in sigma: within one, explained, then what no rounding explains, and last what has no sigma at all.
_BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 32.0, 1e3, 1e6, 1e11, 1e300)
_FILLS = ("#dfe7ee", "#c3d5e6", "#9dbfdd", "#6ea3cf", "#f5c26b", "#ee8f3c", "#dc5532", "#b32032", "#6d0f3c")
_UNKNOWN, _EDGE = "#9a9a9a", "#1b2128"
_TICKS = ((1.0, "1"), (8.0, "8"), (32.0, "32"), (1e3, "1e3"), (1e6, "1e6"), (1e11, "∞"))


@matplotlib.rc_context(_STYLE)
def error(map: ErrorMap) -> str:
    """A map of the error in sigma over a tensor, with the edges of tiles."""
    cells = [[min(sigmas(level), 1e299) if level != "?" else math.nan for level in row] for row in map.rows]
    down, across = map.shape
    height = min(4.2, max(0.5, 3.6 * down / max(across, 1)))
    figure, axes = _figure(height + 1.1)
    colours = ListedColormap(list(_FILLS)).with_extremes(bad=_UNKNOWN)
    extent = (0, len(map.rows[0]) * map.cell[1], len(map.rows) * map.cell[0], 0)
    image = axes.imshow(
        cells, cmap=colours, norm=BoundaryNorm(_BOUNDS, len(_FILLS)), extent=extent, aspect="auto", interpolation="none"
    )
    axes.set_xlim(0, across)
    axes.set_ylim(down, 0)
    for line, side in ((axes.axhline, 0), (axes.axvline, 1)):
        for place in map.edges(side):
            line(place, color=_EDGE, linewidth=0.8, linestyle=_DASHED)
    axes.set_xlabel(printable(map.axes[1]))
    axes.set_ylabel(printable(map.axes[0]))
    if not map.axes[0]:
        axes.set_yticks([])
    for axis in (axes.xaxis, axes.yaxis)[: 2 if map.axes[0] else 1]:
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    for spine in axes.spines.values():
        spine.set_visible(True)
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", location="bottom", aspect=30)
    bar.set_ticks([value for value, _ in _TICKS], labels=[text for _, text in _TICKS])
    bar.minorticks_off()
    bar.set_label("error in sigma, the largest of each cell")
    return _svg(figure, f"error in sigma over {map.axes[0]} and {map.axes[1]}")


@matplotlib.rc_context(_STYLE)
def against(pairs: Sequence[tuple[float, float]], tensor: str) -> str:
    """What the kernel gave against what is true."""
    finite = [pair for pair in pairs if all(abs(value) < _LARGEST for value in pair)]  # NaN is not
    figure, (axes, below) = _figure(4.4, panels=(2, 1))
    if finite:
        low, high = min(map(min, finite)), max(map(max, finite))
        true, got = zip(*finite, strict=True)
        off = [each - what for what, each in finite]
        axes.plot([low, high], [low, high], color=INK, linewidth=0.8, linestyle=_DASHED, label="got = true")
        axes.plot(true, got, "o", markersize=3.5, color=_COLOURS[1], alpha=0.8, label=printable(tensor))
        axes.legend(loc="best")
        below.axhline(0, color=INK, linewidth=0.8, linestyle=_DASHED)
        below.plot(true, off, "o", markersize=3.5, color=_COLOURS[1], alpha=0.8)
    lost = len(pairs) - len(finite)
    below.set_xlabel("true" + (f" ({lost} more NaN, infinite or too large)" if lost else ""))
    axes.set_ylabel("got")
    below.set_ylabel("got - true")
    return _svg(figure, f"got against true of {tensor}")


@matplotlib.rc_context(_STYLE)
def spread(counts: dict[str, list[int]]) -> str:
    """How many tensors have an rms error of so many sigma, by dtype."""
    figure, axes = _figure(2.8)
    bins = range(len(next(iter(counts.values()))))
    centres = [LEAST + bin / 2 - 0.25 for bin in bins]
    below = [0] * len(centres)
    for place, (dtype, each) in enumerate(counts.items()):
        axes.bar(centres, each, width=0.46, bottom=below, color=_COLOURS[place % len(_COLOURS)], label=printable(dtype))
        below = [a + b for a, b in zip(below, each, strict=True)]
    axes.axvline(0, color=INK, linewidth=1, linestyle=_DASHED)
    ticks = [power for power in range(LEAST, 5, 2)]
    axes.set_xticks(ticks, [_power(power) for power in ticks])
    axes.set_xlabel(f"rms error of a tensor in sigma (up to {_power(LEAST)}, ..., beyond {edge(len(bins) - 2):.3g})")
    axes.set_ylabel("tensors")
    axes.legend(loc="upper left")
    return _svg(figure, "tensors by their rms error in sigma")


@matplotlib.rc_context(_STYLE)
def growth(points: Sequence[Growth], dim: str) -> str:
    """The largest error in sigma against a size, by dtype."""
    figure, axes = _figure(3.0)
    for place, dtype in enumerate(dict.fromkeys(point.dtype for point in points)):
        own = sorted((point.size, point.in_sigma) for point in points if point.dtype == dtype)
        shown = [(size, worst) for size, worst in own if 0 < worst < math.inf]
        if shown:
            marker, colour = _MARKERS[place % len(_MARKERS)], _COLOURS[place % len(_COLOURS)]
            axes.plot(*zip(*shown, strict=True), marker, markersize=4, color=colour, alpha=0.85, label=printable(dtype))
    axes.axhline(LOCAL_SIGMA, color=INK, linewidth=1, linestyle=_DASHED)
    _logarithmic(axes.xaxis)
    if any(point.in_sigma > 2 * LOCAL_SIGMA for point in points):
        _logarithmic(axes.yaxis)
    else:
        axes.set_ylim(0, 1.1 * max(LOCAL_SIGMA, *(point.in_sigma for point in points)))
    axes.set_xlabel(printable(dim))
    axes.set_ylabel("largest error in sigma")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
    return _svg(figure, f"largest error in sigma against {dim}")


@matplotlib.rc_context(_STYLE)
def convergence(curves: Sequence[Convergence]) -> str:
    """Errors of central differences against their step, with a slope of two to compare with."""
    figure, axes = _figure(3.2)
    curves = [replace(curve, tensor=curve.tensor.removeprefix("order of ")) for curve in curves]
    tensors = sorted({curve.tensor for curve in curves})
    named: set[str] = set()
    for curve in curves:
        place = tensors.index(curve.tensor)
        label = None if curve.tensor in named else printable(curve.tensor)
        named.add(curve.tensor)
        marker, colour = _MARKERS[place % len(_MARKERS)], _COLOURS[place % len(_COLOURS)]
        steps, worst = zip(*curve.steps, strict=True)
        axes.plot(steps, worst, marker=marker, markersize=3, linewidth=0.8, color=colour, label=label)
    for step, least in (curve.steps[0] for curve in curves):
        axes.plot([step, 4 * step], [least, 16 * least], color=INK, linewidth=0.6, linestyle=_DASHED, alpha=0.7)
    _logarithmic(axes.xaxis)
    _logarithmic(axes.yaxis)
    axes.set_xlabel("step h")
    axes.set_ylabel("largest error of the difference")
    axes.legend(loc="best")
    return _svg(figure, "errors of central differences of the VJP against their step")


def _figure(height: float, panels: Sequence[int] = (1,)) -> tuple[Figure, Any]:
    """A figure with its axes, or with several, of these heights, one below the other."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots(len(panels), sharex=True, height_ratios=list(panels))
    for each in [axes] if len(panels) == 1 else axes:
        each.patch.set_alpha(0)
    return figure, axes


def _logarithmic(axis: Any) -> None:
    """A logarithmic axis whose ticks are plain text."""
    axis.axes.set_xscale("log") if axis.axis_name == "x" else axis.axes.set_yscale("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())


def _power(power: int) -> str:
    return f"{2**power}" if power >= 0 else f"1/{2**-power}"


def _svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element: its ink is the page's, its names are its own."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    name = printable(name)
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    own = f"p{zlib.crc32((name + text).encode()):x}-"
    text = re.sub(r'( id="|"#|url\(#)', lambda mark: mark[0] + own, text)
    text = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
    quoted = name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{quoted}"', 1)
