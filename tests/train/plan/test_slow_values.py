"""Values for which there is a faster one on GPUs: which are named, and with what in their place."""

import re

import pytest

from configs.load import load_both
from train.plan.slow_values import slow_values

FAST = ("cluster.engine.name=torch", "cluster.device=gpu", "cluster.communication={}")
SLOW = ("cluster.engine.precision=float32", "cluster.engine.layout=NCHW", "cluster.communication.backend=gloo")


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (FAST, {}),
        (
            (*FAST, "cluster.ranks_per_node=8", *SLOW),
            {"engine.precision": "float16", "engine.layout": "NHWC", "communication.backend": "nccl"},
        ),
        ((*FAST, "cluster.ranks_per_node=1", SLOW[2]), {}),  # one rank sums nothing
        (("cluster.engine.name=torch", "cluster.engine.layout=NCHW"), {}),  # a CPU
    ],
)
def test_each_slow_value_of_gpus_is_named_with_the_better_one(sets: tuple[str, ...], named: dict[str, str]) -> None:
    lines = slow_values(load_both("imagenet-b256", "laptop", sets)[1])
    found = [re.fullmatch(r"cluster\.(\S+)=\S+ .* ./run.sh plan .*; set cluster\.\1=(\w+)", each) for each in lines]
    assert {match[1]: match[2] for match in found if match} == named
    assert len(lines) == len(named)
