r"""Norms, gated norms and activations of fla-core, also fused with a linear layer.

pip install --no-deps fla-core==0.6.0 einops
gradoracle check examples/packages/fla_norms.py:rms_norm --dtype float32
"""

from __future__ import annotations

import fla.modules.activations as activations
import fla.modules.norm.fused_norm_gate as gated_norms
import fla.modules.norm.layernorm as norms
import fla.modules.norm.layernorm_gated as mamba_norms
import torch
from fla.modules.norm.l2norm import l2norm as fla_l2norm
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu, relu, silu
from torch.nn.functional import logsigmoid as torch_logsigmoid

import gradoracle

SIZES = {"B": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 150), "M": gradoracle.sizes(1, 40)}
ROWS = {name: SIZES[name] for name in ("B", "N")}
EPS = 1e-5


def normed(x, rms):
    """x over its root mean square along the last dim, centred before unless ``rms``."""
    x = x if rms else x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def gate(g, activation):
    """The gate of a gated norm."""
    return silu(g) if activation == "swish" else torch.sigmoid(g)


@gradoracle.family(dims=ROWS, outputs=("y", "total"), options={"rms": (False, True)})
def norm(
    x: Float[Tensor, "B N"],
    weight: Float[Tensor, "N"],
    bias: Float[Tensor, "N"],
    residual: Float[Tensor, "B N"],
    *,
    rms: bool = False,
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
    """The norm of x + residual, and that sum."""
    return normed(x + residual, rms) * weight + bias, x + residual


@gradoracle.kernel(norm)
def layer_norm(x, weight, bias, residual, *, rms=False):
    return norms.layer_norm(x, weight, bias, residual, EPS, prenorm=True, is_rms_norm=rms)


@gradoracle.family(dims=ROWS, outputs=("y", "total"))
def root_mean_square_norm(
    x: Float[Tensor, "B N"], weight: Float[Tensor, "N"], bias: Float[Tensor, "N"], residual: Float[Tensor, "B N"]
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
    return normed(x + residual, True) * weight + bias, x + residual


@gradoracle.kernel(root_mean_square_norm)
def rms_norm(x, weight, bias, residual):
    return norms.rms_norm(x, weight, bias, residual, EPS, prenorm=True)


@gradoracle.family(
    dims={"B": SIZES["B"], "G": gradoracle.sizes(1, 3), "N": gradoracle.sizes(1, 60)}, options={"rms": (False, True)}
)
def grouped_norm(
    x: Float[Tensor, "B G N"], weight: Float[Tensor, "G N"], bias: Float[Tensor, "G N"], *, rms: bool = False
) -> Float[Tensor, "B G N"]:
    return normed(x, rms) * weight + bias


@gradoracle.kernel(grouped_norm)
def group_norm(x, weight, bias, *, rms=False):
    flat = (x.flatten(1), weight.flatten(), bias.flatten())
    return norms.group_norm(*flat, eps=EPS, is_rms_norm=rms, num_groups=x.shape[1]).view(x.shape)


@gradoracle.family(dims=SIZES, options={"rms": (False, True)})
def norm_linear(
    x: Float[Tensor, "B N"],
    weight: Float[Tensor, "N"],
    bias: Float[Tensor, "N"],
    linear_weight: Float[Tensor, "M N"],
    linear_bias: Float[Tensor, "M"],
    *,
    rms: bool = False,
) -> Float[Tensor, "B M"]:
    return (normed(x, rms) * weight + bias) @ linear_weight.mT + linear_bias


@gradoracle.kernel(norm_linear)
def layer_norm_linear(x, weight, bias, linear_weight, linear_bias, *, rms=False):
    operation = norms.rms_norm_linear if rms else norms.layer_norm_linear
    return operation(x, weight, bias, linear_weight, linear_bias, eps=EPS)


@gradoracle.family(dims=ROWS)
def unit_norm(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@gradoracle.kernel(unit_norm)
def l2norm(x):
    return fla_l2norm(x, 1e-6)


@gradoracle.family(
    dims=ROWS,
    outputs=("y", "total"),
    options={"activation": ("swish", "sigmoid"), "rms": (False, True)},
)
def gated_norm(
    x: Float[Tensor, "B N"],
    g: Float[Tensor, "B N"],
    weight: Float[Tensor, "N"],
    bias: Float[Tensor, "N"],
    residual: Float[Tensor, "B N"],
    *,
    activation: str = "swish",
    rms: bool = False,
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
    """The norm of x + residual times a gate, and that sum."""
    return (normed(x + residual, rms) * weight + bias) * gate(g, activation), x + residual


@gradoracle.kernel(gated_norm)
def layer_norm_gated(x, g, weight, bias, residual, *, activation="swish", rms=False):
    operation = gated_norms.rms_norm_gated if rms else gated_norms.layer_norm_gated
    return operation(x, g, weight, bias, activation, residual, prenorm=True, eps=EPS)


@gradoracle.family(dims=SIZES, options={"rms": (False, True)})
def gated_norm_linear(
    x: Float[Tensor, "B N"],
    g: Float[Tensor, "B N"],
    weight: Float[Tensor, "N"],
    bias: Float[Tensor, "N"],
    linear_weight: Float[Tensor, "M N"],
    linear_bias: Float[Tensor, "M"],
    *,
    rms: bool = False,
) -> Float[Tensor, "B M"]:
    return ((normed(x, rms) * weight + bias) * silu(g)) @ linear_weight.mT + linear_bias


@gradoracle.kernel(gated_norm_linear)
def layer_norm_swish_gate_linear(x, g, weight, bias, linear_weight, linear_bias, *, rms=False):
    operation = gated_norms.rms_norm_swish_gate_linear if rms else gated_norms.layer_norm_swish_gate_linear
    return operation(x, g, weight, bias, linear_weight, linear_bias, eps=EPS)


@gradoracle.family(dims=ROWS, options={"before": (True, False), "rms": (True, False)})
def mamba_norm(
    x: Float[Tensor, "B N"],
    weight: Float[Tensor, "N"],
    bias: Float[Tensor, "N"],
    z: Float[Tensor, "B N"],
    *,
    before: bool = True,
    rms: bool = True,
) -> Float[Tensor, "B N"]:
    """The norm before the gate z, or of the gated x."""
    if before:
        return (normed(x, rms) * weight + bias) * silu(z)
    return normed(x * silu(z), rms) * weight + bias


@gradoracle.kernel(mamba_norm)
def layernorm_fn(x, weight, bias, z, *, before=True, rms=True):
    operation = mamba_norms.rmsnorm_fn if rms else mamba_norms.layernorm_fn
    return operation(x, weight, bias, z, EPS, None, before)


@gradoracle.family(dims=ROWS)
def sigmoid_of(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.sigmoid(x)


@gradoracle.kernel(sigmoid_of)
def sigmoid(x):
    return activations.sigmoid(x)


@gradoracle.family(dims=ROWS)
def silu_of(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return silu(x)


@gradoracle.kernel(silu_of)
def swish(x):
    return activations.swish(x)


@gradoracle.family(dims=ROWS, options={"temperature": (1.0, 2.0)})
def log_sigmoid_of(x: Float[Tensor, "B N"], *, temperature: float = 1.0) -> Float[Tensor, "B N"]:
    return torch_logsigmoid(x) / temperature


@gradoracle.kernel(log_sigmoid_of)
def logsigmoid(x, *, temperature=1.0):
    return activations.logsigmoid(x, temperature)


@gradoracle.family(dims=ROWS)
def squared_relu(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return relu(x) ** 2


@gradoracle.kernel(squared_relu)
def sqrelu(x):
    return activations.sqrelu(x)


@gradoracle.family(dims=ROWS)
def gelu_by_tanh(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return gelu(x, approximate="tanh")


@gradoracle.kernel(gelu_by_tanh)
def fast_gelu_impl(x):
    return activations.fast_gelu_impl(x)


@gradoracle.family(dims=ROWS)
def elu_plus_one(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.where(x > 0, x + 1, torch.exp(torch.where(x > 0, 0.0, x)))


@gradoracle.kernel(elu_plus_one)
def elu_p1(x):
    return activations.elu_p1(x)


def power(x):
    """x^(3 / (sqrt x + 1)) sigmoid x for x > 0, else x sigmoid x."""
    positive = torch.where(x > 0, x, 1.0)
    grown = torch.exp(3 / (torch.sqrt(positive) + 1) * torch.log(positive))
    return torch.sigmoid(x) * torch.where(x > 0, grown, x)


GATES = {"swiglu": silu, "sigmoidglu": torch.sigmoid, "powglu": power}


@gradoracle.family(dims=ROWS, options={"kind": tuple(GATES)})
def glu(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"], *, kind: str = "swiglu") -> Float[Tensor, "B N"]:
    """A function of x times y."""
    return GATES[kind](x) * y


@gradoracle.kernel(glu)
def gated_linear_unit(x, y, *, kind="swiglu"):
    named = {"swiglu": activations.swiglu, "sigmoidglu": activations.sigmoidglu, "powglu": activations.powglu}
    return named[kind](x, y)


@gradoracle.family(dims=SIZES, options={"kind": tuple(GATES)})
def glu_linear(
    x: Float[Tensor, "B N"],
    y: Float[Tensor, "B N"],
    weight: Float[Tensor, "M N"],
    bias: Float[Tensor, "M"],
    *,
    kind: str = "swiglu",
) -> Float[Tensor, "B M"]:
    return (GATES[kind](x) * y) @ weight.mT + bias


@gradoracle.kernel(glu_linear)
def gated_linear_unit_linear(x, y, weight, bias, *, kind="swiglu"):
    named = {
        "swiglu": activations.swiglu_linear,
        "sigmoidglu": activations.sigmoidglu_linear,
        "powglu": activations.powglu_linear,
    }
    return named[kind](x, y, weight, bias)
