r"""Log-partition functions and marginals of torch-struct's linear-chain and semi-Markov CRFs.

pip install --no-deps torch-struct==0.5
gradoracle check examples/packages/torch_struct_crf.py:linear_chain --dtype float32
"""

from __future__ import annotations

import torch
import torch_struct
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

CHAINS = {"B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 9), "C": gradoracle.sizes(1, 4)}
SEGMENTS = {**CHAINS, "K": gradoracle.sizes(2, 4), "T": gradoracle.sizes(1, 6), "C": gradoracle.sizes(1, 3)}
LENGTHS = {"steps": gradoracle.IndexDomain("T", minimum=1, kind="length")}


def first_whole(steps, longest):
    """The steps of each sequence; the first has all of them, as torch-struct asks for."""
    return torch.where(torch.arange(len(steps)) == 0, longest, steps)


def forward(x, steps):
    """The log-sum-exp of the scores of all prefixes that end with each label, [B C] for each of 0 to T transitions."""
    a = torch.zeros_like(x[:, 0, 0])
    for t in range(x.shape[1]):
        yield a
        a = torch.where((t < steps)[:, None], torch.logsumexp(x[:, t] + a[:, None], -1), a)
    yield a


def backward(x, steps):
    """The log-sum-exp of the scores of all suffixes after each label, [B C] for each of T to 1 transitions."""
    b = torch.zeros_like(x[:, 0, 0])
    for t in reversed(range(x.shape[1])):
        yield b
        b = torch.where((t < steps)[:, None], torch.logsumexp(x[:, t] + b[:, :, None], -2), b)


@gradoracle.family(dims=CHAINS, domains=LENGTHS)
def log_partition(x: Float[Tensor, "B T C C"], steps: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """The log-sum-exp, over all sequences of labels, of the sum of x[t, next label, label]."""
    *_, last = forward(x, first_whole(steps, x.shape[1]))
    return torch.logsumexp(last, -1)


@gradoracle.kernel(log_partition)
def linear_chain(x, steps):
    return torch_struct.LinearChainCRF(x, first_whole(steps, x.shape[1]) + 1).partition


@gradoracle.family(dims=CHAINS, domains=LENGTHS)
def transition_probabilities(x: Float[Tensor, "B T C C"], steps: Int[Tensor, "B"]) -> Float[Tensor, "B T C C"]:
    """The probability that transition t is from one label to another, 0 beyond the steps of a sequence."""
    steps = first_whole(steps, x.shape[1])
    *before, last = forward(x, steps)
    after = list(backward(x, steps))[::-1]
    scores = x + torch.stack(before, 1)[:, :, None] + torch.stack(after, 1)[..., None]
    inside = (torch.arange(x.shape[1]) < steps[:, None])[..., None, None]
    return torch.exp(torch.where(inside, scores - torch.logsumexp(last, -1)[:, None, None, None], -torch.inf))


@gradoracle.kernel(transition_probabilities)
def linear_chain_marginals(x, steps):
    return torch_struct.LinearChainCRF(x, first_whole(steps, x.shape[1]) + 1).marginals


def forward_of_segments(x):
    """The log-sum-exp of the scores of all segmentations of t steps that end with each label, [B C] for t to T."""
    a = [torch.zeros_like(x[:, 0, 0, 0])]
    for t in range(1, x.shape[1] + 1):
        ends = [x[:, t - k, k] + a[t - k][:, None] for k in range(1, min(x.shape[2] - 1, t) + 1)]
        a.append(torch.logsumexp(torch.cat(ends, -1), -1))
    return a


def backward_of_segments(x):
    """The log-sum-exp of the scores of all segmentations of the steps from t on, after each label, [B C] for t to T."""
    steps = x.shape[1]
    b = [torch.zeros_like(x[:, 0, 0, 0])] * (steps + 1)
    for t in reversed(range(steps)):
        starts = [x[:, t, k] + b[t + k][:, :, None] for k in range(1, min(x.shape[2] - 1, steps - t) + 1)]
        b[t] = torch.logsumexp(torch.cat(starts, -2), -2)
    return b


@gradoracle.family(dims=SEGMENTS)
def log_partition_of_segments(x: Float[Tensor, "B T K C C"]) -> Float[Tensor, "B"]:
    """The log-sum-exp, over all segmentations of T steps into segments of 1 to K - 1, of the sum of their x.

    A segment of k steps from t on, after one with another label, scores x[t, k, label, the other].
    """
    return torch.logsumexp(forward_of_segments(x)[-1], -1)


@gradoracle.kernel(log_partition_of_segments)
def semi_markov(x):
    return torch_struct.SemiMarkovCRF(x).partition


@gradoracle.family(dims=SEGMENTS, domains=LENGTHS)
def log_partitions_of_lengths(x: Float[Tensor, "B T K C C"], steps: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """That of the first steps of each sequence."""
    steps = first_whole(steps, x.shape[1])
    totals = torch.logsumexp(torch.stack(forward_of_segments(x), 1), -1)
    return torch.where(torch.arange(x.shape[1] + 1) == steps[:, None], totals, 0.0).sum(-1)


@gradoracle.kernel(log_partitions_of_lengths)
def semi_markov_of_lengths(x, steps):
    return torch_struct.SemiMarkovCRF(x, first_whole(steps, x.shape[1]) + 1).partition


@gradoracle.family(dims=SEGMENTS)
def segment_probabilities(x: Float[Tensor, "B T K C C"]) -> Float[Tensor, "B T K C C"]:
    """The probability of each segment; 0 for those of no step and those that end beyond the last."""
    a, b = forward_of_segments(x), backward_of_segments(x)
    total = torch.logsumexp(a[-1], -1)[:, None, None]
    rows = []
    for t in range(x.shape[1]):
        probable = [torch.zeros_like(x[:, t, 0])]
        for k in range(1, x.shape[2]):
            if t + k < len(b):
                probable.append(torch.exp(a[t][:, None] + x[:, t, k] + b[t + k][..., None] - total))
            else:
                probable.append(torch.zeros_like(x[:, t, k]))
        rows.append(torch.stack(probable, 1))
    return torch.stack(rows, 1)


@gradoracle.kernel(segment_probabilities)
def semi_markov_marginals(x):
    return torch_struct.SemiMarkovCRF(x).marginals
