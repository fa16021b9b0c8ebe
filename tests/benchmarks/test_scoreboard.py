"""Scoreboard: what is caught, what is a false alarm, what is kept; wrong kernels and the correct one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from pages import line_with, table_rows
from scoreboard import record, run, styles
from scoreboard.bugs import score_bugs
from scoreboard.correct import BUDGET, CHECK_GRADS, GRADCHECK, prepare, prepare_gradcheck
from scoreboard.page import markdown
from scoreboard.peers import RULES, Compared, Rule
from scoreboard.record import mutations
from scoreboard.run import Asked, best_peer, rows_of, score_family
from scoreboard.styles import (
    LISTED,
    OURS,
    PEERS,
    TINY,
    Listed,
    alone,
    fits,
    our_cases,
    peers_cases,
    tiny_cases,
)
from scoreboard.trial import Fault, alarms, covering, forked
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.host import interpreter
from gradoracle.model.case import Case, Draw
from gradoracle.model.errors import UsageError
from gradoracle.model.kernel import kernel as adopted
from gradoracle.model.sealed_lines import SealedLines
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.sources import sources_of
from gradoracle.mutation.views import SCHEMA
from gradoracle.oracle.truth import Oracle
from gradoracle.project.target import resolve

if interpreter.explain_unavailable() is None:
    interpreter.activate()

ROOT = Path(__file__).resolve().parent.parent.parent
TUTORIAL, BENCH = "Triton tutorial", "KernelBench"


@gradoracle.family(dims={"N": gradoracle.sizes(1, 40)}, dtypes=("float32", "bfloat16"))
def cube(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """x^3."""
    return x * x * x


class Cube(torch.autograd.Function):
    """x^3 with a backward by hand, which ``change`` may spoil."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.save_for_backward(x)
        ctx.change = change
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.change(3 * x * x * g, g), None


def subject(change=lambda dx, g: dx):
    """A kernel with a change to its gradient."""
    return adopted(cube, name="cube")(lambda x: Cube.apply(x, change))


def case(dtype: str = "float32", size: int = 16, seed: int = 1, recipe: str = "normal") -> Case:
    return Case("cube", {"N": size}, dtype, draws={"x": Draw(recipe)}, seed=seed)


def rights(*cases: Case, style: str = OURS, rules=RULES):
    return list(prepare(cube, subject(), Oracle(cube), [(style, each) for each in cases], rules=rules))


def tried(found, kernel, rules=RULES, **fields) -> Fault:
    fault = Fault("a fault", found, kernel, rules=rules)
    for name, value in fields.items():
        setattr(fault, name, value)
    assert list(forked([fault], 1)) == [fault]
    return fault


def caught(fault: Fault, style: str = OURS) -> dict[str, str]:
    return {name: verdict.caught for (own, name), verdict in fault.verdicts.items() if own == style and verdict.caught}


def test_a_rule_that_accepts_or_rejects_everything_catches_nothing_and_the_latter_is_all_alarms():
    yes: Rule[Compared] = Rule("yes", "a.py", "accepts everything", lambda seen: True)
    no: Rule[Compared] = Rule("no", "a.py", "rejects everything", lambda seen: False)
    found = rights(case(), case(seed=2), rules=(yes, no))
    fault = tried(found, subject(lambda dx, g: -dx), (yes, no))
    assert set(caught(fault)) & {"yes", "no"} == set() and BUDGET in caught(fault)
    spoken = {(each["rule"], each["cases"], each["alarms"]) for each in alarms(found)}
    assert {("yes", 2, 0), ("no", 2, 2), (BUDGET, 2, 0)} <= spoken
    assert fault.verdicts[OURS, "yes"].cases == 2 and fault.verdicts[OURS, "no"].cases == 0


def test_a_fault_that_one_peer_misses_another_catches_on_a_case_that_the_correct_kernel_passes():
    first, second = case(), case(seed=2)
    found = rights(first, second)
    fault = tried(found, subject(lambda dx, g: dx + 1e-3))
    assert TUTORIAL not in caught(fault), "1e-3 is within its absolute tolerance"
    assert caught(fault)[BENCH] == str(first) and fault.verdicts[OURS, BENCH].cases == 1
    assert fault.verdicts[OURS, TUTORIAL].cases == 2 and fault.verdicts[OURS, TUTORIAL].seconds > 0
    right = tried(found, subject())
    assert caught(right) == {}, "the correct kernel, on the same cases"


