"""The timeline of a step as a Chrome trace: every row that has events has a name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_both
from train.sim.constants import load_calibration
from train.sim.forecast import make_scenario, time_step
from train.sim.output.timeline import _COMPUTE, _REDUCE, _WAIT, _event, _reductions, step_trace, write_trace
from train.sim.step_time import Reduction


def test_the_rows_of_a_trace_have_names(tmp_path: Path) -> None:
    events = [_event("backward", "compute", row, start_s=0.002, duration_s=0.001) for row in (_COMPUTE, _REDUCE, _WAIT)]
    write_trace(tmp_path / "trace.json", events)
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    named = {(each["pid"], each["tid"]): each["args"]["name"] for each in written if each["ph"] == "M"}
    assert {(each["pid"], each["tid"]) for each in written if each["ph"] == "X"} == named.keys()
    assert len(set(named.values())) == 3
    assert (written[-1]["ts"], written[-1]["dur"]) == (2000, 1000)


def test_a_bucket_is_named_by_its_megabytes_and_lasts_from_its_start_to_its_end() -> None:
    (first, second) = _reductions([Reduction(4_200_000, 0.0, 0.01, 0.013), Reduction(99_999, 0.0, 0.013, 0.02)])
    assert (first["name"], second["name"]) == ("bucket 0 (4.2 MB)", "bucket 1 (0.1 MB)")
    assert [(each["ts"], each["dur"]) for each in (first, second)] == [(10_000, 3000), (13_000, 7000)]


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "trace.json"
    with pytest.raises(
        UserError, match=f"{path}: cannot be written: No such file or directory; choose another --trace"
    ):
        write_trace(path, [])


def test_kernels_reductions_and_waits_of_a_step_meet_where_one_ends_and_the_next_begins() -> None:
    calibration = load_calibration()
    scenario = make_scenario(*load_both("imagenet-b256", "dgx-a100", ["cluster.num_nodes=8"]), calibration)
    slow = replace(scenario, software=replace(scenario.software, bucket_bytes=1 << 20, images_per_s=10.0))
    step = time_step(slow, calibration)
    assert min(step.contention_s, step.straggler_s, step.exposed_s, step.overhead_s, step.input_s) > 0
    events = step_trace(slow, calibration)

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
    rows = {each["cat"]: each["tid"] for each in events}
    assert rows["update"] == rows["forward"] == rows["backward"] == _COMPUTE
    assert rows["exposed communication"] == rows["negotiation"] == rows["input"] == _WAIT
