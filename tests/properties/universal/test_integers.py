"""Integer outputs, and outputs without a gradient: exact where rounding cannot change them, and no derivative's."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import Sample
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.definition import Undefined, require
from gradoracle.oracle.rounding.integers import integers
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import evidence, judge, judge_on

PROPERTY = "integer_outputs_equal_those_of_the_definition"
CASE = "case:1 peaks cpu {} family=peaks B=6 N=9 x~{} seed=4"


def scored(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = x * w
    return z.argmax(-1), torch.softmax(z, -1), z.sum(-1) > 0


@gradoracle.family(outputs=("at", "p", "positive"))
def peaks(
    x: Float[Tensor, "B N"], w: Float[Tensor, "N"]
) -> tuple[Int[Tensor, "B"], Float[Tensor, "B N"], Bool[Tensor, "B"]]:
    """The index of the largest of x w, softmax(x w), and whether the sum is above 0."""
    return scored(x, w)


@gradoracle.kernel(peaks)
def right(x, w):
    at, p, positive = scored(x, w)
    return at.int(), p, positive


@gradoracle.kernel(peaks)
def off_by_one(x, w):
    at, p, positive = scored(x, w)
    return (at + 1).clamp(max=x.shape[1] - 1), p, positive


@gradoracle.kernel(peaks)
def another_comparison(x, w):
    at, p, positive = scored(x, w)
    return at, p, ~positive


@gradoracle.kernel(peaks)
def of_floats(x, w):
    at, p, positive = scored(x, w)
    return at.float(), p, positive


@gradoracle.kernel(peaks)
def of_another_shape(x, w):
    at, p, positive = scored(x, w)
    return at[:, None], p, positive


@gradoracle.kernel(peaks)
def without_a_flag(x, w):
    return scored(x, w)[:2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_correct_integers_hold_and_derivatives_are_those_of_the_floats(dtype: str) -> None:
    for property_name in (PROPERTY, "forward_matches_the_oracle", "vjp_matches_the_oracle", "hvp_matches_the_oracle"):
        if dtype == "float32" or property_name == PROPERTY:
            assert (
                judge(property_name, CASE.format(dtype, "normal"), right, Oracle(peaks, "float64")).status
                is Status.HOLDS
            )
    tensors = evidence(CASE.format(dtype, "normal"), right, Oracle(peaks, "float64")).vjp()
    assert set(tensors) == {"p", "dx", "dw"}


@pytest.mark.parametrize(
    ("kernel", "tensor", "says"),
    [
        (off_by_one, "at", "at differs from that of the definition"),
        (another_comparison, "positive", "positive differs from that of the definition"),
        (of_floats, "at", "at has dtype float32, expected integers"),
        (of_another_shape, "at", "at has shape (6, 1), expected (6,)"),
        (without_a_flag, "at", "the kernel returned 2 tensors, expected 3: ('at', 'p', 'positive')"),
    ],
)
def test_wrong_integers_are_violations(kernel: gradoracle.Kernel, tensor: str, says: str) -> None:
    found = judge(PROPERTY, CASE.format("float32", "normal"), kernel, Oracle(peaks, "float64"))
    assert found.status is Status.VIOLATED
    assert [(f.tensor, says in f.message) for f in found.findings if f.outcome.value == "violated"] == [(tensor, True)]
    worst = next(f.worst for f in found.findings if f.outcome.value == "violated")
    assert "differs" not in says or (worst is not None and worst.got != worst.true)


def test_any_index_of_equal_scores_is_right_and_one_of_a_smaller_score_is_not():
    found = judge(PROPERTY, CASE.format("float32", "constant w~constant"), off_by_one, Oracle(peaks, "float64"))
    assert found.status is Status.HOLDS and not any(each.undecided for each in found.findings)
    near = evidence(CASE.format("float32", "normal"), right, Oracle(peaks, "float64")).sample
    x = near.inputs["x"].clone()
    x[0, :2], x[0, 2:] = torch.tensor([8.0, 8.0 + 1e-5]) / near.inputs["w"][:2], 0.0
    wrong = {
        (name, chosen): bool(integers(peaks, near.with_inputs(x=x), PRESETS[name])["at"].wrong(at)[0])
        for name in ("bf16", "ieee32", "float64")
        for chosen in (0, 1, 2, 9, -1)
        for at in [(x * near.inputs["w"]).double().argmax(-1).index_fill(0, torch.tensor([0]), chosen)]
    }
    assert {each for each, is_wrong in wrong.items() if not is_wrong} == {
        ("bf16", 0),
        ("bf16", 1),
        ("ieee32", 1),
        ("float64", 1),
    }


def counted(at, x):
    return (at[..., None] == torch.arange(x.shape[-1])).sum((0, 1))


@gradoracle.family(outputs=("p", "at", "of"))
def routed(x: Float[Tensor, "B N"]) -> tuple[Float[Tensor, "B 3"], Int[Tensor, "B 3"], Int[Tensor, "N"]]:
    """The three largest of softmax(x), their indices, and how many rows chose each column."""
    top, at = torch.topk(torch.softmax(x, -1), 3, -1)
    return top, at, counted(at, x)


def router(order, **fields):
    """A kernel that orders columns by a function of x."""

    def call(x):
        at = order(x)[:, :3]
        top = torch.softmax(x, -1).gather(-1, at)
        return top, at, counted(at, x)

    return gradoracle.kernel(routed)(call)


def last_first(x):
    """Descending, of equals the last first."""
    count = x.shape[-1]
    return count - 1 - torch.argsort(x.flip(-1), dim=-1, descending=True, stable=True)


def once_more(x):
    at = last_first(x)
    return torch.cat([at[:, :1], at[:, :1], at[:, 2:]], -1)


def next_best(x):
    return last_first(x).roll(-1, -1)


TIES = "case:1 routed cpu float32 family=routed B=5 N=7 x~{} seed=3"


@pytest.mark.parametrize("recipe", ["ties", "subnormal", "constant", "zeros"])
def test_any_choice_among_values_that_tie_is_right(recipe):
    """A float32 kernel that compares the logits tells subnormal ones apart, which softmax in float64 does not."""
    oracle, case = Oracle(routed, "float64"), TIES.format(recipe)
    assert judge(PROPERTY, case, router(last_first), oracle).status is Status.HOLDS
    for property_name in (
        "forward_matches_the_oracle",
        "vjp_matches_the_oracle",
        "jvp_matches_the_oracle",
        "hvp_matches_the_oracle",
    ):
        for order in (last_first, lambda x: torch.argsort(x, -1, descending=True)):
            assert judge(property_name, case, router(order), oracle).status in (Status.HOLDS, Status.NOT_CHECKED), (
                property_name,
                order,
            )
    assert judge(PROPERTY, case, router(once_more), oracle).status is Status.VIOLATED
    if recipe == "ties":
        assert judge(PROPERTY, case, router(next_best), oracle).status is Status.VIOLATED
        assert judge("forward_matches_the_oracle", case, router(next_best), oracle).status is Status.VIOLATED


def test_gradients_are_wrong_where_the_choice_is_no_tie():
    """Two of five rows tie: the others are decided, and a backward that takes another column there is wrong."""
    oracle, case = Oracle(routed, "float64"), TIES.format("normal")
    own = evidence(case, router(last_first), oracle)
    x = own.sample.inputs["x"].clone()
    x[:2, 1], x[:2, 2] = 3.0, 3.0

    class Mistaken(torch.autograd.Function):
        """Gives the first two gradients of a row to one another's columns."""

        @staticmethod
        def forward(ctx, x, row):
            p = torch.softmax(x, -1)
            at = last_first(x)[:, :3]
            ctx.save_for_backward(at, p)
            ctx.mark_non_differentiable(at)
            ctx.row = row
            return p.gather(-1, at), at, counted(at, x)

        @staticmethod
        def backward(ctx, dtop, *_):
            at, p = (saved.clone() for saved in ctx.saved_tensors)
            at[ctx.row, :2] = at[ctx.row, :2].flip(-1)
            dp = torch.zeros_like(p).scatter(-1, at, dtop)
            return p * (dp - (dp * p).sum(-1, keepdim=True)), None

    for row, status in ((0, Status.HOLDS), (4, Status.VIOLATED)):
        kernel = gradoracle.kernel(routed)(lambda x, row=row: Mistaken.apply(x, row))
        own = evidence(case, kernel, oracle)
        own.sample = own.sample.with_inputs(x=x)
        assert judge_on("vjp_matches_the_oracle", own).status is status


