"""Summary: what several views share: outcome, table of verdicts, inferred contracts, what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradoracle.model import claims
from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.model.contract import weakest
from gradoracle.model.fault import VerdictKey
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import BROKEN, FAILING, Report, Status, Verdict
from gradoracle.model.wording import counted, without_numbers
from gradoracle.report.shown_fault import ShownFault, bits_lost, cases, failing_cases, shown_faults

_MOST_REFUSALS, _MOST_MARKS, _MOST_PLACES = 12, 8, 4
_MEMORY = "memory:"
MARKS = {0: "✓", 1: "✗", 3: "!", 4: "?"}  # by exit code
WEIGHTS = {Weight.RED: "✗", Weight.OPEN: "?", Weight.NOTE: "·"}


@dataclass(frozen=True)
class Unchecked:
    """One reason why cases were refused or not checked.

    Attributes:
        count: cases, summed over properties.
        reason: the reason in words; the first of several that differ only in their numbers.
        properties: the properties concerned.
        alike: the number of other reasons that differ from it only in their numbers.
    """

    count: int
    reason: str
    properties: tuple[str, ...]
    alike: int

    def __str__(self) -> str:
        who = (
            self.properties[0]
            if len(self.properties) == 1
            else f"{len(self.properties)} properties, such as {self.properties[0]}"
        )
        like = f"; {counted(self.alike, 'reason')} more with other numbers" if self.alike else ""
        return f"{self.brief} ({who}{like})"

    @property
    def brief(self) -> str:
        """The reason; of a lack of memory without the details that CUDA adds."""
        return self.reason.partition(". ")[0] if self.reason.startswith(_MEMORY) else self.reason


@dataclass(frozen=True)
class Row:
    """The verdicts of one property and kernel, one place for each dtype of the table."""

    property_name: str
    kernel: str
    verdicts: tuple[Verdict | None, ...]

    @property
    def is_failing(self) -> bool:
        """Whether any of them fails, or is violated by what may be wrong."""
        return any(verdict is not None and (verdict.status in FAILING or verdict.is_open) for verdict in self.verdicts)

    @property
    def is_decided(self) -> bool:
        """Whether any of them holds or fails."""
        return any(verdict is not None and verdict.status in (*FAILING, Status.HOLDS) for verdict in self.verdicts)


@dataclass(frozen=True)
class Table:
    """All verdicts of a report; the kernel is worth a column where there are several."""

    dtypes: tuple[str, ...]
    has_kernels: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Goal:
    """A coverage goal: how many cases meet it, and how many must at least."""

    name: str
    cases: int
    expected: int

    @property
    def is_missed(self) -> bool:
        """Whether too few cases meet it."""
        return self.cases < self.expected


def outcome(report: Report) -> str:
    """Target, outcome and exit code in one line, without a mark."""
    code = report.exit_code
    if report.comparison is not None:
        said = _compared(report)
    elif code == 0:
        said = _held(report)
    elif code == 1:
        faults = [fault for fault in shown_faults(report) if fault.lead.status in BROKEN]
        counting = [fault for fault in faults if weight(report, fault) is Weight.RED]
        broken = {verdict.property_name for fault in counting for verdict in (fault.lead, *fault.others)}
        said = f"{counted(len(counting), 'fault')}, {counted(len(broken), 'property')} violated"
    elif code == 3:
        said = f"gradoracle itself failed, {counted(len(report.errors), 'verdict')} missing"
    else:
        said = "inconclusive"
    return f"{report.target}: {said} (exit code {code})"


def _held(report: Report) -> str:
    """The outcome of a run in which no violation counts."""
    broken = [verdict for verdict in report.verdicts if verdict.status in BROKEN]
    kinds = Counter(verdict.severity for verdict in broken)
    said = ["nothing is wrong" if broken else "every checked property holds"]
    if kinds[Severity.PRECISION]:
        dtypes = dict.fromkeys(verdict.dtype for verdict in broken if verdict.severity is Severity.PRECISION)
        said.append(f"precision is lost in {', '.join(dtypes)}")
    if count := len({v.property_name for v in broken if v.severity is Severity.ROBUSTNESS}):
        said.append(f"{counted(count, 'property')} of robustness violated")
    if count := len({v.property_name for v in report.verdicts if v.is_open}):
        said.append(f"{counted(count, 'violated property')} not decided")
    return "; ".join(said)


def _compared(report: Report) -> str:
    """The outcome of a comparison, in a few words."""
    comparison, code = report.comparison, report.exit_code
    assert comparison is not None
    if comparison.unchanged:
        return f"unchanged since {comparison.base}, not checked"
    if code == 1:
        return f"{counted(len(comparison.of(Weight.RED)), 'regression')} from {comparison.base}"
    return f"no worse than {comparison.base}" if code == 0 else f"not fully compared with {comparison.base}"


def compared(report: Report) -> list[Line]:
    """The lines of a gate, the gravest first."""
    order = list(WEIGHTS)
    lines = report.comparison.lines if report.comparison is not None else []
    return sorted(lines, key=lambda line: order.index(line.weight))


def weight(report: Report, fault: ShownFault) -> Weight:
    """The weight of a fault: a note if it does not count, or in a gate if the base has it or it is a known failure.

    Open where it may be wrong and nobody knows.
    """
    if report.comparison is None:
        counts = any(verdict.counts(report.fail_on) for verdict in (fault.lead, *fault.others))
        if counts or fault.lead.status is Status.ERROR:
            return Weight.RED
        return Weight.OPEN if fault.lead.is_open else Weight.NOTE
    verdicts = {verdict.key for verdict in (fault.lead, *fault.others)}
    for known in (Weight.RED, Weight.OPEN):
        lines = (line for line in report.comparison.of(known) if line.kind is Kind.VIOLATED)
        if any(VerdictKey(line.property_name, line.kernel, line.dtype) in verdicts for line in lines):
            return known
    return Weight.NOTE


def all_compared(reports: Sequence[Report]) -> str:
    """The outcome of a gate over all its targets, in one line."""
    changed = [report for report in reports if report.comparison is None or not report.comparison.unchanged]
    if not changed:
        base = reports[0].comparison.base if reports[0].comparison is not None else ""
        return f"no kernel has changed since {base}, so none was checked"
    names = {0: "no regression", 1: "regression", 3: "error", 4: "inconclusive"}
    outcomes = ", ".join(f"{report.target}: {names[report.exit_code]}" for report in changed)
    left = len(reports) - len(changed)
    return f"gate: {outcomes}{f'; {left} unchanged' if left else ''}"


def of_all(reports: Sequence[Report]) -> str:
    """The outcome of each of several targets, in one line."""
    words = {0: "holds", 1: "violated", 3: "error", 4: "inconclusive"}
    return ", ".join(f"{report.target}: {words[report.exit_code]}" for report in reports) or "nothing was checked"


def extent_of(report: Report) -> str:
    """How many properties, cases, seconds, and verdicts of each status, in one line."""
    counts = {status: sum(verdict.status is status for verdict in report.verdicts) for status in Status}
    words = {status: status.value for status in Status} | ({Status.HOLDS: "hold"} if counts[Status.HOLDS] > 1 else {})
    shown = ", ".join(f"{count} {words[status]}" for status, count in counts.items() if count)
    stopped = "" if report.cases_run >= report.cases_planned else f" of {report.cases_planned} planned"
    longest = f", at most {report.longest_compilation:.1f} s a kernel" if report.longest_compilation >= 0.05 else ""
    compiling = f" ({report.seconds_compiling:.1f} s compiling{longest})" if report.seconds_compiling >= 0.05 else ""
    return (
        f"{counted(report.properties_checked, 'property')} checked on {report.cases_run}{stopped} "
        f"{'case' if report.cases_run == 1 and not stopped else 'cases'} in {report.seconds:.1f} s{compiling}; "
        f"{counted(len(report.verdicts), 'verdict')}: {shown or 'none'}"
    )


@dataclass(frozen=True)
class Kept:
    """What a kernel with no declared contract keeps in a dtype.

    Attributes:
        kernel, dtype: the kernel and the dtype of the verdicts.
        preset: the strongest that explains every violation; "" if none does.
        lost: the bits lost, and at which statements, in words.
    """

    kernel: str
    dtype: str
    preset: str
    lost: str

    def __str__(self) -> str:
        keeps = f"keeps {self.preset}" if self.preset else "keeps no preset"
        return f"{keeps}; {self.lost}" if self.lost else keeps


def kept(report: Report) -> list[Kept]:
    """The inferred contract of each kernel and dtype without a declared one in which precision is lost.

    What is wrong, or could not be judged with every float in float64, keeps no contract and has no line.
    """
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in report.verdicts:
        if not verdict.declared and verdict.status in (Status.VIOLATED, Status.CRASHED):
            groups.setdefault((verdict.kernel, verdict.dtype), []).append(verdict)
    found = []
    for (kernel, dtype), verdicts in groups.items():
        own = [v for v in verdicts if v.severity is Severity.PRECISION]
        grave = any(v.severity in (None, Severity.WRONG, Severity.UNDECIDED) for v in verdicts)
        if own and not grave:
            oracle = [v for v in own if v.kind is PropertyKind.ORACLE] or own
            lost = ", ".join(part for part in (bits_lost(oracle), _places(oracle)) if part)
            found.append(Kept(kernel, dtype, weakest(v.keeps for v in oracle), lost))
    return found


def _places(verdicts: Iterable[Verdict]) -> str:
    """The statements at which precision is lost: ``lost at kernel.py:88``."""
    losses = [v.counterexample.loss for v in verdicts if v.counterexample is not None]
    places = dict.fromkeys(f"{each.statement.file}:{each.statement.line}" for each in losses if each is not None)
    return f"lost at {', '.join(list(places)[:_MOST_PLACES])}" if places else ""


def unchecked(report: Report) -> list[Unchecked]:
    """Why cases were refused or not checked, the most frequent reason first."""
    counts: dict[tuple[str, str], int] = {}
    properties: dict[tuple[str, str], dict[str, None]] = {}
    first: dict[tuple[str, str], tuple[str, str]] = {}  # of reasons that differ only in their numbers
    others: dict[tuple[str, str], set[str]] = {}
    for verdict in report.verdicts:
        for reason, count in verdict.reasons.items():
            status = Status.REFUSED.value if verdict.status is Status.REFUSED else Status.NOT_CHECKED.value
            key = first.setdefault((status, _alike(reason)), (status, reason))
            others.setdefault(key, set()).update({reason} - {key[1]})
            counts[key] = counts.get(key, 0) + count
            properties.setdefault(key, {})[verdict.property_name] = None
    ranked = sorted(counts, key=lambda key: -counts[key])
    return [Unchecked(counts[key], key[1], tuple(properties[key]), len(others[key])) for key in ranked]


def _alike(reason: str) -> str:
    """What reasons have in common that are shown as one: all but numbers, and of a lack of memory all."""
    return _MEMORY if reason.startswith(_MEMORY) else without_numbers(reason)


def refused(report: Report) -> list[tuple[str, str]]:
    """What kernels refused and where, the most frequent place first; messages alike but for numbers count as one."""
    alike: dict[str, tuple[str, Counter[str]]] = {}  # without its numbers -> the first message, marks of all
    for message, marks in report.refusals.items():
        alike.setdefault(without_numbers(message), (message, Counter()))[1].update(marks)
    found = []
    for message, sums in list(alike.values())[:_MOST_REFUSALS]:
        places = [f"{mark} x{count}" for mark, count in sums.most_common(_MOST_MARKS)]
        found.append((message, ", ".join([*places, "..."] if len(sums) > _MOST_MARKS else places)))
    return found


def cell(verdict: Verdict) -> str:
    """A verdict in a few words: a mark, the number of cases, the largest error in sigma, budget / |truth|."""
    if verdict.status is Status.HOLDS:
        of = cases(verdict)
        ran = str(of) if verdict.cases_held == of else f"{verdict.cases_held}/{of}"
        return f"✓ {ran:<4} {sigmas(verdict.worst_in_sigma):>5} {short(verdict.sensitivity):>5}".rstrip()
    if verdict.status in FAILING:
        failing = failing_cases(verdict)
        count = f" {failing}/{cases(verdict)}" if failing else ""
        return f"✗ {verdict.status.value}{count}"
    return f"- {verdict.status.value}"


def table(report: Report) -> Table:
    """The verdicts by property and kernel, and by dtype, in the order of the report."""
    found: dict[tuple[str, str], dict[str, Verdict]] = {}
    for verdict in report.verdicts:
        found.setdefault((verdict.property_name, verdict.kernel), {})[verdict.dtype] = verdict
    dtypes = tuple(dict.fromkeys(verdict.dtype for verdict in report.verdicts))
    rows = (Row(property_name, kernel, tuple(map(row.get, dtypes))) for (property_name, kernel), row in found.items())
    return Table(dtypes, len({kernel for _, kernel in found}) > 1, tuple(rows))


def title(fault: ShownFault) -> str:
    """The title of a fault: what it is, and property, kernel and dtype of its leading verdict."""
    lead = fault.lead
    return f"{fault.state} {lead.property_name}, {lead.kernel} in {lead.dtype}"


def goals(report: Report) -> list[Goal]:
    """The coverage goals of a run, those with a minimum first."""
    names = dict.fromkeys([*report.goals_wanted, *report.goals])
    return [Goal(name, report.goals.get(name, 0), report.goals_wanted.get(name, 0)) for name in names]


def device(report: Report) -> str:
    """The device of a run, with the name of its GPU or CPU, and the Python of the kernels where that is another."""
    own = report.environment
    host = f"kernels in {own['host']}" if "host" in own else ""
    where = "; ".join(filter(None, (own.get("gpu") or own.get("cpu"), host)))
    return f"{report.device} ({where})" if where else report.device


def derivatives(report: Report) -> list[str]:
    """A line for each kernel that says what is known of its derivatives, with its name where there are several."""
    several = len(report.kernels) > 1
    return [f"{f'{name}: ' if several else ''}{claims.line(report, name)}" for name in report.kernels]


def contracts(report: Report) -> str:
    """The precision contract of each dtype."""
    return ", ".join(f"{dtype} as {preset}" for dtype, preset in report.contracts.items()) or "none"


def sigmas(worst: float) -> str:
    """An error in sigma; "" for 0."""
    return f"{f'{worst:.1f}' if worst < 100 else short(worst)}σ" if worst else ""


def short(value: float | None) -> str:
    """A number in at most five columns, such as 2e-6."""
    if value is None:
        return ""
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