def test_a_rule_that_rejects_the_correct_kernel_on_a_case_catches_nothing_there():
    low = case("bfloat16")  # x + 1e-4 t is x in 16 bits
    found = rights(low, case())
    assert CHECK_GRADS not in found[0].accepts and CHECK_GRADS in found[0].judged
    fault = tried(found, subject(lambda dx, g: -dx))
    assert caught(fault)[CHECK_GRADS] == str(found[1].case) and caught(fault)[BENCH] == str(low)


def test_rules_judge_the_dtypes_and_the_inputs_that_their_own_tests_take():
    found = {each.case: each for each in rights(*(case(dtype) for dtype in ("float32", "bfloat16")), style=PEERS)}
    assert TUTORIAL not in found[case()].judged and BENCH in found[case()].judged
    assert "flash-attention 2" in found[case("bfloat16")].judged and CHECK_GRADS not in found[case()].judged
    assert rights(case(size=4), style=PEERS)[0].judged == {CHECK_GRADS, BUDGET}


def test_a_process_that_dies_or_hangs_is_caught_by_all_and_the_other_cases_are_tried():
    found = rights(case(), case(seed=2))
    begun = time.monotonic()
    for change, how in ((lambda dx, g: os._exit(1), "died"), (lambda dx, g: time.sleep(60), "too long")):
        fault = tried(found, subject(change), limit=2.0)
        assert set(caught(fault).values()) == {str(found[0].case)}
        assert set(caught(fault)) == found[0].accepts and how in fault.verdicts[OURS, BENCH].failure
    assert time.monotonic() - begun < 20


def test_a_kernel_that_raises_is_caught_by_all():
    def raising(dx, g):
        raise ValueError("no such backward")

    fault = tried(rights(case()), subject(raising))
    assert {BENCH, BUDGET, CHECK_GRADS} <= set(caught(fault))
    assert "no such backward" in fault.verdicts[OURS, BENCH].failure


def test_a_gradient_in_the_memory_of_the_cotangent_looks_correct_where_tensors_are_compared():
    fault = tried(rights(case()), subject(lambda dx, g: g.copy_(dx)))
    assert BENCH not in caught(fault) and BUDGET not in caught(fault)


def test_a_mutant_is_installed_in_the_fork_alone():
    factor = [1.0]
    found = rights(case())
    fault = Fault("a fault", found, subject(lambda dx, g: factor[0] * dx), lambda: factor.__setitem__(0, 2.0))
    list(forked([fault], 1))
    assert BENCH in caught(fault) and factor == [1.0]


def test_gradcheck_judges_what_takes_float64_and_says_what_does_not():
    def narrow(x):
        if x.dtype is torch.float64:
            raise ValueError("x is float64: expected float32")
        return Cube.apply(x, lambda dx, g: dx)

    tiny = [(PEERS, each) for each in tiny_cases(cube, subject())]
    assert [each.dtype for _, each in tiny] == ["float64"]
    (wide,) = prepare_gradcheck(cube, subject(), Oracle(cube), tiny)
    (excused,) = prepare_gradcheck(cube, adopted(cube)(narrow), Oracle(cube), tiny)
    assert wide.accepts == {GRADCHECK} and "expected float32" in excused.excuse and not excused.accepts
    assert GRADCHECK in caught(tried([wide], subject(lambda dx, g: 1.1 * dx)), PEERS)
    assert caught(tried([wide], subject()), PEERS) == {}
    (row,) = rows_of([], alarms([excused]))
    assert row["excuse"] == excused.excuse and best_peer([row], PEERS) is None


def test_cases_that_do_not_execute_the_line_are_left_out_and_the_rest_is_capped():
    found = rights(case(), case(seed=2), case(seed=3))
    for number, each in enumerate(found):
        each.lines = {"a.py": frozenset({1} if number else {2})}
    assert covering(found, "a.py", range(1, 2), {}) == found[1:]
    assert covering(found, "a.py", range(1, 2), {OURS: 1}) == found[1:2]
    assert covering(found, "b.py", range(1, 9), {}) == []


@pytest.mark.parametrize("name", LISTED)
def test_the_listed_inputs_fit_their_family(name):
    target = resolve(name)
    own = [each for listed in LISTED[name] for each in listed.cases(name)]
    assert own == peers_cases(target.family, target.kernels[0]) and len(own) >= 5
    assert {alone(PEERS, each) for each in own} == {"", CHECK_GRADS}
    for each in [*own, *tiny_cases(target.family, target.kernels[0])]:
        sample = build(each, target.family.signature, domains=target.family.domains)
        assert all(not tensor.is_floating_point() or tensor.is_contiguous() for tensor in sample.inputs.values())
    assert len(tiny_cases(target.family, target.kernels[0])) == len(TINY[name])