@gradoracle.family(outputs=("y", "at"))
def ordered(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
    """x in ascending order, equals in the order in which they are given, times w."""
    y, at = torch.sort(x, dim=-1, stable=True)
    return y * w, at


def test_of_equals_a_stable_sort_takes_the_first():
    oracle, case = Oracle(ordered, "float64"), "case:1 ordered cpu float32 family=ordered B=4 N=9 x~ties seed=3"

    def kernel(order):
        return gradoracle.kernel(ordered)(lambda x, w: (x.gather(-1, order(x)) * w, order(x)))

    stable = kernel(lambda x: torch.argsort(x, dim=-1, stable=True))
    reverse = kernel(lambda x: x.shape[-1] - 1 - torch.argsort(x.flip(-1), dim=-1, stable=True))
    for property_name in (PROPERTY, "vjp_matches_the_oracle"):
        assert judge(property_name, case, stable, oracle).status is Status.HOLDS
        assert judge(property_name, case, reverse, oracle).status is Status.VIOLATED
        assert judge(property_name, case.replace("ties", "normal"), reverse, oracle).status is Status.HOLDS


def test_a_definition_without_a_float_output_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outputs \['out'\] are integers.* expected at least one of floats"):

        @gradoracle.family
        def largest(x: Float[Tensor, "B N"]) -> Int[Tensor, "B"]:
            return x.argmax(-1)


@gradoracle.family(outputs=("p", "top"))
def with_statistics(x: Float[Tensor, "B N"]) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B"]]:
    """softmax(x), and the largest x, through which nothing is differentiated."""
    return torch.softmax(x, -1), x.amax(-1).detach()


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        p, top = torch.softmax(x, -1), x.amax(-1)
        ctx.save_for_backward(p)
        ctx.mark_non_differentiable(top)
        return p, top

    @staticmethod
    def backward(ctx, g, _):
        (p,) = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True))


