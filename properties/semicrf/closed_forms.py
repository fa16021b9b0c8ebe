"""Log Z and gradients of the semi-CRF where it has a closed form, in float64, and how far those may be off.

With S the sum of the largest sizes of all finite scores of a segment: a step adds at most six scores to one that is
within 2 S of the level, takes an lse of at most C^2 terms and sums over B, which errs by u (16 S + C^2 + B + 8). Log Z
errs by that at each position, and a probability, relative to itself, by twice that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.semicrf.chains import chain
from gradoracle.properties.semicrf.enumeration import enumerate_paths, numbers
from gradoracle.properties.semicrf.problems import LENGTHS, Known, along, extents, of, table_of
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.formats import FORMATS

UNIT = FORMATS["float64"].unit_roundoff

Tensors = Mapping[str, Tensor]


def rounded(value: Tensor) -> Known:
    """A value that is the nearest float64 or the next."""
    size = torch.where(value.isfinite(), value.abs(), 0.0)
    return Known(value, torch.maximum(2 * UNIT * size, (size > 0).double() * FORMATS["float64"].smallest_subnormal))


def of_paths(sample: Sample) -> Mapping[str, Known]:
    """By a sum over all paths in 50 digits."""
    paths = enumerate_paths(sample.inputs)
    gradients = paths.gradients(double(sample.cotangents["log_z"]))
    return {"log_z": rounded(numbers(paths.log_z))} | {of(n): rounded(numbers(g)) for n, g in gradients.items()}


def of_one_position(sample: Sample) -> Mapping[str, Known]:
    """T = 1: a sum over pairs of labels, of the one segment and of what is before it."""
    return _known(sample, _one_position(sample), _one_position(_unsigned(sample), -1.0))


def of_chains(sample: Sample) -> Mapping[str, Known]:
    """K = 1: by the forward algorithm of each sequence."""
    return _known(sample, _chains(sample), _chains(_unsigned(sample), -1.0))


def _unsigned(sample: Sample) -> Sample:
    return sample.with_cotangents(log_z=sample.cotangents["log_z"].abs())


def _known(sample: Sample, values: Tensors, masses: Tensors) -> Mapping[str, Known]:
    """The closed form with its radius; ``masses``: the gradients as sums of sizes."""
    own = {name: double(tensor) for name, tensor in sample.inputs.items() if name != LENGTHS}
    own["cum_scores"] = own["cum_scores"].diff(dim=1)
    size = sum(float(torch.where(t.isfinite(), t.abs(), 0.0).max()) for t in own.values())
    batch, _, labels, _ = extents(sample)
    steps = double(sample.inputs[LENGTHS]).clamp_min(1.0)  # [B]
    error = UNIT * (16 * size + labels**2 + batch + 8)
    radii = {name: 2 * error * float(steps.max()) * mass for name, mass in masses.items()} | {"log_z": error * steps}
    return {name: Known(value, torch.where(value.isfinite(), radii[name], 0.0)) for name, value in values.items()}


def _one_position(sample: Sample, begins: float = 1.0) -> Tensors:
    """Log Z and gradients; dcum counts ends less ``begins`` times what begins."""
    own = {name: double(tensor) for name, tensor in sample.inputs.items()}
    table, g = table_of(sample), double(sample.cotangents["log_z"])
    pairs = own[table] if table == "transition" else own[table][0]
    score = (own["cum_scores"][:, 1] - own["cum_scores"][:, 0] + own["duration_bias"][0])[:, None] + pairs
    for name in along(sample)[1:]:
        score = score + own[name]  # [B c' c]
    full = own[LENGTHS] > 0
    sums = torch.logsumexp(score, (1, 2))
    log_z = torch.where(full, sums, torch.tensor(float(score.shape[2]), dtype=torch.float64).log())
    level = torch.where(sums == -torch.inf, 0.0, sums)
    p = torch.exp(score - level[:, None, None]) * (g * full)[:, None, None]
    labels = p.sum(1)
    found = {"log_z": log_z, of("cum_scores"): torch.stack([-begins * labels, labels], 1)}
    found |= {of(name): labels[:, None] for name in along(sample)[1:]}
    for name, total in ((table, p.sum(0)), ("duration_bias", labels.sum(0))):
        whole = torch.zeros_like(own[name])
        if whole.dim() > total.dim() or name == "duration_bias":
            whole[0] = total
        else:
            whole = total
        found[of(name)] = whole
    return found


def _chains(sample: Sample, begins: float = 1.0) -> Tensors:
    """Log Z and gradients; dcum counts ends less ``begins`` times what begins."""
    own = {name: double(tensor).numpy() for name, tensor in sample.inputs.items()}
    table, weights = table_of(sample), double(sample.cotangents["log_z"]).tolist()
    emission = np.diff(own["cum_scores"], axis=1) + own["duration_bias"][0]
    for name in along(sample)[1:]:
        emission = emission + own[name]
    found = {of(name): np.zeros_like(tensor) for name, tensor in own.items() if name != LENGTHS}
    log_z = []
    for b, (length, g) in enumerate(zip(sample.inputs[LENGTHS].tolist(), weights, strict=True)):
        one = chain(emission[b, :length], own[table].reshape(emission.shape[2], -1))
        log_z.append(one.log_z)
        found[of("cum_scores")][b, 1 : length + 1] += g * one.nodes
        found[of("cum_scores")][b, :length] -= begins * g * one.nodes
        for name in along(sample)[1:]:
            found[of(name)][b, :length] = g * one.nodes
        found[of("duration_bias")][0] += g * one.nodes.sum(0)
        found[of(table)].reshape(emission.shape[2], -1)[:] += g * one.edges
    truths = {name: torch.from_numpy(tensor) for name, tensor in found.items()}
    return {"log_z": torch.tensor(log_z, dtype=torch.float64)} | truths
