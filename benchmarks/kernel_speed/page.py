"""Page: docs/background/speed.md and its plots, from the rows alone; and which peers are ahead at which accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.model.errors import UsageError

from .chips import CHIPS, Chip, chip_of
from .content import content
from .rows import Line, read
from .scans import Scan, members, scans
from .stopwatch import LEAST, LONG, SHORT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "background" / "speed.md"
COMMAND = "python benchmarks/kernels.py"
RUN = ("date", "card", "driver", "cuda", "torch", "triton", "python", "commit", "packages", "switches")
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""The unit roundoff u of a dtype: 2^-p with p bits of significand, the hidden one counted."""
EQUAL = 1.1  # times our error: at most this is equal accuracy
EQUALLY, LESS, UNKNOWN = "at equal or better accuracy", "less accurate", "accuracy not known"

INTRODUCTION = f"""# Speed of the kernels

How fast are the shipped kernels, compared with other implementations of the same work and with what the GPU can do? All
entries of a work are timed in one run, on the same tensors, by `{COMMAND}`; `{COMMAND} --write-page`
makes this page from [kernels.csv](../../benchmarks/results/kernels.csv), whose rows have quartiles, counts and memory.
What is behind a peer of its accuracy, and why: [what bounds the kernels](speed_bounds.md).

- A time is the median of at least {LEAST} calls between device events; of fewer, from 3 on, where a call takes more
  than {LONG:g} s (column *calls*). The device's cache is cleared before each; the device does not wait for the host.
  After a slash: the same as a CUDA graph, where a call takes less than {SHORT:g} ms. A ratio compares with the fastest
  of our entries; above 1 ours is faster.
- *floor*: the operations that no implementation does without at the chip's peak rate, or the bytes of inputs and
  outputs at its peak bandwidth, whichever takes longer. Peak rates are those of NVIDIA's data sheets (dense, SXM):
  {{rates}}.
  The floor of float32 is that of fused multiply-adds without tensor cores. Entries that multiply on tensor cores have
  one of their own: bf16x6 that of six bfloat16 products, tf32x3 that of three TF32 products. The semi-CRF's operations
  are those of the recursion, in float64; its floor ignores that a position waits for the one before.
- *MB*: allocated at most, beyond the inputs, by set-up and call; of a backward its forward is the set-up.
- *error in u*: of the tensor that is worst, the root mean square of the result's differences from float64 divided by
  that of the truth, and after the slash the largest difference divided by the largest magnitude; with the names of the
  two tensors. u is the unit roundoff of the row's dtype, 2^-p with p bits of significand, the hidden one counted:
  bfloat16 2^-8, float16 2^-11, float32 2^-24. A result that is not finite has the error inf. The truth is made in
  float64 from the same inputs: of sdpa, lse and lightning for two heads of batch member 0, by operators that store the
  scores (of lightning, those of 256 positions at a time); of the semi-CRF whole, by the oracle's float64 recursion.
  Besides the timed inputs there are others of sdpa and lse, whose logits are larger, and of lightning's forward in
  float16, whose scores and states go beyond 65504 and whose o does not.
- *Ahead of ours* is a peer that takes less time than one of our entries, unless another one of ours is as fast and as
  accurate. As accurate: its error (root mean square) is at most {EQUAL:g} times the other's, for both inputs.
- Inputs are normal random numbers. PyTorch's switches are at their defaults (column *switches*), and an entry that
  turns one on is named for it: *16-bit reduction* is `allow_fp16_bf16_reduction_math_sdp`, *TF32* is
  `matmul.allow_tf32`. *torch-semimarkov's recursion* is its documented scheme, written anew
  (`benchmarks/families/semimarkov.py`).
"""


def write(file: Path, page: Path = PAGE) -> None:
    """Write the page, and one SVG a family next to it.

    Raises:
        UsageError: there are no rows.
    """
    lines = read(file)
    if not lines:
        raise UsageError(f"{file} has no rows; expected those of a run of `{COMMAND}`")
    plots = _plots(lines, page)
    page.write_text("\n".join(text(lines, {family: svg.name for family, svg in plots.items()})) + "\n")


