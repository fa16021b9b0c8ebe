"""A mutant's fate: killed by a property, or a crash, a hang, a refusal, a birth that fails, which are no kills."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from gradoracle.check.plan import plan, resolved
from gradoracle.model.case import Case, Draw
from gradoracle.mutation import trial as trials
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult
from gradoracle.mutation.sources import Statements, sources_of
from gradoracle.mutation.trial import Rehearsal, Trial, entry
from gradoracle.project.request import Request
from gradoracle.project.target import resolve

SOURCE = """
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"N": gradoracle.sizes(8, 40)}, dtypes=("float32",))
def square(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return x * x


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return halves(x, x.shape[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def halves(x, n):
    if n > 1000:
        return x + 1
    return x * x


@gradoracle.kernel(square)
def kernel(x):
    return Square.apply(x)
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory):
    """The kernel's file, loaded, judged on six cases: what makes a Trial of two pieces of code."""
    return loaded(tmp_path_factory, "squares", SOURCE)


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory):
    """The same in bfloat16."""
    return loaded(tmp_path_factory, "low", SOURCE.replace("float32", "bfloat16"))


def loaded(tmp_path_factory: pytest.TempPathFactory, name: str, text: str):
    folder = tmp_path_factory.mktemp("bench")
    file = folder / f"{name}.py"
    file.write_text(text)
    subjects = resolved(Request(str(file), device="cpu", examples=6, workers=0))
    jobs = list(plan(subjects).jobs)
    kept = tmp_path_factory.mktemp("kept")
    work = entry((subjects.setup, (), str(kept)))
    seen = [work(Rehearsal(job), lambda name, limit: None) for job in jobs]
    known = folder / "known"
    known.write_bytes(pickle.dumps((jobs, seen)))
    (source,) = sources_of(resolve(str(file)))

    def tried(before: str, after: str, function: str, cause: str = "") -> MutantResult:
        assert text.count(before) == 1
        planted = text.replace(before, after)
        line = text[: text.index(before)].count("\n") + 1
        mutant = Mutant(source.shown, "test", function, line, before, after, 0, text, planted, cause)
        order = tuple(n for n, each in enumerate(seen) if line in each.lines[source.file])
        return work(Trial(mutant, source, order, str(known)), lambda name, limit: None)

    return tried


def test_a_property_that_is_violated_kills(bench):
    outcome = bench("return 2 * x * g", "return x * g", "Square.backward")
    assert (outcome.fate, outcome.property_name) == (Fate.KILLED, "vjp_matches_the_oracle")
    assert outcome.tried == 1 and outcome.case.startswith("case:1 square cpu float32")
    assert set(outcome.properties) > {"vjp_matches_the_oracle"}, "the killing case is judged by every property"


WIDENED = "definition_is_exact_when_widened"


def test_a_slip_below_the_rounding_of_the_dtype_is_killed_by_the_widened_kernel_alone(low):
    outcome = low("return 2 * x * g", "return 2.0001 * x * g", "Square.backward")
    assert (outcome.fate, outcome.property_name, outcome.properties) == (
        Fate.KILLED,
        WIDENED,
        (WIDENED,),
    ) and outcome.widened


def test_what_a_property_of_the_kernel_as_written_sees_is_its_kill(low, bench):
    for tried, dtype in ((low, "bfloat16"), (bench, "float32")):
        outcome = tried("return 2 * x * g", "return 2.2 * x * g", "Square.backward")
        assert (outcome.fate, outcome.property_name) == (Fate.KILLED, "vjp_matches_the_oracle") and not outcome.widened
        assert f" {dtype} " in outcome.case


def test_what_changes_nothing_survives_widened_too(low):
    outcome = low("2 * x * g", "x * 2 * g", "Square.backward")
    assert outcome.fate is Fate.SURVIVED and outcome.tried == outcome.covering == 6 and not outcome.widened


def test_a_kill_whose_cause_is_known_is_diagnosed(bench):
    assert bench("return 2 * x * g", "return -2 * x * g", "Square.backward", "sign").diagnosis == "sign"
    assert bench("return 2 * x * g", "return 4 * x * g", "Square.backward", "ratio").diagnosis == "ratio"
    assert bench("return 2 * x * g", "return -2 * x * g", "Square.backward").diagnosis == "", "it costs time"


def test_what_no_case_executes_survives_untried(bench):
    outcome = bench("return x + 1", "return x - 1", "halves")
    assert (outcome.fate, outcome.tried, outcome.reason) == (Fate.SURVIVED, 0, "no case executes its line")


def test_what_changes_nothing_survives_all_cases(bench):
    outcome = bench("2 * x * g", "x * 2 * g", "Square.backward")
    assert outcome.fate is Fate.SURVIVED and outcome.tried == outcome.covering == 6


@pytest.mark.parametrize(
    ("after", "fate", "reason"),
    [
        ("raise KeyError(n)", Fate.CRASHED, "raised KeyError"),
        ("import os; os._exit(3)", Fate.CRASHED, "the process died"),
        ("import os; os.kill(os.getpid(), 11)", Fate.CRASHED, "the process died"),
        ("raise ValueError('no such n')", Fate.REFUSED, "no such n"),
        ("\n    while True: pass", Fate.HUNG, "times the kernel's own time"),
    ],
)
def test_trouble_is_no_kill(bench, monkeypatch, after, fate, reason):
    monkeypatch.setattr(trials, "GRACE", 0.5)
    outcome = bench("return x * x\n\n\n@gradoracle.kernel", f"{after}\n\n\n@gradoracle.kernel", "halves")
    assert (outcome.fate, outcome.property_name) == (fate, "") and reason in outcome.reason, outcome.reason


def test_a_mutant_that_does_not_import_is_stillborn(bench):
    outcome = bench("return x * x\n\n\n@gradoracle.kernel", "return x * x\n\n\n@missing", "halves")
    assert outcome.fate is Fate.STILLBORN
    assert outcome.reason.startswith("NameError: ") and "'missing'" in outcome.reason


def test_the_file_on_disk_and_the_loaded_module_stay_as_they_were(bench):
    bench("return 2 * x * g", "return x * g", "Square.backward")
    (module,) = (m for n, m in sys.modules.items() if n.startswith("gradoracle_target_squares"))
    assert Path(module.__file__).read_text() == SOURCE
    import torch

    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad(module.kernel(x).sum(), x)[0].item() == 6.0


def test_a_statement_spans_its_lines_and_a_compound_one_its_head():
    statements = Statements(
        "def f(a):\n    if (a and\n        b):\n        g(\n            1,\n        )\n    return 2\n"
    )
    head, call, last = range(2, 4), range(4, 7), range(7, 8)
    assert [statements.lines(line) for line in range(2, 8)] == [head, head, call, call, call, last]


def test_a_case_of_normal_values_and_several_elements_shows_by_its_values_what_is_wrong():
    case = Case("f", {"T": 9, "D": 4}, draws={"q": Draw("normal", "sliced")})
    assert trials._is_ordinary(case)
    assert not trials._is_ordinary(case.with_draws(q=Draw("normal:30")))
    assert not trials._is_ordinary(case.with_dims(T=4))
