"""Case: plain values in and out of one line, the same tensors everywhere; malformed lines end in one clear sentence."""

from __future__ import annotations

import hashlib
import pickle
import shlex
from dataclasses import replace

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.model.case import Case, Draw, parse
from gradoracle.model.domains import IndexDomain
from gradoracle.model.signature import Signature, read_signature


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M Dv"],
    sinks: Float[Tensor, "H"] | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> tuple[Float[Tensor, "B H T Dv"], Int[Tensor, "B H T"]]: ...


def segments(
    x: Float[Tensor, "T+1 C"], lengths: Int[Tensor, "B"], offsets: Int[Tensor, "B+1"], rows: Int[Tensor, "B K"]
) -> Float[Tensor, "B"]: ...


SDPA = read_signature(attention, outputs=["o", "argmax"])
SEGMENTS = read_signature(segments)
DOMAINS = {
    "lengths": IndexDomain("T", 1, "length"),
    "offsets": IndexDomain("T", 0, "cu_seqlens"),
    "rows": IndexDomain(7, 2),
}
DIMS = {"B": 1, "H": 2, "T": 33, "M": 65, "D": 32, "Dv": 16}
PLAIN = Case("sdpa", DIMS)
DRAWS = {"q": Draw("normal:3", "transposed"), "sinks": Draw(), "do": Draw("ties", "expanded"), "tk": Draw("zeros")}
RICH = Case("sdpa", DIMS, "bfloat16", {"causal": True, "scale": 0.125}, DRAWS, "small", 17)


def digest(sample: Sample) -> str:
    state = hashlib.sha256()
    for group in (sample.inputs, sample.tangents, sample.cotangents):
        for name, tensor in group.items():
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
            width = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
            state.update(tensor.contiguous().view(width).numpy().astype("<i8").tobytes())
    return state.hexdigest()[:16]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (PLAIN.line(), "case:1 sdpa cpu float32 B=1 H=2 T=33 M=65 D=32 Dv=16 seed=0"),
        (
            RICH.line("sdpa:triton", "cuda"),
            "case:1 sdpa:triton cuda bfloat16 B=1 H=2 T=33 M=65 D=32 Dv=16 --causal=true --scale=0.125 "
            "q~normal:3/transposed sinks~normal do~ties/expanded tk~zeros blocks=small seed=17",
        ),
    ],
    ids=["plain", "rich"],
)
def test_the_line_of_a_case_has_its_written_format(line: str, text: str) -> None:
    assert line == text


def test_a_case_prints_as_its_line_and_a_target_elsewhere_names_the_family() -> None:
    assert str(PLAIN) == PLAIN.line()
    assert "family=sdpa" in PLAIN.line("torch.nn.functional:scaled_dot_product_attention")


@pytest.mark.parametrize("target", ["sdpa", "sdpa:flash", "my file.py:run it", "o'clock.py", "a.b:c", "%20", 'ü".py:x'])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", [PLAIN, RICH, replace(RICH, blocks="a b'=~"), replace(PLAIN, seed=2**63 - 1)])
def test_a_line_is_read_back(target: str, device: str, case: Case) -> None:
    line = case.line(target, device)
    assert parse(line) == (target, device, case)
    assert parse(line)[2].line(target, device) == line
    assert "'" not in line and shlex.split(f"'{line}'") == [line]


@pytest.mark.parametrize("value", [None, True, False, 3, -0.1, 1e-30, float("inf"), "", "a b", "it's", '"~/=\\', "é\n"])
def test_every_option_value_is_read_back(value: object) -> None:
    case = PLAIN.with_options(mode=value)
    read = parse(case.line())[2].options["mode"]
    assert read == value and type(read) is type(value)


def test_cases_are_values() -> None:
    twin = Case("sdpa", dict(reversed(DIMS.items())), draws={})
    assert twin == PLAIN and hash(twin) == hash(PLAIN) and {twin: 1}[PLAIN] == 1
    assert pickle.loads(pickle.dumps(RICH)) == RICH
    assert Case("sdpa", DIMS, draws={"q": Draw("normal:1.0")}) == Case("sdpa", DIMS, draws={"q": Draw()})
    changed = RICH.with_dims(T=1).with_options(causal=False).with_draws(q=Draw("ties"))
    assert (changed.dims["T"], changed.options["causal"], changed.draw("q")) == (1, False, Draw("ties"))
    assert RICH.dims["T"] == 33 and RICH.options["causal"] is True and RICH.draw("absent") == Draw()
    with pytest.raises(TypeError):
        RICH.dims["T"] = 2  # type: ignore[index]