def _plots(lines: Sequence[Line], page: Path) -> dict[str, Path]:
    """The SVG of each family that has scans."""
    from .plots import plot

    found: dict[str, Path] = {}
    for family in _families(lines):
        own = scans(line for line in lines if line.family == family)
        if own:
            found[family] = page.with_name(f"{page.stem}_{family}.svg")
            found[family].write_text(plot(own))
    return found


def text(lines: Sequence[Line], plots: dict[str, str]) -> Iterator[str]:
    """The page, line by line; ``plots``: family -> name of its SVG."""
    cards = dict.fromkeys(line.card for line in lines)
    chips = [chip for chip in CHIPS if any(chip_of(card) == chip for card in cards)]
    rates = "; ".join(_rates(chip) for chip in chips)
    yield INTRODUCTION.format(rates=rates or "of this card none are known here, so there is no floor")
    yield from _runs(lines)
    for family in _families(lines):
        own = [line for line in lines if line.family == family]
        yield f"## {family}\n"
        if len({line.kernels for line in own}) > 1 or own[0].kernels != content(family):
            yield f"**The kernels have changed since these times were taken: `{COMMAND} {family}` takes them anew.**\n"
        yield from _compared(own)
        yield from accuracy(own, f"{COMMAND} {family} --errors")
        yield from _detailed(own)
        yield from _remembered(own)
        if family in plots:
            yield f"![time against length]({plots[family]})\n"
        for scan in scans(own):
            yield from _grown(scan)


def _rates(chip: Chip) -> str:
    """A chip's peak rates as text."""
    said = [
        f"{chip.operations[what] / 1e12:g} TFLOP/s in {what}" for what in ("bfloat16", "tf32", "float32", "float64")
    ]
    return f"{chip.name} {', '.join(said)}, {chip.bandwidth / 1e12:g} TB/s"


def _families(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line.family for line in lines))


