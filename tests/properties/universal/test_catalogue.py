"""The catalogue is complete: every property of the universal modules is in UNIVERSAL, once, with all its parts."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from gradoracle.properties.universal import UNIVERSAL
from gradoracle.properties.universal.randomness import OF_RANDOM
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.check.properties import no_such_property, properties_of, universal_properties
from gradoracle.model.case import Case
from gradoracle.model.property import Property, PropertyKind
from gradoracle.model.verdict import Status
from gradoracle.project.target import shipped
from gradoracle.report.catalogue import explanation
from tests.properties.toys import CASE, RIGHT, TOTAL, WEIGH, judged, pick, total, weigh

FOLDER = Path(importlib.import_module("gradoracle.properties").__file__).parent
EVERY = [*UNIVERSAL, *(prop for target in shipped().values() for prop in target.family.properties)]
MODULES = sorted({prop.judge.__module__ for prop in UNIVERSAL})
NEEDS_TRITON = {
    "every_access_stays_inside_its_tensor",
    "programs_of_a_launch_do_not_race",
    "a_barrier_stands_between_a_store_and_a_load",
    "a_barrier_stands_between_two_stores",
    "nothing_is_loaded_before_it_is_written",
}
NEEDS_A_GPU = {"non_default_stream_gives_the_same", "second_device_gives_the_same"}


def named(prop):
    return prop.name


@pytest.mark.parametrize("module", MODULES)
def test_every_property_of_a_universal_module_is_in_the_catalogue(module):
    found = {value.name for value in vars(importlib.import_module(module)).values() if isinstance(value, Property)}
    assert found
    assert found <= {prop.name for prop in UNIVERSAL}


def test_universal_imports_every_module_that_only_universal_properties_can_come_from():
    tree = ast.parse((FOLDER / "universal" / "__init__.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert set(MODULES) <= imported


def test_names_are_unique():
    assert len({prop.name for prop in UNIVERSAL}) == len(UNIVERSAL) >= 31


def test_what_looks_at_memory_is_judged_after_all_that_runs_the_kernel() -> None:
    kinds = [prop.kind is PropertyKind.MEMORY for prop in universal_properties()]
    assert any(kinds) and kinds == sorted(kinds)
    assert {prop.name for prop in universal_properties()} == {prop.name for prop in UNIVERSAL}


@pytest.mark.parametrize("prop", EVERY, ids=named)
def test_each_property_has_its_whole_contract(prop):
    for part in (prop.statement, prop.because, prop.catches, prop.cannot_catch):
        assert len(part) > (30 if prop in UNIVERSAL else 0)
        assert part.endswith((".", "not checked."))
    assert prop.scope in ("case", "kernel")


@pytest.mark.parametrize("prop", UNIVERSAL, ids=named)
def test_what_a_property_cannot_catch_names_properties_that_exist(prop):
    words = {word.strip(".,;:()") for word in f"{prop.catches} {prop.cannot_catch}".split()}
    snake = {word for word in words if word.count("_") >= 2 and word.islower()}
    assert snake <= {known.name for known in UNIVERSAL} | {"save_for_backward", "needs_input_grad"}


def test_the_missions_words_are_in_the_catalogue():
    assert any("HVP finite-difference convergence" in prop.statement for prop in UNIVERSAL)
    assert any(prop.name == "hvp_finite_difference_convergence" for prop in UNIVERSAL)


@pytest.mark.parametrize("prop", UNIVERSAL, ids=named)
@pytest.mark.parametrize("seed", [0, 5])
def test_a_correct_kernel_holds_or_says_why_it_is_not_checked(prop, seed):
    for subject, family in ((RIGHT, pick), (WEIGH, weigh), (TOTAL, total)):
        case = Case(subject.family, CASE.dims, seed=seed)
        if prop.applies(case, subject) is not None or not prop.families.hold(family):
            continue
        if prop.name == "bad_arguments_raise_value_error" and subject is not RIGHT:
            continue  # the others check nothing; test_runs.py looks at such kernels
        result = judged(prop, subject, case, family)
        if prop.name in NEEDS_A_GPU:
            assert (result.status, result.reason) == (Status.NOT_CHECKED, "needs a GPU")
        elif prop.name in NEEDS_TRITON:
            assert result.status is Status.NOT_CHECKED
            assert "no Triton kernel" in result.reason or "needs Triton's interpreter" in result.reason
        elif result.status is not Status.HOLDS:
            assert result.status is Status.NOT_CHECKED, result
            assert "float64" in result.reason or "independent members" in result.reason


def test_a_family_has_no_property_that_its_signature_rules_out_for_every_case():
    @gradoracle.family(outputs=("o",))
    def cube(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return x**3

    @gradoracle.family(outputs=("o",))
    def outer(x: Float[Tensor, "N"], y: Float[Tensor, "M"]) -> Float[Tensor, "N M"]:
        return x[:, None] * y[None, :]

    @gradoracle.family(outputs=("o",))
    def dot(x: Float[Tensor, "N"], y: Float[Tensor, "N"]) -> Float[Tensor, "1"]:
        return (x * y).sum()[None]

    outputs, subsets = (
        "vjp_of_a_cotangent_on_each_output_alone",
        "every_subset_of_requires_grad_gives_the_same_gradients",
    )
    members, whole = "batch_members_are_independent", "integer_outputs_equal_those_of_the_definition"
    families = (cube, outer, dot, weigh, pick)
    missing = {f.name: {prop.name for prop in UNIVERSAL} - {prop.name for prop in properties_of(f)} for f in families}
    alone = {"cube": {outputs, subsets, "hvp_of_some_inputs_alone"}, "outer": {outputs}, "dot": {outputs, members}}
    expected = {**alone, "weigh": {outputs}, "pick": set()}
    random = {prop.name for prop in UNIVERSAL if prop.families is OF_RANDOM}
    assert len(random) == 9
    assert missing == {family: {*properties, *random, whole} for family, properties in expected.items()}
    (own,) = (prop for prop in UNIVERSAL if prop.name == outputs)
    held, unknown = no_such_property(weigh, outputs), no_such_property(weigh, "x*")
    assert held.startswith(outputs) and own.families.words in held and "weigh" in held
    assert "weigh" in unknown and "'x*'" in unknown and "gradoracle list" in unknown
    assert explanation(own, [own.families.words]).endswith(f" {own.families.words}\n")
