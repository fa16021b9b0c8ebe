"""The recursion in float64 that the other semi-CRF tests compare with, itself compared with enumeration."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from gradoracle.properties.semicrf.enumeration import Enumeration, enumerate_paths, numbers


class Scores(NamedTuple):
    """What `semicrf` takes; the five that have gradients are the first, None where absent."""

    cum: torch.Tensor
    transition: torch.Tensor
    duration: torch.Tensor
    start: torch.Tensor | None
    end: torch.Tensor | None
    lengths: torch.Tensor

    def wide(self) -> Scores:
        """Return the same in float64, as leaves."""
        return Scores(*(None if x is None else x.detach().double().requires_grad_() for x in self[:5]), self.lengths)

    def leaves(self) -> list[torch.Tensor]:
        return [x for x in self[:5] if x is not None]


def draw(
    B: int = 3, T: int = 11, K: int = 3, C: int = 2, *, per_duration: bool = False, projected: bool = True,
    scale: float = 1.0, seed: int = 0, lengths: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32,
) -> Scores:  # fmt: skip
    """Draw normal scores; the first sequence is whole, the third empty, unless lengths are given."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    cum = torch.cat((torch.zeros(B, 1, C), normal(B, T, C).cumsum(1)), 1)
    transition, duration = normal(*((K, C, C) if per_duration else (C, C))), normal(K, C)
    start, end = (normal(B, T, C), normal(B, T, C)) if projected else (None, None)
    given = lengths or tuple((T, max(1, T - 4), 0)[b % 3] for b in range(B))
    return Scores(
        *(None if x is None else x.to(dtype) for x in (cum, transition, duration, start, end)), torch.tensor(given)
    )


def log_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return logsumexp, with gradients of 0 where all is -inf."""
    peak = x.detach().amax(dim, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    total = (x - peak).exp().sum(dim)
    none = total == 0
    return torch.where(none, -torch.inf, torch.where(none, 1.0, total).log() + peak.squeeze(dim))


def log_z(scores: Scores) -> torch.Tensor:
    """Return log Z [B] by the recursion over alpha, with all durations of a position at once."""
    cum, transition, duration, start, end, lengths = scores
    (B, rows, C), K = cum.shape, duration.shape[0]
    ways = transition if transition.dim() == 3 else transition.expand(K, C, C)
    alpha = [cum.new_zeros(B, C)]
    for t in range(1, rows):
        k = torch.arange(1, min(K, t) + 1)
        before = torch.stack([alpha[t - int(each)] for each in k], 1)  # [B, k, c']
        enter = log_sum(before[:, :, :, None] + ways[k - 1], 2)  # [B, k, c]
        score = cum[:, t, None] - cum[:, t - k] + duration[k - 1]
        if start is not None:
            score = score + start[:, t - k]
        if end is not None:
            score = score + end[:, t - 1, None]
        alpha.append(log_sum(enter + score, 1))
    return log_sum(torch.stack(alpha, 1)[torch.arange(B), lengths.long()], 1)


def enumerated(scores: Scores) -> Enumeration:
    """Return every segmentation and labelling, the label before the first included, with its probability."""
    cum, transition, duration, start, end, lengths = scores
    table = "transition" if transition.dim() == 2 else "transition_by_duration"
    given = {"cum_scores": cum, table: transition, "duration_bias": duration, "proj_start": start, "proj_end": end}
    return enumerate_paths({name: x for name, x in given.items() if x is not None} | {"lengths": lengths})


@pytest.mark.parametrize("per_duration", [False, True])
@pytest.mark.parametrize(("T", "K", "C"), [(1, 1, 1), (1, 4, 3), (4, 2, 3), (5, 4, 2), (6, 3, 2)])
def test_the_recursion_is_the_enumeration(T: int, K: int, C: int, per_duration: bool) -> None:
    scores = draw(3, T, K, C, per_duration=per_duration, seed=T).wide()
    paths, found = enumerated(scores), log_z(scores)
    assert torch.allclose(found, numbers(paths.log_z), rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(found.sum(), scores.leaves())
    for a, b in zip(gradients, paths.gradients(torch.ones(3)).values(), strict=True):
        assert torch.allclose(a, numbers(b), rtol=0, atol=1e-12)
    wrong = scores._replace(duration=scores.duration.flip(0), transition=scores.transition.transpose(-1, -2))
    if K > 1 and T > 1:
        assert not torch.allclose(log_z(wrong), numbers(paths.log_z), rtol=0, atol=1e-3)


def test_forbidden_entries_are_those_of_the_enumeration() -> None:
    scores = draw(2, 5, 3, 2, seed=1)
    scores.transition[0, 1] = scores.duration[1, 0] = scores.end[1, 2, 1] = -torch.inf
    scores = scores.wide()
    assert torch.allclose(log_z(scores), numbers(enumerated(scores).log_z), rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(log_z(scores).sum(), scores.leaves())
    assert all(bool(each.isfinite().all()) for each in gradients)