def _runs(lines: Sequence[Line]) -> Iterator[str]:
    """What each run ran on, with its families."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        families = runs.setdefault(tuple(getattr(line, name) for name in RUN), [])
        if line.family not in families:
            families.append(line.family)
    yield "| families | " + " | ".join(RUN) + " |"
    yield "|---" * (len(RUN) + 1) + "|"
    for facts, families in runs.items():
        yield f"| {', '.join(families)} | " + " | ".join(cell(fact) for fact in facts) + " |"
    yield ""


def _compared(lines: Sequence[Line]) -> Iterator[str]:
    """A table of works by entries, without those of scans alone, and why some cells are empty."""
    own = tabled(lines)
    entries = list(dict.fromkeys(line.entry for line in own))
    yield "| work, ms | floor | " + " | ".join(entries) + " |"
    yield "|---" * (len(entries) + 2) + "|"
    for work in dict.fromkeys(line.work for line in own):
        row = {line.entry: line for line in own if line.work == work}
        first = next((line for line in row.values() if line.ours), None)
        best = min((line.best for line in row.values() if line.ours and line.best is not None), default=None)
        cells = [_time(row[who], best) if who in row else "" for who in entries]
        least = "" if first is None or first.floor_milliseconds is None else f"{first.floor_milliseconds:.3g}"
        yield f"| {named(next(iter(row.values())))} | {least} | " + " | ".join(cells) + " |"
    yield ""
    yield from reasons("Without a time", ((line, line.missing) for line in lines if line.missing))


def _remembered(lines: Sequence[Line]) -> Iterator[str]:
    """A table of works by entries: peak memory."""
    known = [line for line in tabled(lines) if line.peak_bytes is not None]
    entries = list(dict.fromkeys(line.entry for line in known))
    if not known:
        return
    yield "| work, MB beyond the inputs | " + " | ".join(entries) + " |"
    yield "|---" + "|--:" * len(entries) + "|"
    for work in dict.fromkeys(line.work for line in known):
        row = {line.entry: line for line in known if line.work == work}
        cells = [f"{(row[who].peak_bytes or 0) / 1e6:.1f}" if who in row else "" for who in entries]
        yield f"| {named(next(iter(row.values())))} | " + " | ".join(cells) + " |"
    yield ""


def _time(line: Line, ours: float | None) -> str:
    """A cell: the time, that of the graph, and the ratio to ours."""
    if line.milliseconds is None:
        return "–"
    said = f"{line.milliseconds:.4g}"
    if line.graph_milliseconds is not None:
        said += f" / {line.graph_milliseconds:.4g}"
    if line.ours:
        return f"**{said}**"
    if ours is not None:
        said += f", {(line.best or 0.0) / ours:.2f}x"
    return said


def _detailed(lines: Sequence[Line]) -> Iterator[str]:
    """A table of our entries: spread, rate, share of the floor."""
    yield "| work | entry | ms | quartiles | calls | as a graph | rate | of the floor | set by |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    for line in tabled(lines):
        if line.ours and line.milliseconds is not None:
            graph = "" if line.graph_milliseconds is None else f"{line.graph_milliseconds:.4g}"
            share = "" if line.floor_milliseconds is None else f"{_share(line):.0%}"
            cells = (
                named(line), line.entry, f"{line.milliseconds:.4g}", f"{line.lower:.4g} to {line.upper:.4g}",
                str(line.count), graph or cell(line.no_graph), _rate(line), share,
                f"{line.floor_by}, {line.arithmetic}" if line.floor_by else "",
            )  # fmt: skip
            yield "| " + " | ".join(cells) + " |"
    yield ""


def _share(line: Line) -> float:
    return (line.floor_milliseconds or 0.0) / (line.best or 1.0)


def _rate(line: Line) -> str:
    """What an entry achieves, of what the floor counts."""
    seconds = (line.best or 1.0) / 1e3
    if line.floor_by == "memory":
        return f"{line.moved / seconds / 1e9:.0f} GB/s"
    return f"{line.operations / seconds / 1e12:.3g} TFLOP/s"


def _grown(scan: Scan) -> Iterator[str]:
    """A table over the size: time of each entry, our rate, and our time for the work of the smallest size."""
    yield f"{scan.title}, ms of a call by {scan.dim}:\n"
    sizes = sorted({size for rows in scan.entries.values() for size in rows})
    ours = next(iter(scan.entries.values()))
    yield f"| {scan.dim} | sequences | floor | " + " | ".join(scan.entries) + " | rate | time / work |"
    yield "|--:" * (len(scan.entries) + 5) + "|"
    first = next(iter(ours.values()), None)
    for size in sizes:
        any_row = next(rows[size] for rows in scan.entries.values() if size in rows)
        times = [_of_size(rows, size, lambda line: f"{line.best:.4g}") for rows in scan.entries.values()]
        least = f"{scan.floors[size]:.3g}" if size in scan.floors else ""
        growth = _of_size(ours, size, lambda line: "" if first is None else f"{_per_work(line) / _per_work(first):.2f}")
        cells = [str(size), str(members(any_row)), least, *times, _of_size(ours, size, _rate), growth]
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _per_work(line: Line) -> float:
    return (line.best or 0.0) / line.operations


def _of_size(rows: dict[int, Line], size: int, how: Callable[[Line], str]) -> str:
    return how(rows[size]) if size in rows else ""


@dataclass(frozen=True)
class Ahead:
    """A peer that none of our entries matches in time and accuracy; ``ours``: the fastest that it is faster than."""

    peer: Line
    ours: Line
    how: str


def ahead(work: Sequence[Line]) -> Iterator[Ahead]:
    """Of the rows of one work: peers faster than an entry of ours, unless another is as fast and as accurate.

    ``how``: EQUALLY where the peer is as accurate as one of ours, LESS where it is less accurate than each.
    """
    ours = [line for line in work if line.ours and line.best is not None]
    for peer in work:
        if peer.ours or peer.best is None:
            continue
        slower = [line for line in ours if _best(line) > peer.best]
        matched = (is_as_accurate(line, peer) is not False for line in ours if line not in slower)
        if slower and not any(matched):
            than = [is_as_accurate(peer, line) for line in ours]
            how = EQUALLY if True in than else UNKNOWN if None in than else LESS
            yield Ahead(peer, min(slower, key=_best), how)


def is_as_accurate(one: Line, other: Line) -> bool | None:
    """Whether one's errors (rms) are at most ``EQUAL`` times the other's on both inputs; None: one is not known.

    Where neither has an error of a stress, that on the timed inputs decides.
    """
    if one.error_rms is None or other.error_rms is None or (one.sharp_rms is None) != (other.sharp_rms is None):
        return None
    return one.error_rms <= EQUAL * other.error_rms and (one.sharp_rms or 0.0) <= EQUAL * (other.sharp_rms or 0.0)


def accuracy(lines: Sequence[Line], command: str) -> Iterator[str]:
    """A family's table of errors, and the lists of who is ahead; ``command`` takes the errors."""
    own = tabled(lines)
    tried = [line for line in own if line.is_compared]
    if not tried:
        yield f"Results are not compared with float64 yet; `{command}` does that.\n"
        return
    yield from _table([line for line in tried if line.error_rms is not None])
    yield f"Compared on: {' and '.join(dict.fromkeys(line.errors_on for line in tried))}.\n"
    missing = (line for line in own if line.best is not None and (line.error_rms is None or line.errors_missing))
    yield from reasons("Without an error", ((line, line.errors_missing or "not compared yet") for line in missing))
    found = [each for work in _works(own) for each in ahead(work)]
    for how in (EQUALLY, LESS, UNKNOWN):
        listed = [each for each in found if each.how == how]
        if listed:
            yield f"Ahead of ours, {how}:\n"
            yield from (_listed(each) for each in listed)
            yield ""
        elif how == EQUALLY:
            yield f"Ahead of ours, {how}: none.\n"


