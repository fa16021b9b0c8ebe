"""The negative log-likelihood of a labelling under a semi-CRF, and a fault that a released one had.

gradoracle check tests/bugs/gold_score.py:second_duration_of_one_position
"""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

import gradoracle
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs


@gradoracle.family(
    outputs=("nll",),
    dims={
        "B": gradoracle.sizes(1, 3),
        "T": gradoracle.sizes(1, 6),
        "C": gradoracle.sizes(1, 4),
        "K": gradoracle.sizes(1, 4),
    },
    domains={"labels": gradoracle.IndexDomain("C")},
)
def likelihood(
    cum_scores: Float[Tensor, "B T+1 C"],
    transition: Float[Tensor, "C C"],
    duration_bias: Float[Tensor, "K C"],
    labels: Int[Tensor, "B T"],
) -> Float32[Tensor, "B"]:
    """log Z less the score of the labelling, cut into segments where the label changes, and after K positions.

    Scores are those of the family semicrf, and the first segment follows each label. In the log domain, T is short.
    """
    places = cum_scores.shape[1]
    alpha = [torch.zeros_like(cum_scores[:, 0])]
    for end in range(1, places):
        sent = [
            torch.logsumexp(alpha[end - k][:, :, None] + transition, 1)
            + (cum_scores[:, end] - cum_scores[:, end - k])
            + duration_bias[k - 1]
            for k in range(1, min(end, duration_bias.shape[0]) + 1)
        ]
        alpha.append(torch.logsumexp(torch.stack(sent), 0))
    log_z = torch.logsumexp(alpha[-1], -1)
    t = torch.arange(places - 1)
    changes = torch.cat([labels[:, :1] >= 0, labels[:, 1:] != labels[:, :-1]], 1)
    run = changes.cumsum(1)
    earlier = (run[:, :, None] == run[:, None, :]) & (t[:, None] > t[None, :])
    within = earlier.sum(2) % duration_bias.shape[0]  # the place of a position in its segment
    begins = within == 0
    ends = torch.cat([begins[:, 1:], labels[:, :1] >= 0], 1)
    steps = (cum_scores[:, 1:] - cum_scores[:, :-1]).gather(2, labels[..., None])[..., 0]
    pairs = transition[labels[:, :-1], labels[:, 1:]]
    after_any = torch.logsumexp(transition, 0)[labels[:, 0]]
    score = steps.sum(1) + torch.where(ends, duration_bias[within, labels], 0.0).sum(1)
    return log_z - (score + torch.where(begins[:, 1:], pairs, 0.0).sum(1) + after_any)


class Likelihood:
    """Right: float64, segment by segment."""

    def __call__(self, cum_scores: Tensor, transition: Tensor, duration_bias: Tensor, labels: Tensor) -> Tensor:
        """[B] float32."""
        given = tuple(x.double() for x in (cum_scores, transition, duration_bias))
        scores = [
            _log_z(cum, *given[1:]) - self.score(cum, *given[1:], row.tolist())
            for cum, row in zip(given[0], labels, strict=True)
        ]
        return torch.stack(scores).float()

    def score(self, cum: Tensor, transition: Tensor, duration: Tensor, labels: list[int]) -> Tensor:
        """Of one labelling; cum is [T+1 C]."""
        score, begin, before = cum.new_zeros(()), 0, None
        for label, run in itertools.groupby(labels):
            left = len(list(run))
            while left:
                k = min(left, len(duration))
                score = score + cum[begin + k, label] - cum[begin, label]
                score = score + duration[self.index(k, len(labels), len(duration)), label]
                score = score + (transition[:, label].logsumexp(0) if before is None else transition[before, label])
                begin, before, left = begin + k, label, left - k
        return score

    def index(self, k: int, positions: int, durations: int) -> int:
        """Where the bias of a segment of k positions stands."""
        return k - 1


def _log_z(cum: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
    alpha = [torch.zeros_like(cum[0])]
    for t in range(1, len(cum)):
        sent = [
            (alpha[t - k][:, None] + transition).logsumexp(0) + cum[t] - cum[t - k] + duration[k - 1]
            for k in range(1, min(t, len(duration)) + 1)
        ]
        alpha.append(torch.stack(sent).logsumexp(0))
    return alpha[-1].logsumexp(0)


class SecondDurationOfOnePosition(Likelihood):
    """flash-semicrf: with T = 1 the score of a labelling read the bias of duration 2, and log Z that of duration 1.

    The likelihood of a labelling then came out above 1.
    """

    def index(self, k: int, positions: int, durations: int) -> int:
        return min(1, durations - 1) if positions == 1 else k - 1


def _declared(own: Likelihood, name: str) -> Kernel:
    return gradoracle.kernel(likelihood, name=name)(own)


right = _declared(Likelihood(), "right")
second_duration_of_one_position = _declared(SecondDurationOfOnePosition(), "second_duration_of_one_position")

BUGS = Bugs(right)
BUGS.add(second_duration_of_one_position, "biobenkj/flash-semicrf@HEAD", "forward_matches_the_oracle", "shift", T="1")
