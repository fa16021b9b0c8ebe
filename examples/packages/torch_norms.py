r"""PyTorch's own norms, softmax and similarity.

gradoracle check examples/packages/torch_norms.py:layer_norm --dtype float32
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 16), "N": gradoracle.sizes(1, 120)}
SCALES = {"eps": (1e-5, 1e-2)}


@gradoracle.family(dims=ROWS)
def probabilities(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@gradoracle.kernel(probabilities)
def softmax(x):
    return F.softmax(x, -1)


def log_sum(x):
    """The log-sum-exp along the last dim."""
    largest = x.amax(-1, keepdim=True).detach()
    return torch.log(torch.exp(x - largest).sum(-1, keepdim=True)) + largest


@gradoracle.family(dims=ROWS)
def log_probabilities(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return x - log_sum(x)


@gradoracle.kernel(log_probabilities)
def log_softmax(x):
    return F.log_softmax(x, -1)


@gradoracle.family(dims=ROWS)
def log_of_sum(x: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    return log_sum(x)[:, 0]


@gradoracle.kernel(log_of_sum)
def logsumexp(x):
    return torch.logsumexp(x, -1)


def centred(x):
    return x - x.mean(-1, keepdim=True)


def over_rms(x, eps):
    """X divided by its root mean square along the last dim."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@gradoracle.family(dims={**ROWS, "N": gradoracle.sizes(2, 120)}, options=SCALES)
def layer(
    x: Float[Tensor, "B N"], w: Float[Tensor, "N"], b: Float[Tensor, "N"], *, eps: float = 1e-5
) -> Float[Tensor, "B N"]:
    return over_rms(centred(x), eps) * w + b


@gradoracle.kernel(layer)
def layer_norm(x, w, b, *, eps=1e-5):
    return F.layer_norm(x, w.shape, w, b, eps)


@gradoracle.family(dims=ROWS, options=SCALES)
def root_mean_square(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, eps: float = 1e-5) -> Float[Tensor, "B N"]:
    return over_rms(x, eps) * w


@gradoracle.kernel(root_mean_square)
def rms_norm(x, w, *, eps=1e-5):
    return F.rms_norm(x, w.shape, w, eps)


GROUPS = {
    "B": gradoracle.sizes(1, 5),
    "G": gradoracle.sizes(1, 3),
    "C": gradoracle.sizes(1, 4),
    "N": gradoracle.sizes(2, 40),
}


@gradoracle.family(dims=GROUPS, options=SCALES)
def groups(
    x: Float[Tensor, "B G C N"], w: Float[Tensor, "G C"], b: Float[Tensor, "G C"], *, eps: float = 1e-5
) -> Float[Tensor, "B G C N"]:
    """Each group of channels centred and divided by its root mean square."""
    y = over_rms(centred(x.flatten(2)), eps)
    return y.view(x.shape) * w[..., None] + b[..., None]


@gradoracle.kernel(groups)
def group_norm(x, w, b, *, eps=1e-5):
    return F.group_norm(x.flatten(1, 2), x.shape[1], w.flatten(), b.flatten(), eps).view(x.shape)


@gradoracle.family(dims=ROWS, options={"p": (2.0, 1.0)})
def unit(x: Float[Tensor, "B N"], *, p: float = 2.0) -> Float[Tensor, "B N"]:
    return x / torch.clamp(torch.linalg.vector_norm(x, p, -1, keepdim=True), min=1e-12)


@gradoracle.kernel(unit)
def normalize(x, *, p=2.0):
    return F.normalize(x, p)


@gradoracle.family(dims=ROWS)
def cosine(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    norms = (torch.clamp(torch.linalg.vector_norm(each, dim=-1), min=1e-8) for each in (x, y))
    return (x * y).sum(-1) / (next(norms) * next(norms))


@gradoracle.kernel(cosine)
def cosine_similarity(x, y):
    return F.cosine_similarity(x, y, -1)


IMAGES = {"B": gradoracle.sizes(1, 6), "C": gradoracle.sizes(1, 6), "N": gradoracle.sizes(2, 40)}


@gradoracle.family(dims=IMAGES)
def batch(x: Float[Tensor, "B C N"], w: Float[Tensor, "C"], b: Float[Tensor, "C"]) -> Float[Tensor, "B C N"]:
    """Each channel over the members and positions, as in training."""
    channels = x.transpose(0, 1).flatten(1)
    y = over_rms(centred(channels), 1e-5).view(x.shape[1], x.shape[0], -1).transpose(0, 1)
    return y * w[:, None] + b[:, None]


@gradoracle.kernel(batch)
def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True, eps=1e-5)


@gradoracle.family(dims=IMAGES)
def instance(x: Float[Tensor, "B C N"], w: Float[Tensor, "C"], b: Float[Tensor, "C"]) -> Float[Tensor, "B C N"]:
    """Each channel of each member over its positions."""
    return over_rms(centred(x), 1e-5) * w[:, None] + b[:, None]


@gradoracle.kernel(instance)
def instance_norm(x, w, b):
    return F.instance_norm(x, weight=w, bias=b, eps=1e-5)