@gradoracle.kernel(with_statistics)
def marked(x):
    return Softmax.apply(x)


@gradoracle.kernel(with_statistics)
def differentiated(x):
    return torch.softmax(x, -1), x.amax(-1)


@pytest.mark.parametrize(("kernel", "status"), [(marked, Status.HOLDS), (differentiated, Status.VIOLATED)])
def test_an_output_without_a_gradient_is_detached_in_the_definition(kernel: gradoracle.Kernel, status: Status) -> None:
    line = "case:1 with_statistics cpu float32 family=with_statistics B=6 N=9 seed=4"
    assert judge("forward_matches_the_oracle", line, kernel, Oracle(with_statistics)).status is Status.HOLDS
    assert judge("vjp_matches_the_oracle", line, kernel, Oracle(with_statistics)).status is status


def test_a_definition_that_returns_too_few_tensors_says_so() -> None:
    @gradoracle.family(outputs=("p", "at"))
    def incomplete(x: Float[Tensor, "B N"]) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B"]]:
        return (torch.softmax(x, -1),)

    line = "case:1 incomplete cpu float32 family=incomplete B=6 N=9 seed=4"
    with pytest.raises(Undefined, match="it returns 1 tensor, its annotation says 2"):
        require(incomplete, evidence(line, right, Oracle(incomplete)).sample)


def test_the_line_at_which_a_definition_with_integers_fails_is_its_own() -> None:
    @gradoracle.family(outputs=("p", "at"))
    def counted(x: Float[Tensor, "B N"]) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B"]]:
        return torch.softmax(x, -1) * float(x.sum()), x.argmax(-1)

    sample = evidence("case:1 counted cpu float32 family=counted B=6 N=9 seed=4", right, Oracle(counted)).sample
    with pytest.raises(Undefined, match=r" at test_integers\.py, line \d+"):
        Oracle(counted).graph(sample, Derivative.VJP)


@pytest.mark.parametrize("preset", ["ieee32", "bf16"])
def test_integers_that_are_made_of_whole_numbers_are_decided_but_at_a_boundary(preset: str) -> None:
    """Exponents of scales in e8m0: only powers of two, and their neighbours, may have another one."""

    @gradoracle.family(outputs=("x", "code"))
    def exponents(x: Float[Tensor, "N"]) -> tuple[Float[Tensor, "N"], Int[Tensor, "N"]]:
        e = torch.floor(torch.log2(x.abs())) - 8
        return x, (e + 127).to(torch.int64)

    x = torch.tensor([1.5, 3.0, 0.3, 300.0, 4.0, 2.0])
    found = integers(exponents, Sample({"x": x}, {}, {}, {}), PRESETS[preset])["code"]
    assert found.value.tolist() == [119, 120, 117, 127, 121, 120]
    assert found.undecided.tolist() == [False] * 4 + [True] * 2
    assert found.wrong(torch.tensor([119, 120, 117, 127, 120, 119])).tolist() == [False] * 6
    assert found.wrong(torch.tensor([120, 120, 117, 128, 121, 120])).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
