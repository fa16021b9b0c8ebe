"""Wrong kernels of SDPA and the properties that they violate: by hand, and the shipped kernel with a wrong wrapper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from gradoracle.properties import sdpa

from gradoracle.model.kernel import Kernel
from tests.properties.judging import Row
from tests.properties.sdpa.attention import ORACLE, kernel

PLAIN = "case:1 sdpa cpu float32 B=2 H=2 T=9 M=13 D=8 Dv=6 seed=11"
CAUSAL = "case:1 sdpa cpu float32 B=2 H=2 T=9 M=13 D=8 Dv=6 --causal=true seed=12"
BLIND = "case:1 sdpa cpu float32 B=2 H=2 T=17 M=5 D=8 Dv=6 --causal=true seed=13"
TILED = "case:1 sdpa cpu float32 B=1 H=2 T=17 M=33 D=16 Dv=8 blocks=small seed=1"
NARROW = "case:1 sdpa cpu float16 B=1 H=1 T=9 M=21 D=12 Dv=3 --scale=0.25 --causal=true do~positive/sliced seed=3"
APART = "case:1 sdpa cpu float32 B=1 H=2 T=17 M=33 D=16 Dv=8 blocks=small seed=33"  # m, l and o are strided in it

# property, fault, case
CAUGHT = [
    ("outputs_lie_in_the_hull_of_the_values", "output one percent large", BLIND),
    ("outputs_lie_in_the_hull_of_the_values", "blind rows average", BLIND),
    ("ones_transposed_dv_equals_ones_transposed_g", "p not normalised in backward", PLAIN),
    ("ones_transposed_dv_equals_ones_transposed_g", "dv of another head", PLAIN),
    ("q_dq_equals_k_dk", "dk lacks the scale", PLAIN),
    ("v_dv_equals_o_g", "output one percent large", PLAIN),
    ("v_dv_equals_o_g", "dv of another head", PLAIN),
    ("rows_that_see_no_key_are_zero_in_every_derivative", "blind rows average", BLIND),
    ("rows_that_see_no_key_are_zero_in_every_derivative", "aligned top-left", BLIND),
    ("a_query_that_sees_one_key_gives_its_value", "padded key in l", PLAIN),
    ("a_query_that_sees_one_key_gives_its_value", "mask off by one", BLIND),
    ("ones_transposed_hvp_v_is_zero", "hvp not centred", PLAIN),
    ("rows_of_ds_sum_to_zero", "no z", PLAIN),
    ("values_of_one_give_outputs_of_one", "padded key in l", PLAIN),
    ("values_of_one_give_outputs_of_one", "output one percent large", BLIND),
    ("equal_values_leave_q_and_k_no_gradient", "no z", PLAIN),
    ("rows_of_the_tangent_of_p_sum_to_zero", "jvp not centred", PLAIN),
    ("a_common_tangent_of_all_keys_leaves_o", "jvp not centred", PLAIN),
    ("the_tangent_along_v_is_the_attention_of_the_tangent", "v' dropped", PLAIN),
    ("queries_of_zero_average_the_values", "padded key in l", PLAIN),
    ("queries_of_zero_average_the_values", "last key dropped", PLAIN),
    ("shifting_keys_by_a_constant_leaves_o", "padded key in l", PLAIN),
    ("shifting_keys_by_a_constant_leaves_o", "k clamped", PLAIN),
    ("key_permutation", "last key dropped", PLAIN),
    ("repeating_every_key_leaves_o", "last key dropped", PLAIN),
    ("repeating_every_key_leaves_o", "padded key in l", PLAIN),
    ("causal_prefix", "mask off by one", CAUSAL),
    ("causal_prefix", "mask off by one", BLIND),
    ("the_last_query_sees_every_key", "aligned top-left", CAUSAL),
    ("the_scale_folds_into_q", "default scale in backward", PLAIN),
    ("scaling_q_up_and_k_down_leaves_o", "q clamped", PLAIN),
    ("doubling_the_values_doubles_o", "values clamped", PLAIN),
    ("the_saved_statistics_are_those_of_the_scores", "m in base 2", PLAIN),
    ("the_saved_statistics_are_those_of_the_scores", "padded key in l", PLAIN),
    ("l_lies_between_one_and_the_number_of_keys", "m of the whole head", PLAIN),
    ("stats_rebuild_p", "l of another row", PLAIN),
    ("stats_rebuild_p", "m in base 2", CAUSAL),
    ("backward_from_the_saved_statistics_is_the_vjp", "dk lacks the scale", PLAIN),
    ("jvp_from_the_saved_statistics_is_the_jvp", "jvp not centred", PLAIN),
    ("frozen_stats_jvp_vs_autograd_gap", "frozen jvp centred", PLAIN),
    ("frozen_stats_jvp_vs_autograd_gap", "jvp not centred", PLAIN),
    ("frozen_stats_jvp_of_stale_statistics", "stale statistics ignored", PLAIN),
    ("frozen_stats_jvp_of_stale_statistics", "frozen jvp centred", BLIND),
    ("jvp_of_stale_statistics", "stale statistics ignored", PLAIN),
    ("jvp_of_stale_statistics", "centre is a mean", PLAIN),
    ("the_central_difference_converges_to_the_hvp", "one-sided difference", PLAIN),
    ("the_central_difference_converges_to_the_hvp", "wrong step", PLAIN),
]


def _with_half_of_o(*arguments: Any) -> Any:
    o, tangent = SHIPPED.extras["jvp_from_statistics"](*arguments)
    return o / 2, tangent


def _rows_one_apart(inputs: Any, cotangents: Any, kept: Any, options: Any, blocks: Any) -> Any:
    m, *others = kept
    read = torch.as_strided(m, m.shape, (*m.stride()[:2], 1))  # what a kernel without the stride of its rows reads
    return SHIPPED.extras["backward_from_output"](inputs, cotangents, (read, *others), options, blocks)


def _without_causal(entry: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        *rest, options, blocks = arguments
        return entry(*rest, {**options, "causal": False}, blocks)

    return call


def _tangents_crossed(inputs: Any, tangents: Any, options: Any, blocks: Any) -> Any:
    return SHIPPED.jvp(inputs, {**tangents, "k": torch.flip(tangents["k"], (2,))}, options, blocks)


def _other_scale(q: Any, k: Any, v: Any, *, scale: Any = None, **options: Any) -> Any:
    return SHIPPED.call(q, k, v, scale=(scale or q.shape[-1] ** -0.5) * 1.001, **options)


def _half_the_tail(q: Any, k: Any, v: Any, **options: Any) -> Any:
    scale = torch.ones(k.shape[2], dtype=v.dtype)
    scale[k.shape[2] // 16 * 16 :] = 0.5
    return SHIPPED.call(q, k, v * scale[:, None], **options)


def _hvp_off(inputs: Any, tangents: Any, cotangents: Any, options: Any, blocks: Any) -> Any:
    return [product + 1e-3 for product in SHIPPED.hvp(inputs, tangents, cotangents, options, blocks)]


def _large_output(q: Any, k: Any, v: Any, **options: Any) -> Any:
    o = SHIPPED.call(q, k, v, **options)
    return o + 1e-4 * o.detach()


(SHIPPED,) = sdpa.KERNELS
# property, case, the shipped kernel with a wrong wrapper or entry point
WRAPPED: list[tuple[str, str, Kernel]] = [
    ("explicit_entry_points_agree_with_autograd", NARROW, replace(SHIPPED, jvp=_without_causal(SHIPPED.jvp))),
    ("explicit_entry_points_agree_with_autograd", TILED, replace(SHIPPED, jvp=_tangents_crossed)),
    ("explicit_entry_points_agree_with_autograd", NARROW, replace(SHIPPED, hvp=_without_causal(SHIPPED.hvp))),
    ("ones_transposed_hvp_v_is_zero", TILED, replace(SHIPPED, hvp=_hvp_off)),
    ("values_of_one_give_outputs_of_one", TILED, replace(SHIPPED, call=_half_the_tail)),
    ("v_dv_equals_o_g", TILED, replace(SHIPPED, call=_large_output)),
    (
        "backward_from_the_saved_statistics_is_the_vjp",
        NARROW,
        replace(SHIPPED, extras={**SHIPPED.extras, "backward": _without_causal(SHIPPED.extras["backward"])}),
    ),
    (
        "backward_from_the_saved_statistics_is_the_vjp",
        APART,
        replace(SHIPPED, extras={**SHIPPED.extras, "backward_from_output": _rows_one_apart}),
    ),
    (
        "jvp_from_the_saved_statistics_is_the_jvp",
        NARROW,
        replace(SHIPPED, extras={**SHIPPED.extras, "jvp_from_statistics": _with_half_of_o}),
    ),
    ("stats_rebuild_p", TILED, replace(SHIPPED, call=_other_scale)),
]

CORRECT = kernel()
ROWS = [
    *(Row(property_name, fault, line, kernel(fault), [CORRECT], ORACLE) for property_name, fault, line in CAUGHT),
    *(Row(property_name, "in the wrapper", line, wrong, [SHIPPED], ORACLE) for property_name, line, wrong in WRAPPED),
]