def test_cases_that_a_kernel_does_not_take_or_that_are_large_are_left_out():
    small = adopted(cube, dims={"N": gradoracle.sizes(1, 20)}, dtypes=("float32",))(lambda x: x)
    assert (
        fits(case(), cube, small) and not fits(case(size=21), cube, small) and not fits(case("bfloat16"), cube, small)
    )
    assert [each.dims["N"] for each in peers_cases(cube, small)] == [16, 4]
    large = Case("cube", {"N": 400}, draws={"x": Draw()})
    assert our_cases([large, case(), case(seed=2)], 1) == [case()]


BUGS = """
import gradoracle
import torch
from gradoracle.mutation.bugs import Bug
from jaxtyping import Float
from pages import line_with, table_rows
from torch import Tensor


@gradoracle.family(dims={"N": gradoracle.sizes(1, 40)}, dtypes=("float32",))
def twice(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return 2 * x


@gradoracle.kernel(twice)
def right(x):
    return x + x


@gradoracle.kernel(twice)
def tripled(x):
    return x + x + x


BUGS = (Bug("tripled", "owner/repository#1", tripled, right, "", "forward_matches_the_oracle"),)
"""


def test_real_bugs_are_judged_by_their_property_and_by_the_rules_and_known_the_next_time(tmp_path):
    folder = tmp_path / "bugs"
    folder.mkdir()
    (folder / "twice.py").write_text(BUGS)
    asked = Asked(workers=1, folder=tmp_path / "kept")
    part = score_bugs(folder, asked)
    (fault,) = part["faults"]
    assert fault["ours"]["caught"] and not fault["ours"]["alarm"] and part["our_alarms"] == 0 and part["cases"] > 0
    rows = {(row["style"], row["rule"]): row for row in part["rows"]}
    assert rows[PEERS, BENCH]["caught"] == rows[OURS, GRADCHECK]["within"] == 1 and not part["failed"]
    assert rows[OURS, GRADCHECK]["caught"] == 0, "the gradient of 3x is right"
    again = score_bugs(folder, asked)
    assert again["earlier"] == 1 and again["faults"] == part["faults"] and again["rows"] == part["rows"]
    (folder / "twice.py").write_text(BUGS.replace("x + x + x", "x + x + x + x"))
    assert score_bugs(folder, asked)["earlier"] == 0, "what is known of another source was taken for this one's"
    kept = (tmp_path / "kept" / "bugs.jsonl").read_text().splitlines()
    (tmp_path / "kept" / "bugs.jsonl").write_text("\n".join([*kept, kept[0][:40]]))
    assert score_bugs(folder, asked)["earlier"] == 1, "a line that was cut is left out"
    page = markdown({"parts": [{**part, "took": 1.0}], "workers": 1, "environment": {}, "partial": "no families"})
    headline = line_with(page, "Of 1 real bugs")
    assert "catch 1 (100%)" in headline and "**Partial:** no families" in page
    (short,) = table_rows(page, "family")[:1]
    assert (short["family"], short["wrong kernels"], short["gradoracle"]) == ("real bugs", "1", "1 (100%)")
    (bug,) = table_rows(page, "bug")
    assert list(bug.values())[:3] == ["tripled", "owner/repository#1", "forward_matches_the_oracle"]


