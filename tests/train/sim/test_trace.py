"""The timeline of a step as a Chrome trace: kernels, reductions and waits."""

import json
from dataclasses import replace

import pytest

from configs.load import load_both
from train.sim.answers import step_trace
from train.sim.constants import load_calibration
from train.sim.forecast import make_scenario, time_step


def test_kernels_reductions_and_waits_of_a_step_meet_where_one_ends_and_the_next_begins() -> None:
    calibration = load_calibration()
    scenario = make_scenario(*load_both("imagenet-b256", "dgx-a100", ["cluster.num_nodes=8"]), calibration)
    software = replace(scenario.software, bucket_bytes=1 << 20, images_per_s=10.0, cycle_s=2e-4)
    slow = replace(scenario, software=software)
    step = time_step(slow, calibration)
    assert min(step.contention_s, step.straggler_s, step.exposed_s, step.overhead_s, step.input_s) > 0
    events = json.loads(step_trace(slow, calibration))["traceEvents"]
    titles = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["ph"] == "M"}
    events = [each for each in events if each["ph"] == "X"]

    def ends_us(category: str) -> tuple[float, float]:
        few = [each for each in events if each["cat"] == category]
        return few[0]["ts"], few[-1]["ts"] + few[-1]["dur"]

    slowest = 1 + step.straggler_s / step.compute_s
    forward_s = slowest * step.forward_s
    backward_s = slowest * step.backward_s + step.contention_s
    at_s = 0.0
    for category, seconds in (
        ("forward", forward_s), ("backward", backward_s), ("exposed communication", step.exposed_s),
        ("negotiation", step.overhead_s), ("update", step.update_s), ("input", step.input_s),
    ):  # fmt: skip
        assert ends_us(category) == pytest.approx((1e6 * at_s, 1e6 * (at_s + seconds)), abs=0.01), category
        at_s += seconds
    waited_until = 1e6 * (forward_s + backward_s + step.exposed_s)
    assert ends_us("allreduce")[1] == pytest.approx(waited_until, abs=0.01)
    buckets = [each for each in events if each["cat"] == "allreduce"]
    for number, (bucket, one) in enumerate(zip(buckets, step.reductions, strict=True)):
        assert bucket["name"] == f"bucket {number} ({one.size_bytes / 1e6:.1f} MB)"
        assert [bucket["ts"], bucket["dur"]] == pytest.approx(
            (1e6 * one.start_s, 1e6 * (one.end_s - one.start_s)), 1e-3
        )
    rows = {each["cat"]: titles[each["pid"], each["tid"]] for each in events}
    assert rows == {
        "forward": "compute (slowest rank)", "backward": "compute (slowest rank)", "update": "compute (slowest rank)",
        "allreduce": "reductions", "exposed communication": "waits", "negotiation": "waits", "input": "waits",
    }  # fmt: skip