def _table(compared: Sequence[Line]) -> Iterator[str]:
    """Works by entries, a line for each of the inputs."""
    entries = list(dict.fromkeys(line.entry for line in compared))
    yield "| work, error in u | inputs | " + " | ".join(entries) + " |"
    yield "|---" * (len(entries) + 2) + "|"
    for work in _works(compared):
        row = {line.entry: line for line in work}
        yield (
            f"| {named(work[0])} | timed | "
            + " | ".join(_cell(row[who]) if who in row else "" for who in entries)
            + " |"
        )
        if any(line.sharp_rms is not None for line in work):
            sharp = (_sharp(row[who]) if who in row else "" for who in entries)
            yield f"| {named(work[0])} | {work[0].sharp} | " + " | ".join(sharp) + " |"
    yield ""


def _works(lines: Sequence[Line]) -> list[list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.work, []).append(line)
    return list(found.values())


def _best(line: Line) -> float:
    return line.best or 0.0


def _listed(each: Ahead) -> str:
    peer, ours = each.peer, each.ours
    said = f"- {named(peer)}: {peer.entry} {peer.best:.4g} ms, {ours.entry} {ours.best:.4g} ms"
    for label, one, other in (
        ("", peer.error_rms, ours.error_rms),
        (f" at {peer.sharp}", peer.sharp_rms, ours.sharp_rms),
    ):
        if one is not None and other is not None:
            said += f"; error{label} {_number(one, peer)} u, {_number(other, ours)} u"
    return said


def _cell(line: Line) -> str:
    return _said(line, line.error_rms, line.error_largest, line.error_of)


def _sharp(line: Line) -> str:
    return _said(line, line.sharp_rms, line.sharp_largest, line.sharp_of)


def _said(line: Line, rms: float | None, largest: float | None, of: str) -> str:
    if rms is None or largest is None:
        return "–"
    said = f"{_number(rms, line)} / {_number(largest, line)}"
    return (f"**{said}**" if line.ours else said) + f" {of}"


def _number(error: float, line: Line) -> str:
    units = error / UNIT[line.dtype]
    return f"{units:.0f}" if units >= 100 else f"{units:.2g}"


def named(line: Line) -> str:
    """A work without its family and without what is said in parentheses."""
    return " ".join((line.derivative.partition(" (")[0], line.work.partition(f"{line.derivative} ")[2]))


def tabled(lines: Sequence[Line]) -> list[Line]:
    """The rows of tables: those of works that are not of scans alone."""
    return [line for line in lines if line.scan != "only"]


def cell(said: str) -> str:
    """Text that does not end a table's cell."""
    return said.replace("|", "/").replace("<", "&lt;")


def reasons(title: str, lines: Iterable[tuple[Line, str]]) -> Iterator[str]:
    """A list of why something is missing, each reason of an entry once; nothing where none is."""
    found: dict[tuple[str, str], list[str]] = {}
    for line, reason in lines:
        found.setdefault((line.entry, reason), []).append(named(line))
    if found:
        yield f"{title}:\n"
        for (entry, reason), works in found.items():
            where = works[0] if len(works) == 1 else f"{len(works)} works, the first: {works[0]}"
            yield f"- {entry}: {cell(reason)} ({where})"
        yield ""