@pytest.mark.skipif(interpreter.explain_unavailable() is not None, reason="runs Triton kernels")
def test_faults_that_mutate_scored_are_tried_and_known_the_next_time(tmp_path, monkeypatch):
    small = Listed("B=1 H=1 N=9 D=4 Dv=4", ("float32",), "a small test")
    monkeypatch.setattr(run, "CASES", 6)
    monkeypatch.setattr(styles, "LISTED", {"lightning": (small,)})
    monkeypatch.setattr(styles, "TINY", {"lightning": TINY["lightning"]})
    sources = sources_of(resolve("lightning"))
    everyone = [mutant for source in sources for mutant in mutants_of(source)]
    chosen = choose(everyone, 120, 0)
    negated = next(each for each in chosen if each.operator == "result negated" and each.function == "store_rows")
    faults = [
        {"mutant": key, "fate": fate, "property": property_name, "seconds": 2.0}
        for key, fate, property_name in (
            (negated.key, "killed", "vjp_matches_the_oracle"),
            (next(each.key for each in chosen if each.key != negated.key), "equivalent", ""),
        )
    ]
    report = {"schema": SCHEMA, "target": "lightning", "cases": 126, "mutants": faults}
    (tmp_path / "lightning.json").write_text(json.dumps(report))
    asked = Asked(records=tmp_path, workers=1, folder=tmp_path / "kept")
    part = score_family("lightning", asked)
    (fault,) = part["faults"]
    assert fault["fault"] == negated.key and fault["ours"]["caught"] and part["apart"] == {"equivalent": 1}
    rows = {(row["style"], row["rule"]): row for row in part["rows"]}
    assert rows[PEERS, "flash-linear-attention"]["caught"] == rows[OURS, BUDGET]["caught"] == 1
    assert rows[OURS, BUDGET]["alarms"] == 0 and rows[OURS, BUDGET]["right_cases"] >= 4
    excuse = rows[PEERS, GRADCHECK]["excuse"]
    assert "torch.float64" in excuse and "expected float32" in excuse
    monkeypatch.setattr(run, "_Board", None)  # nothing is prepared where all is known
    assert score_family("lightning", asked)["faults"] == part["faults"]
    page = markdown({"parts": [{**part, "took": 1.0}], "workers": 1, "environment": {}})
    assert "catch 1 (100%)" in line_with(page, "Of 1 mutants") and "1 equivalent" in page
    assert line_with(page, f"({excuse})").startswith("gradcheck ")


def test_bad_input_is_one_sentence(tmp_path):
    asked = Asked(records=tmp_path)
    report = {"schema": SCHEMA, "target": "lse", "cases": 3, "mutants": []}
    for family, text, said in (
        ("flash", None, "family 'flash' is unknown; expected one of sdpa, lse, lightning, semicrf"),
        ("lse", None, "lse.json: no such file or directory; expected the report of gradoracle mutate lse"),
        ("lse", "{", "lse.json is no json"),
        ("lse", "[]", "lse.json is no report of gradoracle mutate lse"),
        ("lse", json.dumps({**report, "target": "sdpa"}), "lse.json is no report of gradoracle mutate lse"),
        ("lse", json.dumps(report), "the record of lse holds none of the 120 faults that seed 0 chooses"),
    ):
        if text is not None:
            (tmp_path / "lse.json").write_text(text)
        with pytest.raises(UsageError) as refused:
            score_family(family, asked)
        assert said in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="holds no bugs"):
        score_bugs(tmp_path, asked)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    with pytest.raises(UsageError, match=r"broken.py cannot be imported: ModuleNotFoundError: No module named"):
        score_bugs(tmp_path, asked)


def test_the_record_of_this_folder_is_that_of_the_last_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"lse.jsonl is missing; run gradoracle mutate lse first"):
        mutations("lse", None)
    lines = [
        {"mark": "old", "mutant": "a", "fate": "killed", "property": "x", "seconds": 1.0},
        {"mark": "new", "mutant": "b", "fate": "survived", "property": "", "seconds": 1.0},
        {"mark": "new", "mutant": "b", "fate": "equivalent", "property": "", "seconds": 1.0},
    ]
    file = tmp_path / ".gradoracle" / "mutation" / "lse.jsonl"
    for line in lines:
        SealedLines(file).add(line)
    found = mutations("lse", None).faults
    assert list(found) == ["b"] and not found["b"].scored
    file.write_text(file.read_text().replace("equivalent", "killed"))
    with pytest.raises(UsageError, match=r"lse.jsonl, line 3 is not what was written"):
        mutations("lse", None)


def test_the_command_says_in_one_sentence_what_it_does_not_take(tmp_path):
    command = importlib.import_module("scoreboard.__main__")
    for words, said in (
        (("--families", "flash"), "--families 'flash' is unknown"),
        (("--mutants", "0"), "--mutants must be at least 1, got 0"),
        (("--table", "--output", str(tmp_path / "none.json")), "expected the json of an earlier run"),
    ):
        with pytest.raises(UsageError) as refused:
            command.main(words)
        assert said in str(refused.value) and "\n" not in str(refused.value)
    program = [sys.executable, "-m", "benchmarks.scoreboard", *words]  # as make scoreboard runs it
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr == f"scoreboard: {refused.value}\n"


def test_what_is_known_is_not_used_once_the_rules_are_others(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    marks = set()
    for text in ("RULES = ()", "RULES = (1,)", "RULES = ()"):
        (tmp_path / "peers.py").write_text(text)
        marks.add(record.mark([], 0))
    assert len(marks) == 2
