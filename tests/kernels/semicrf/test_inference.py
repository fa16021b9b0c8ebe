"""alpha, beta and marginals of the semi-CRF: the identities that tie them together, and enumeration."""

from __future__ import annotations

import pytest
import torch
from gradoracle.kernels import semicrf as kernels

from tests.kernels.semicrf.test_kernel import SMALL, computed
from tests.kernels.semicrf.test_reference import Scores, draw, enumerated

CASES = [(path, small, per) for path in kernels.PATHS for small in (False, True) for per in (False, True)]


def arguments(scores: Scores) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor | None]]:
    cum, transition, duration, start, end, lengths = scores
    return (cum, transition, duration, lengths), {"proj_start": start, "proj_end": end}


def found(scores: Scores, path: str, small: bool) -> tuple[kernels.ForwardBackward, kernels.Marginals]:
    tensors, others = arguments(scores)
    options = {**others, "path": path, "blocks": SMALL[path] if small else None}
    return kernels.forward_backward(*tensors, **options), kernels.marginals(*tensors, **options)


def boundary_of(both: kernels.ForwardBackward) -> torch.Tensor:
    """Return P(boundary at t) [B, T+1] from alpha and beta."""
    together = torch.logsumexp(both.alpha.double() + both.beta.double(), 2) + both.alpha_norm + both.beta_norm
    return (together - both.log_z[:, None]).exp()


def marginals_of(scores: Scores) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the marginals of positions, boundaries and segments of the first sequence, by enumeration."""
    (T, C), K = (scores.cum.shape[1] - 1, scores.cum.shape[2]), scores.duration.shape[0]
    position, boundary, segment = (torch.zeros(shape, dtype=torch.float64) for shape in ((T, C), (T + 1,), (T, K, C)))
    boundary[0] = 1.0
    for (t, k, _, c), p in enumerated(scores).marginals(0).items():
        position[t : t + k, c] += float(p)
        boundary[t + k] += float(p)
        segment[t, k - 1, c] += float(p)
    return position, boundary, segment


@pytest.mark.parametrize("path", kernels.PATHS)
def test_marginals_are_those_of_the_enumeration(path: str) -> None:
    scores = draw(2, 6, 3, 2, lengths=(5, 6))
    both, own = found(scores, path, True)
    for a, b in zip((own.position[0], own.boundary[0], own.segment[0]), marginals_of(scores), strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-7, atol=1e-14)
        assert not torch.allclose(a.double().roll(1, 0), b, rtol=1e-2, atol=1e-2)
    assert torch.allclose(boundary_of(both)[0], marginals_of(scores)[1], rtol=1e-6)


@pytest.mark.parametrize(("path", "small", "per_duration"), CASES)
def test_identities(path: str, small: bool, per_duration: bool) -> None:
    scores = draw(3, 21, 4, 3, per_duration=per_duration)
    both, own = found(scores, path, small)
    lengths = scores.lengths
    inside = torch.arange(21) < lengths[:, None]
    within = torch.arange(22) <= lengths[:, None]
    assert torch.allclose(own.position.sum(2), inside.float(), rtol=0, atol=2e-7), "each position is covered once"
    assert not own.position[~inside].any() and not own.boundary[~within].any() and not own.segment[~inside].any()
    assert torch.allclose(own.boundary, torch.where(within, boundary_of(both), 0.0).float(), rtol=1e-6, atol=0)
    assert not torch.allclose(own.boundary[0, 1:-1], torch.ones(20), atol=0.01), "only for K = 1"
    k = torch.arange(1, 5)[:, None]
    segment = own.segment.double()
    assert torch.allclose((segment * k).sum((1, 2, 3)), lengths.double(), rtol=1e-6), "lengths of segments"
    assert torch.allclose(segment.sum((1, 2, 3)), own.boundary[:, 1:].sum(1).double(), rtol=1e-6, atol=1e-12)
    tops = both.alpha.amax(2)[within]
    assert not tops.any() and (both.alpha[~within] == -torch.inf).all() and not both.alpha_norm[~within].any()


def test_gradients_are_sums_of_marginals() -> None:
    scores = draw(1, 30, 3, 2)
    _, own = found(scores, "parallel", True)
    weight = torch.randn(1, generator=torch.Generator().manual_seed(9))
    _, dcum, _, dduration, dstart, dend = computed(scores)
    segment = own.segment.double()
    assert torch.allclose(dduration.double(), weight * segment.sum((0, 1)), rtol=1e-6)
    assert torch.allclose(dstart.double(), weight * segment.sum(2), rtol=1e-6)
    ends = torch.zeros(1, 30, 2, dtype=torch.float64)
    for k in range(1, 4):
        ends[:, k - 1 :] += segment[:, : 30 - k + 1, k - 1]
    assert torch.allclose(dend.double(), weight * ends, rtol=1e-5)
    assert torch.allclose(dcum.double().sum(1), torch.zeros(1, 2, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("path", kernels.PATHS)
def test_forbidden_and_empty_sequences(path: str) -> None:
    scores = draw(2, 6, 3, 2, lengths=(6, 0))
    scores.end[0, 5] = -torch.inf
    both, own = found(scores, path, True)
    assert both.log_z[0] == -torch.inf and both.log_z[1] == torch.tensor(2.0, dtype=torch.float64).log()
    assert not own.boundary[0].any() and not own.position.any() and not own.segment.any()
    assert own.boundary[1].tolist() == [1.0, 0, 0, 0, 0, 0, 0]
    assert both.alpha[1, 0].tolist() == both.beta[1, 0].tolist() == [0.0, 0.0]


def test_segments_are_not_made_unless_asked_for() -> None:
    tensors, others = arguments(draw())
    assert kernels.marginals(*tensors, **others, segments=False).segment is None


def test_norms_keep_their_digits_at_20000_positions() -> None:
    scores = draw(1, 20_000, 3, 2, projected=False)
    both, own = found(scores, "parallel", False)
    assert both.log_z[0] > 1e4 and torch.allclose(boundary_of(both).float(), own.boundary, rtol=2e-6, atol=0)
    rounded = both._replace(alpha_norm=both.alpha_norm.float().double(), beta_norm=both.beta_norm.float().double())
    assert not torch.allclose(boundary_of(rounded).float(), own.boundary, rtol=1e-4, atol=0)
