"""The bucket plan: every gradient once, last layer first, under the cap."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.comm.buckets import bucket_cap, plan_buckets, plan_reductions
from train.networks.arch import build_network, float32_gradients, gradient_bytes


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 3000))
def test_buckets_hold_every_gradient_once_from_last_to_first_and_as_many_as_fit(sizes: list[int], cap: int) -> None:
    buckets = plan_buckets(sizes, cap)
    assert [index for bucket in buckets for index in bucket] == list(reversed(range(len(sizes))))
    assert all(sum(sizes[index] for index in bucket) <= cap or len(bucket) == 1 for bucket in buckets)
    for bucket, following in pairwise(buckets):
        assert sum(sizes[index] for index in bucket) + sizes[following[0]] > cap


@pytest.mark.parametrize(
    ("least", "fraction", "cap"),
    [(262144, 0.0, 262144), (262144, 0.25, 300000), (400000, 0.25, 400000), (1, 1, 1200000)],
)
def test_a_share_of_all_gradients_raises_the_cap_but_never_lowers_it(least: int, fraction: float, cap: int) -> None:
    assert bucket_cap([200000, 1000000], least, fraction) == cap


SIZES, SHARES = st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.floats(0, 0.5)


@given(SIZES, st.integers(1, 3000), SHARES, st.integers(1, 64))
def test_every_bucket_is_handed_over_once_and_deferred_ones_after_the_first_layer_in_the_order_of_their_use(
    sizes: list[int], cap: int, share: float, count: int
) -> None:
    plan = plan_reductions(sizes, cap, share)
    assert sorted(plan.order) == sorted(plan_buckets(sizes, cap))
    assert 0 <= plan.num_deferred < len(plan.order)
    assert 0 in plan.order[plan.last_prompt]
    waiting = [min(bucket) for bucket in plan.order[plan.last_prompt + 1 :]]
    assert waiting == sorted(waiting)
    arrivals = plan.arrivals(count)  # in groups that follow the order, and never mix deferred ones in
    groups = [{arrivals[index] for index in bucket} for bucket in plan.order]
    assert all(len(each) == 1 for each in groups)
    numbers = [each.pop() for each in groups]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(numbers[-1] + 1))
    assert set(numbers[: plan.last_prompt + 1]).isdisjoint(numbers[plan.last_prompt + 1 :])


def test_the_share_that_is_deferred_is_about_the_one_asked_for() -> None:
    sizes = [10] * 100
    plan = plan_reductions(sizes, 20, 0.3)
    assert plan.num_deferred == 15
    late = {index for index, group in enumerate(plan.arrivals(1)) if group}
    assert late == set(range(50, 80)), "after the last fifth, which goes at once"
    assert plan_reductions(sizes, 20, 0.0).order == plan_buckets(sizes, 20)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=60), st.integers(1, 3000), SHARES, st.data())
def test_gradients_of_another_type_have_a_bucket_of_their_own_before_the_first_layer(
    sizes: list[int], cap: int, share: float, data: st.DataObject
) -> None:
    apart = data.draw(st.sets(st.integers(1, len(sizes) - 1), min_size=1))
    plan = plan_reductions(sizes, cap, share, apart)
    assert sorted(index for bucket in plan.order for index in bucket) == list(range(len(sizes)))
    assert plan.order[plan.riders] == tuple(sorted(apart, reverse=True))
    assert plan.riders == plan.last_prompt - 1
    assert 0 in plan.order[plan.last_prompt]
    same = plan_reductions([size for index, size in enumerate(sizes) if index not in apart], cap, share)
    assert (len(plan.order), plan.num_deferred) == (len(same.order) + 1, same.num_deferred)


def test_a_float16_step_of_resnet50_takes_one_message_more_than_its_weights_fill_buckets() -> None:
    parameters = build_network("resnet50", num_classes=1000, image_size=224).parameters
    plan = plan_reductions(gradient_bytes(parameters, 2), 16 << 20, 0.0, float32_gradients(parameters, 2))
    assert [parameters[index].name for index in plan.order[0][:2]] == ["classifier_bias", "classifier_weight"]
    kinds = [{parameters[index].kind in ("gamma", "beta") for index in bucket} for bucket in plan.order]
    assert kinds == [{False}, {False}, {False}, {True}, {False}]
    assert float32_gradients(parameters, 4) == frozenset()
