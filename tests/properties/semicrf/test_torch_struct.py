"""The semi-CRF agrees with torch-struct where that applies: linear chains, and segments where each length is T."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.semicrf.problems import Known, known
from torch import Tensor

from gradoracle.cases.sample import Sample
from tests.properties.semicrf.samples import WORDS
from tests.properties.semicrf.segmentations import SHIPPED, evidence, kernel

torch_struct = pytest.importorskip(
    "torch_struct", reason='torch-struct is not installed: it comes with the extra "test"'
)


def _potentials(leaves: dict[str, Tensor], longest: int) -> Tensor:
    """[B T K+1 C C] scores by (start, duration, label, label before), 0 where there is no such segment."""
    cum, duration = leaves["cum_scores"], leaves["duration_bias"]
    table = leaves["transition"] if "transition" in leaves else leaves["transition_by_duration"]
    batch, places, labels = cum.shape
    rows = []
    for t in range(places - 1):
        ways = [cum.new_zeros(batch, labels, labels)]
        for k in range(1, longest + 1):
            if t + k >= places:
                ways.append(ways[0])
                continue
            score = cum[:, t + k] - cum[:, t] + duration[k - 1]
            if "proj_start" in leaves:
                score = score + leaves["proj_start"][:, t] + leaves["proj_end"][:, t + k - 1]
            pairs = table if table.dim() == 2 else table[k - 1]
            ways.append(score[:, :, None] + pairs.T)
        rows.append(torch.stack(ways, 1))
    return torch.stack(rows, 1)


# u (16 S + C^2 + B + 8) a position as of closed forms (closed_forms.py): 8 positions, scores S below 16; a
# gradient twice that of each of at most 24 segments
RADIUS = 2.0**-53 * (16 * 16 + 9 + 3 + 8) * 8 * 2 * 24


def _truths(own: Sample, crf: str) -> dict[str, Known]:
    """log Z and its gradients in float64 by torch-struct; its lengths count the label before the first segment."""
    leaves = {n: t.double().requires_grad_() for n, t in own.inputs.items() if t.is_floating_point()}
    potentials = _potentials(leaves, len(own.inputs["duration_bias"]))
    potentials = potentials[:, :, 1] if crf == "LinearChainCRF" else potentials
    log_z = getattr(torch_struct, crf)(potentials, lengths=own.inputs["lengths"] + 1).partition
    found = torch.autograd.grad(log_z, list(leaves.values()), own.cotangents["log_z"].double())
    named = {"log_z": log_z.detach()} | {f"d{name}": gradient for name, gradient in zip(leaves, found, strict=True)}
    return {name: Known(value, torch.full_like(value, RADIUS)) for name, value in named.items()}


@pytest.mark.filterwarnings("ignore:.*arg_constraints")
@pytest.mark.parametrize("words", ["transition", "projections", "all by duration"])
@pytest.mark.parametrize("crf", ["LinearChainCRF", "SemiMarkovCRF"])
def test_log_z_and_gradients_are_those_of_torch_struct(crf: str, words: str) -> None:
    durations, lengths = (1, [8, 3, 5]) if crf == "LinearChainCRF" else (4, [8, 8, 8])
    line = f"case:1 semicrf cpu float32 B=3 T=8 C=3 K={durations} {WORDS[words]} seed=5"
    for subject, outcome in ((SHIPPED, "holds"), (kernel(), "holds"), (kernel("transposed transition"), "violated")):
        own = evidence(line, subject).variant("lengths", lambda s: s.with_inputs(lengths=torch.tensor(lengths)))
        found = {f.outcome.value for f in known(own, "of torch-struct", _truths(own.sample, crf))}
        assert found == {"holds"} if outcome == "holds" else outcome in found