def test_continuous() -> None:
    assert PLAIN.continuous
    assert PLAIN.with_draws(q=Draw("normal:30", "sliced"), do=Draw("outlier", "transposed")).continuous
    assert not PLAIN.with_draws(q=Draw("ties")).continuous
    assert not PLAIN.with_draws(do=Draw("largemean")).continuous
    assert not PLAIN.with_draws(tq=Draw("normal", "expanded")).continuous


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "a case line starts with case:1, got an empty line"),
        ("case:2 sdpa cpu float32 T=1 seed=0", "a case line starts with case:1, got 'case:2'"),
        ("sdpa cpu float32 T=1 seed=0", "a case line starts with case:1, got 'sdpa'"),
        ("case:1 sdpa cpu", "ends too soon; expected case:1 TARGET DEVICE DTYPE"),
        ("case:1 sdpa tpu float32 T=1 seed=0", "device 'tpu'; expected cpu or cuda"),
        ("case:1 sdpa cpu float8 T=1 seed=0", "dtype 'float8' is unknown; expected one of float32"),
        ("case:1 sdpa cpu float32 T=1", "lacks its seed"),
        ("case:1 sdpa cpu float32 T=0 seed=0", "dim T has size 0; expected a whole number from 1"),
        ("case:1 sdpa cpu float32 T=-3 seed=0", "dim T as '-3'; expected a whole number"),
        ("case:1 sdpa cpu float32 T=1.5 seed=0", "dim T as '1.5'; expected a whole number"),
        ("case:1 sdpa cpu float32 T= seed=0", "dim T as ''; expected a whole number"),
        (f"case:1 sdpa cpu float32 T={'9' * 5000} seed=0", "; expected a whole number from 1 to 2\\^63 - 1"),
        ("case:1 sdpa cpu float32 causal=true seed=0", "causal as 'true'; .*; an option is written --causal=true"),
        ("case:1 sdpa cuda:1 float32 T=1 seed=0", "device 'cuda:1'; expected cpu or cuda"),
        ("case:1 sdpa cpu float32 T=1 blocks= seed=0", "gives blocks as ''; expected blocks=NAME, or no blocks at all"),
        ("case:1 sdpa cpu float32 T=1 family= seed=0", "gives family as ''; expected family=NAME"),
        ("case:1 sdpa cpu float32 T=1 seed=-1", "seed as '-1'; expected a whole number from 0 to 2\\^63 - 1"),
        ("case:1 sdpa cpu float32 T seed=0", "holds 'T'; expected DIM=SIZE"),
        ("case:1 sdpa cpu float32 =3 seed=0", "holds '=3'; expected DIM=SIZE"),
        ("case:1 sdpa cpu float32 2T=3 seed=0", "holds '2T=3'; expected DIM=SIZE"),
        ("case:1 sdpa cpu float32 T=1 T=1 seed=0", "gives T twice"),
        ("case:1 sdpa cpu float32 q~ties q~ties seed=0", "gives q twice"),
        ("case:1 sdpa cpu float32 --causal=true --causal=true seed=0", "gives causal twice"),
        ("case:1 sdpa cpu float32 T=1 seed=0 seed=0", "gives seed twice"),
        ("case:1 sdpa cpu float32 q~gaussian seed=0", "tensor q: recipe 'gaussian' is unknown"),
        ("case:1 sdpa cpu float32 q~normal:much seed=0", "tensor q: recipe 'normal:much' is invalid"),
        ("case:1 sdpa cpu float32 q~normal/zigzag seed=0", "tensor q: layout 'zigzag' is unknown"),
        ("case:1 sdpa cpu float32 q~normal/ seed=0", "tensor q: layout '' is unknown"),
        ("case:1 sdpa cpu float32 q~ seed=0", "tensor q: recipe '' is unknown"),
        ("case:1 sdpa cpu float32 --causal seed=0", "holds '--causal'; expected DIM=SIZE, --OPTION=VALUE"),
        ("case:1 sdpa cpu float32 --causal=yes seed=0", "option causal as 'yes'; expected null, true, false"),
        ("case:1 sdpa cpu float32 --causal=[1] seed=0", "option causal as '\\[1\\]'; expected null, true"),
        ("case:1 sdpa cpu float32 --scale=NaN seed=0", "option scale has value nan; expected None"),
        ("case:1 sdpa cpu float32 T=1 seed=one", "seed as 'one'; expected a whole number"),
        ("case:1 sdpa cpu float32 T=1 seed=99999999999999999999", "expected a whole number from 0 to 2\\^63"),
    ],
)
def test_malformed_lines_end_in_one_sentence(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse(line)
    assert "\n" not in str(caught.value)


def test_build() -> None:
    sample = build(RICH, SDPA)
    assert list(sample.inputs) == ["q", "k", "v", "sinks"] == list(sample.tangents)
    assert list(sample.cotangents) == ["o"]
    assert sample.options == {"scale": 0.125, "causal": True}
    assert {t.dtype for g in (sample.inputs, sample.tangents, sample.cotangents) for t in g.values()} == {
        torch.bfloat16
    }
    assert [tuple(t.shape) for t in sample.inputs.values()] == [(1, 2, 33, 32), (1, 2, 65, 32), (1, 2, 65, 16), (2,)]
    assert sample.inputs["q"].stride() == (2112, 1056, 1, 33)
    assert sample.cotangents["o"].stride()[1:] == (0, 16, 1)
    assert (sample.tangents["k"] == 0).all() and (sample.tangents["q"] != 0).any()
    assert 2 < sample.inputs["q"].float().std() < 4


def test_what_is_not_drawn_has_its_default() -> None:
    sample = build(PLAIN, SDPA)
    assert list(sample.inputs) == ["q", "k", "v"] and sample.options == {"scale": None, "causal": False}
    for tensor in (*sample.inputs.values(), *sample.tangents.values(), *sample.cotangents.values()):
        assert tensor.is_contiguous() and 0.8 < tensor.std() < 1.2 and (tensor < 0).any()


def test_every_tensor_has_its_own_numbers() -> None:
    sample = build(Case("sdpa", dict.fromkeys(DIMS, 8)), SDPA)
    tensors = [*sample.inputs.values(), *sample.tangents.values(), *sample.cotangents.values()]
    flat = torch.stack([tensor.flatten() for tensor in tensors])
    assert (torch.corrcoef(flat) - torch.eye(len(flat))).abs().max() < 0.15
    other = build(Case("sdpa", dict.fromkeys(DIMS, 8), seed=1), SDPA)
    assert not torch.equal(other.inputs["q"], sample.inputs["q"])
    with_sinks = build(Case("sdpa", dict.fromkeys(DIMS, 8), draws={"sinks": Draw()}), SDPA)
    assert torch.equal(with_sinks.inputs["v"], sample.inputs["v"])


def test_golden_digests() -> None:
    assert digest(build(PLAIN, SDPA)) == "0de200b78ed5e234"
    assert digest(build(RICH, SDPA)) == "c280386130b06849"


def test_integer_inputs() -> None:
    case = Case("segments", {"T": 9, "C": 2, "B": 40, "K": 3})
    sample = build(case, SEGMENTS, domains=DOMAINS)
    lengths, offsets, rows = (sample.inputs[name] for name in ("lengths", "offsets", "rows"))
    assert list(sample.tangents) == ["x"] and lengths.dtype == torch.int64
    assert set(lengths.tolist()) == set(range(1, 10))
    assert offsets.shape == (41,) and offsets[0] == 0 and offsets[-1] == 9 and (offsets.diff() >= 0).all()
    assert set(rows.flatten().tolist()) == set(range(2, 7))
    highest = build(case.with_draws(lengths=Draw("highest", "strided")), SEGMENTS, domains=DOMAINS)
    assert (highest.inputs["lengths"] == 9).all() and highest.inputs["lengths"].stride() == (2,)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("sdpa", {"B": 1}), "no size of dim H, T, D, M, Dv; sdpa needs all of B, H, T, D, M, Dv"),
        (PLAIN.with_dims(N=3), "names dim N, which sdpa does not have; expected some of B, H"),
        (PLAIN.with_options(softcap=1.0), "names option softcap, which .*; expected some of scale, causal"),
        (PLAIN.with_draws(x=Draw()), "names tensor x, which sdpa does not have; expected some of q, k, v, sinks, tq"),
        (PLAIN.with_dims(causal=1), "names dim causal, which sdpa does not have; .*; causal is written --causal=VALUE"),
        (PLAIN.with_dims(do=1), "names dim do, which sdpa does not have; .*; do is written do~RECIPE/LAYOUT"),
        (PLAIN.with_options(T=1), "names option T, which .*; expected some of scale, causal; T is written T=SIZE"),
        (PLAIN.with_options(causal=1), "gives option causal the value 1; expected true or false"),
        (PLAIN.with_options(causal="yes"), 'gives option causal the value "yes"; expected true or false'),
        (PLAIN.with_draws(q=Draw("index")), "tensor q holds floats, recipe 'index' makes integers"),
    ],
)
def test_a_case_that_does_not_fit_says_so(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(case, SDPA)


def test_integer_inputs_that_do_not_fit_say_so() -> None:
    case = Case("segments", {"T": 9, "C": 2, "B": 4, "K": 3})
    with pytest.raises(ValueError, match="integer input lengths of segments has no domain"):
        build(case, SEGMENTS)
    with pytest.raises(ValueError, match="recipe 'normal' makes floats; expected one of index"):
        build(case.with_draws(rows=Draw("normal")), SEGMENTS, domains=DOMAINS)


@pytest.mark.parametrize("wrong", [{"dims": {"T": True}}, {"dims": {"seed": 1}}, {"seed": -1}, {"options": {"a": [1]}}])
def test_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Case(**{"family": "sdpa", "dims": DIMS, **wrong})  # type: ignore[arg-type]


def test_samples_change_by_small_pure_functions() -> None:
    sample = build(RICH, SDPA)
    doubled = sample.with_inputs(q=2 * sample.inputs["q"])
    assert list(doubled.inputs) == list(sample.inputs) and torch.equal(doubled.inputs["q"], 2 * sample.inputs["q"])
    assert doubled.inputs["k"] is sample.inputs["k"]
    zero = sample.with_cotangents(o=torch.zeros_like(sample.cotangents["o"])).with_tangents(k=sample.inputs["k"])
    assert not zero.cotangents["o"].any() and zero.tangents["k"] is sample.inputs["k"] and sample.cotangents["o"].any()
    assert sample.with_options(causal=False).options["causal"] is False
    assert sample.map(torch.Tensor.double).tangents["q"].dtype == torch.float64
    assert digest(sample.to("cpu")) == digest(sample) and sample.to("cpu").inputs["q"] is not sample.inputs["q"]
    with pytest.raises(ValueError, match="the sample has no input x; it has q, k, v, sinks"):
        sample.with_inputs(x=sample.inputs["q"])


def test_an_output_named_as_the_gradient_of_an_input_is_refused() -> None:
    def gradients(g: Float[Tensor, "M"], x: Float[Tensor, "M"]) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
        return g * x, g + x

    said = r"output named 'dx', the name of the gradient of its input 'x'; .* such as 'grad_x'"
    with pytest.raises(TypeError, match=said):
        read_signature(gradients, outputs=("dx", "other"))
    assert [spec.name for spec in read_signature(gradients, outputs=("grad_x", "other")).outputs] == ["grad_x", "other"]


def test_a_signature_with_clashing_names_is_refused() -> None:
    def backward(x: Float[Tensor, "N"], dx: Float[Tensor, "N"]) -> Float[Tensor, "N"]: ...

    with pytest.raises(TypeError, match="input named 'dx', the name of the cotangent"):
        read_signature(backward, outputs=["x"])
    assert isinstance(read_signature(backward), Signature)
