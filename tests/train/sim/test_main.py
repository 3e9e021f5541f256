"""``./run.sh simulate``: a run, a sweep, an optimum, a trace, comparisons with points, and refused input."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_both
from train.sim.__main__ import main
from train.sim.answers import step_trace
from train.sim.constants import load_calibration
from train.sim.forecast import make_scenario, time_step

EXCERPT = Path(__file__).with_name("points.csv")
RECORD = ["abci-b86016", "--cluster", "abci-v100", "--round", "0.6", "--as-recorded"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["simulate", *words]) == 0
    return capsys.readouterr().out


def test_the_record_with_its_efficiency_and_the_cause_of_what_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(capsys, *RECORD, "--json"))
    assert found["time_to_train_s"] == pytest.approx(70.4, rel=0.07)
    assert found["efficiency"] == pytest.approx(0.77, abs=0.04)
    saved = found["step_ms_saved_without"]
    causes = [name for name in saved if not name.startswith("all ")]
    assert causes[0] == "shared uplinks between racks"
    parts = ("forward", "backward", "straggler", "contention", "exposed_communication", "update", "overhead", "input")
    assert sum(found[f"{part}_s"] for part in parts) == pytest.approx(found["step_s"])


def test_a_bigger_machine_at_a_bigger_batch_is_not_always_faster(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, *RECORD, "--sweep", "ranks=256..131072", "--json"))
    assert [row["epochs"] for row in rows] == sorted(row["epochs"] for row in rows)
    gains = [one["time_to_train_s"] / two["time_to_train_s"] for one, two in itertools.pairwise(rows)]
    assert gains[-1] < gains[0] < 2


@pytest.mark.medium
def test_a_search_keeps_to_the_cluster_its_memory_the_deadline_and_the_budget_and_shows_ten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["imagenet-b256", "--cluster", "dgx-a100", "--set", "cluster.node.gpu_memory_bytes=6000000000"]
    rows = json.loads(answer(capsys, *words, "--optimize", "--price", "2", "--json"))
    assert len(rows) == 10
    assert {row["ranks"] for row in rows} <= {8, 16}
    assert max(row["per_rank_batch_size"] for row in rows) == 64  # (6 - 1.5) GB hold 64 images of 70 MB
    assert {row["algorithm"] for row in rows} <= {"auto", "hierarchical"}, "which this program has"
    assert [row["cost"] for row in rows] == pytest.approx([2 * row["accelerator_hours"] for row in rows])
    times, hours = ([row[key] for row in rows] for key in ("time_to_train_s", "accelerator_hours"))
    # Six runs are as fast as the sixth; of these, four are as cheap as the fourth.
    expected = sorted(hours[:6])[:4]
    limits = ["--deadline", str(times[5]), "--budget", str(expected[-1])]
    cheap = json.loads(answer(capsys, *words, "--optimize", *limits, "--json"))
    assert [row["accelerator_hours"] for row in cheap] == expected, "the cheapest in time is the best"
    head = answer(capsys, *words, "--optimize", *limits).splitlines()[0]
    assert head.split()[:6] == ["ranks", "per", "rank", "batch", "size", "global"]


@pytest.mark.parametrize(
    ("row", "message"),
    [("", "there are no rows; a points file has a header"), ("16,64,V100", "no row has a measured rate")],
)
def test_points_that_nobody_measured_are_not_compared(
    row: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(f"n_acc,batch_per_acc,accelerator\n{row}\n")
    assert main(["simulate", "--validate", str(path)]) == 2
    assert f"error: {path}: {message}" in capsys.readouterr().err
    if row:
        assert main(["simulate", "--validate", str(path), "--held-out", "row"]) == 2
        assert "no points can be hidden in the way 'row'" in capsys.readouterr().err


@pytest.mark.medium
def test_held_out_errors_of_rate_and_time_are_summed_up_beside_the_affine_laws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    text = answer(capsys, "--validate", str(EXCERPT), "--held-out", "larger", "--out", str(rows))
    header, *table = (line.split() for line in text.splitlines())
    assert header[:3] == ["hidden", "product", "points"]
    assert table[-1][:2] == ["larger", "all"]
    assert len(rows.read_text().splitlines()) == 1 + int(table[-1][2])
    median_time_percent = float(table[-1][6])
    assert 0 < median_time_percent <= 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digitz"], "did you mean 'digits'"),
        ([], "RECIPE"),
        ([*RECORD, "--sweep", "rank=4"], "did you mean 'ranks'"),
        ([*RECORD, "--sweep", "ranks=4", "--sweep", "ranks=8"], "in one"),
        ([*RECORD, "--algorithm", "rings"], "did you mean 'ring'"),
        (["imagenet-b256", "--cluster", "a100-node", "--optimize", "--deadline", "1"], "no run is within the limits"),
        (["--points", "nowhere.csv"], "cannot be read"),
        (["--calibrate", "configs", "nowhere.csv"], "--calibrate: got several paths, allowed: one points file, or"),
        (["imagenet-b256", "--as-recorded", "--cluster", "a100-node"], "abci-v100"),
        (["imagenet-smoke", "--optimize", "--cluster", "a100-node"], "no convergence reference"),
        ([*RECORD[:3], "--set", "cluster.node.gpu=B20"], "did you mean 'B200'"),
        ([*RECORD[:3], "--set", "cluster.node.gpu=null"], "node.accelerator"),
        (["digits", "--set", "cluster.node.cpu=EPYC 77630"], "did you mean 'EPYC 7763'"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_the_forecast_of_a_machine_elsewhere_is_the_same_whichever_engine_is_installed_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for recipe, cluster in (("abci-b86016", "abci-v100"), ("imagenet-b256", "a100-kubernetes")):
        found = set()
        for installed in ("mxnet", "torch"):
            monkeypatch.setattr("configs.registry.has_engine", lambda name, only=installed: name == only)
            found.add(answer(capsys, recipe, "--cluster", cluster, "--json"))
        assert len(found) == 1


@pytest.mark.medium
@pytest.mark.parametrize(
    "words",
    [["imagenet-b256", "--cluster", "dgx-a100", "--sweep", "ranks=8,16"],
     ["imagenet-b256", "--cluster", "dgx-a100", "--collectives"], ["--validate", str(EXCERPT)]],
)  # fmt: skip
def test_rows_are_drawn_as_a_picture(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, *words, "--plot", str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["simulate", *RECORD, "--trace", str(tmp_path / "file" / "a.json")]) == 2
    assert re.fullmatch(r"error: .*a\.json: cannot be written: .*\n", capsys.readouterr().err)


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
