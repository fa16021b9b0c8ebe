"""Universal properties: what every kernel of every family obeys, in the order in which they are judged.

Those of kind MEMORY are judged after all others, wherever they stand here: they look at every run of the kernel.
"""

from __future__ import annotations

from gradoracle.properties.universal.accesses import (
    a_barrier_stands_between_a_store_and_a_load,
    a_barrier_stands_between_two_stores,
    every_access_stays_inside_its_tensor,
    nothing_is_loaded_before_it_is_written,
    programs_of_a_launch_do_not_race,
)
from gradoracle.properties.universal.architectures import shared_memory_fits_each_architecture
from gradoracle.properties.universal.arguments import bad_arguments_raise_value_error, declared_support_is_accepted
from gradoracle.properties.universal.autotuning import (
    every_autotuned_configuration_matches_the_oracle,
    trials_of_an_autotuner_leave_nothing_behind,
)
from gradoracle.properties.universal.batches import (
    batch_and_head_permutation_equivariance,
    batch_members_are_independent,
    tail_and_padding_invariance,
)
from gradoracle.properties.universal.derivatives import (
    autograd_through_an_explicit_vjp_matches_the_oracle,
    finite_where_the_truth_is_finite,
    forward_matches_the_oracle,
    hvp_matches_the_oracle,
    jvp_matches_the_oracle,
    jvp_of_a_tangent_on_each_input_alone,
    the_outputs_of_an_explicit_jvp_match_the_oracle,
    vjp_matches_the_oracle,
    vjp_of_a_cotangent_on_each_output_alone,
)
from gradoracle.properties.universal.devices import non_default_stream_gives_the_same, second_device_gives_the_same
from gradoracle.properties.universal.differences import (
    hvp_finite_difference_convergence,
    hvp_finite_difference_convergence_is_of_second_order,
)
from gradoracle.properties.universal.integers import integer_outputs_equal_those_of_the_definition
from gradoracle.properties.universal.linearity import (
    hvp_is_symmetric,
    vjp_and_jvp_are_adjoint,
    vjp_is_linear_in_the_cotangent,
)
from gradoracle.properties.universal.mixed_modes import (
    an_absent_double_backward_raises,
    double_backward_in_the_cotangents_gives_the_jvp,
    forward_over_reverse_gives_the_hvp,
    hvp_of_some_inputs_alone,
    reverse_over_forward_gives_hvp_and_vjp,
)
from gradoracle.properties.universal.offsets import offsets_past_2_31_give_the_same
from gradoracle.properties.universal.randomness import (
    a_rounded_value_is_one_of_its_neighbours,
    another_seed_gives_another_mask,
    gradients_are_those_of_the_kept_elements,
    outputs_are_those_of_the_kept_elements,
    rounding_at_random_has_the_mean_of_the_value,
    the_mask_depends_on_the_seed_alone,
    the_mask_of_backward_is_that_of_forward,
    the_same_seed_gives_the_same_numbers,
    the_share_of_kept_elements_is_that_of_the_option,
)
from gradoracle.properties.universal.repetition import (
    backward_twice_with_retain_graph_gives_the_same,
    every_block_configuration_agrees,
    every_subset_of_requires_grad_gives_the_same_gradients,
    first_call_equals_second,
    runs_are_bit_identical,
)
from gradoracle.properties.universal.storage import (
    inputs_and_cotangents_are_unmodified,
    no_memory_is_left_unwritten,
    saved_tensors_are_unmodified,
    writes_stay_inside_their_tensors,
)
from gradoracle.properties.universal.strides import (
    any_layout_of_cotangents_is_right_or_refused,
    any_layout_of_inputs_is_right_or_refused,
)
from gradoracle.properties.universal.widening import definition_is_exact_when_widened

from gradoracle.model.property import Property

UNIVERSAL: tuple[Property, ...] = (
    forward_matches_the_oracle,
    vjp_matches_the_oracle,
    autograd_through_an_explicit_vjp_matches_the_oracle,
    jvp_matches_the_oracle,
    hvp_matches_the_oracle,
    definition_is_exact_when_widened,
    integer_outputs_equal_those_of_the_definition,
    outputs_are_those_of_the_kept_elements,
    gradients_are_those_of_the_kept_elements,
    a_rounded_value_is_one_of_its_neighbours,
    the_mask_of_backward_is_that_of_forward,
    the_same_seed_gives_the_same_numbers,
    the_mask_depends_on_the_seed_alone,
    the_share_of_kept_elements_is_that_of_the_option,
    another_seed_gives_another_mask,
    rounding_at_random_has_the_mean_of_the_value,
    finite_where_the_truth_is_finite,
    vjp_and_jvp_are_adjoint,
    vjp_is_linear_in_the_cotangent,
    the_outputs_of_an_explicit_jvp_match_the_oracle,
    jvp_of_a_tangent_on_each_input_alone,
    vjp_of_a_cotangent_on_each_output_alone,
    every_subset_of_requires_grad_gives_the_same_gradients,
    backward_twice_with_retain_graph_gives_the_same,
    hvp_is_symmetric,
    hvp_of_some_inputs_alone,
    reverse_over_forward_gives_hvp_and_vjp,
    double_backward_in_the_cotangents_gives_the_jvp,
    forward_over_reverse_gives_the_hvp,
    an_absent_double_backward_raises,
    hvp_finite_difference_convergence,
    hvp_finite_difference_convergence_is_of_second_order,
    batch_and_head_permutation_equivariance,
    batch_members_are_independent,
    tail_and_padding_invariance,
    any_layout_of_inputs_is_right_or_refused,
    any_layout_of_cotangents_is_right_or_refused,
    runs_are_bit_identical,
    first_call_equals_second,
    every_block_configuration_agrees,
    every_autotuned_configuration_matches_the_oracle,
    trials_of_an_autotuner_leave_nothing_behind,
    bad_arguments_raise_value_error,
    declared_support_is_accepted,
    shared_memory_fits_each_architecture,
    non_default_stream_gives_the_same,
    second_device_gives_the_same,
    offsets_past_2_31_give_the_same,
    saved_tensors_are_unmodified,
    no_memory_is_left_unwritten,
    writes_stay_inside_their_tensors,
    every_access_stays_inside_its_tensor,
    programs_of_a_launch_do_not_race,
    a_barrier_stands_between_a_store_and_a_load,
    a_barrier_stands_between_two_stores,
    nothing_is_loaded_before_it_is_written,
    inputs_and_cotangents_are_unmodified,
)
