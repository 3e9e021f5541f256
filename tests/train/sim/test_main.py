"""``./run.sh simulate``: a run, a sweep, an optimum, a trace, comparisons with points, and refused input."""

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.errors import ConfigError
from train.sim.__main__ import _parser, main
from train.sim.constants import load_calibration
from train.sim.fit.hiding import KINDS
from train.sim.fit.this_machine import load_description
from train.sim.option_checks import check_options
from train.sim.output.forecast_text import _BASES, _LACKS

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


def test_the_text_says_rate_interval_parts_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, *RECORD, "--price", "2")
    for word in ("images/s", "90% interval", "efficiency", "exposed communication", "time to train", "cost"):
        assert word in text


def test_a_hundred_points_up_to_4096_ranks_take_seconds_and_grow(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    rows = json.loads(answer(capsys, *RECORD, "--sweep", "ranks=64..4096/100", "--json"))
    assert time.process_time() - start < 10
    assert len(rows) == 100
    assert rows[-1]["images_per_s"] > 40 * rows[0]["images_per_s"]
    steps = [row["step_s"] for row in rows]
    assert max(later / earlier for earlier, later in itertools.pairwise(steps)) < 1.1


def test_a_bigger_machine_at_a_bigger_batch_is_not_always_faster(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, *RECORD, "--sweep", "ranks=256..131072", "--json"))
    assert [row["epochs"] for row in rows] == sorted(row["epochs"] for row in rows)
    gains = [one["time_to_train_s"] / two["time_to_train_s"] for one, two in itertools.pairwise(rows)]
    assert gains[-1] < gains[0] < 2


def test_a_sweep_of_two_values_gives_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, *RECORD, "--sweep", "batch=32,42", "--sweep", "algorithm=ring,tree", "--json"))
    combinations = list(itertools.product(("32", "42"), ("ring", "tree")))
    assert [(row["batch"], row["algorithm"]) for row in rows] == combinations


@pytest.mark.slow
def test_the_optimum_keeps_to_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    fastest = json.loads(answer(capsys, *RECORD, "--optimize", "--json"))
    cheapest = json.loads(answer(capsys, *RECORD, "--optimize", "--deadline", "200", "--json"))
    assert fastest[0]["time_to_train_s"] == min(row["time_to_train_s"] for row in fastest)
    assert all(row["time_to_train_s"] <= 200 for row in cheapest)
    assert cheapest[0]["accelerator_hours"] < fastest[0]["accelerator_hours"]


def test_a_trace_has_every_kernel_every_bucket_and_the_steps_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.json"
    found = json.loads(answer(capsys, *RECORD, "--json", "--trace", str(path)))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sum(event["cat"] == "allreduce" for event in events) == 4
    assert sum(event["cat"] == "forward" for event in events) > 100
    end = max(event["ts"] + event["dur"] for event in events)
    assert end == pytest.approx(1e6 * found["step_s"], rel=1e-3)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "train.sim", "simulate", "--points", str(EXCERPT), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as told:
        assert told.stdout is not None
        assert told.stderr is not None
        told.stdout.close()
        assert told.stderr.read() == b""
    assert told.returncode == -signal.SIGPIPE


def test_points_give_one_row_each_with_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, "--points", str(EXCERPT), "--json"))
    keys = {"n_acc", "batch_per_acc", "predicted_img_per_s", "low", "high", "predicted_time_to_train_s"}
    assert len(rows) == len(EXCERPT.read_text().splitlines()) - 1
    assert all(keys <= row.keys() for row in rows)


def test_the_table_of_points_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer(capsys, "--points", str(EXCERPT)).splitlines()
    assert len(lines) == len(EXCERPT.read_text().splitlines())
    assert lines[0].split()[:5] == ["mlperf_round", "submitter", "system", "accelerator", "n_acc"]


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


@pytest.mark.parametrize(("word", "kinds"), [("all", tuple(KINDS)), ("row", ("row",))])
def test_all_ways_of_hiding_are_asked_for_by_one_word(
    word: str, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("train.sim.simulate.hold_out", lambda *given: asked.append(given[-1]))
    assert main(["simulate", "--validate", str(EXCERPT), "--held-out", word]) == 2
    assert asked == [kinds]
    assert f"no points can be hidden in the way '{word}'" in capsys.readouterr().err


def test_validation_counts_what_falls_inside_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "validation.png"
    text = answer(capsys, "--validate", str(EXCERPT), "--plot", str(picture))
    assert "are inside their interval" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


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


def test_every_allreduce_is_compared_by_ranks_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, *RECORD, "--collectives", "--json"))
    assert {"ring", "torus", "halving-doubling", "tree", "hierarchical", "switch", "ps:8"} <= rows[0].keys()
    assert len({row["best"] for row in rows}) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digitz"], "did you mean 'digits'"),
        ([], "RECIPE"),
        ([*RECORD, "--sweep", "rank=4"], "did you mean 'ranks'"),
        ([*RECORD, "--sweep", "ranks=none"], "numbers above 0"),
        ([*RECORD, "--algorithm", "rings"], "did you mean 'ring'"),
        ([*RECORD, "--optimize", "--deadline", "1"], "no run is within the limits"),
        (["--points", "nowhere.csv"], "cannot be read"),
        (["--calibrate", "configs", "nowhere.csv"], "--calibrate: got several paths, allowed: one points file, or"),
        (["--calibrate", "a.csv", "b.csv"], "--calibrate: got several paths, allowed: one points file, or folders"),
        ([*RECORD[:3], "--round", "banana"], "--round: got 'banana'"),
        ([*RECORD, "--input-rate", "-5"], "--input-rate"),
        ([*RECORD, "--sweep", "batch=0.001"], "whole numbers above 0"),
        ([*RECORD, "--sweep", "batch=1e12"], "whole numbers above 0"),
        ([*RECORD, "--sweep", "ranks=1..99999999"], "up to"),
        ([*RECORD, "--sweep", "uplink_share=2"], "up to 1"),
        ([*RECORD, "--sweep", "algorithm=rings"], "did you mean 'ring'"),
        ([*RECORD, "--deadline", "9"], "--deadline: allowed only together with --optimize"),
        ([*RECORD, "--optimize", "--sweep", "ranks=4"], "got --sweep and --optimize, allowed: one of them at a time"),
        ([*RECORD, "--startup"], "got --startup and RECIPE"),
        (["--validate", "a.csv", "--held-out", "row", "--worth"], "got --held-out and --worth"),
        ([*RECORD, "--plot", "a.png"], "--plot: allowed only together with --sweep or --optimize"),
        (["--points", "a.csv", "--trace", "a.json"], "--trace: allowed only together with RECIPE"),
        ([*RECORD, "--out", "a.csv"], "--out: allowed only together with --calibrate"),
        (["--validate", "a.csv", "--held-out", "row", "--out", "/nowhere/a.csv"], "--out: got '/nowhere/a.csv'"),
        (["imagenet-b256", "--as-recorded", "--cluster", "a100-node"], "abci-v100"),
        (["imagenet-smoke", "--optimize", "--cluster", "a100-node"], "no convergence reference"),
        ([*RECORD[:3], "--set", "cluster.node.gpu=B20"], "did you mean 'B200'"),
        ([*RECORD[:3], "--set", "cluster.node.gpu=null"], "node.accelerator"),
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


def test_the_default_is_the_cluster_files_own_program_with_a_wider_interval(capsys: pytest.CaptureFixture[str]) -> None:
    own = json.loads(answer(capsys, *RECORD[:3], "--json"))
    recorded = json.loads(answer(capsys, *RECORD, "--json"))
    assert own["bucket_bytes"] == 16 << 20
    assert recorded["bucket_bytes"] is None
    assert own["interval_widened_by"] == "own kernels"
    assert own["high"] / own["low"] > recorded["high"] / recorded["low"]


def test_a_recipe_without_a_reference_has_no_time_to_train_and_a_huge_batch_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    smoke = json.loads(answer(capsys, "imagenet-smoke", "--cluster", "a100-node", "--json"))
    assert smoke["time_to_train_s"] is smoke["reaches_target"] is None
    assert smoke["epochs_s"] > 0
    row = json.loads(answer(capsys, *RECORD, "--sweep", "ranks=16384", "--json"))[0]
    assert (row["convergence"], row["reaches_target"]) == ("beyond", None)


def test_the_optimum_names_only_algorithms_that_the_program_has(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, *RECORD[:3], "--optimize", "--json"))
    assert {row["algorithm"] for row in rows} <= {"auto", "hierarchical"}


def test_a_slow_input_lowers_the_efficiency(capsys: pytest.CaptureFixture[str]) -> None:
    slow = json.loads(answer(capsys, *RECORD, "--input-rate", "100", "--json"))
    assert slow["efficiency"] < 0.2


def test_an_accelerator_that_is_not_listed_can_be_described_by_its_data_sheet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sheet = "{float16_flops: 125e12, float32_flops: 15.7e12, memory_bytes_per_s: 900e9, cache_bytes: 6e6, units: 80}"
    changes = ["--set", "cluster.node.gpu=X1", "--set", f"cluster.node.accelerator={sheet}"]
    described = json.loads(answer(capsys, *RECORD[:3], *changes, "--json"))
    listed = json.loads(answer(capsys, *RECORD[:3], "--json"))
    assert described["accelerator"] == "X1"
    assert described["interval_from"] == "unseen"
    assert described["images_per_s"] == pytest.approx(listed["images_per_s"], rel=0.1)


@pytest.mark.parametrize(
    ("gpu", "network", "batch", "measured"),
    [
        ("V100-SXM2-16GB", "resnet50", 128, 417),
        ("P100", "resnet50", 64, 219),
        ("P100", "alexnet", 512, 2987),
        ("A100-SXM4-80GB", "resnet50", 256, 1056),
    ],
)
def test_published_float32_and_tf32_rates_of_one_gpu_are_inside_the_interval(
    gpu: str, network: str, batch: int, measured: float, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "cluster.ranks_per_node": 1,
        "cluster.engine.precision": "float32",
        "cluster.node.gpu": gpu,
        "model.name": network,
        "batch.global_size": batch,
    }
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    found = json.loads(answer(capsys, "imagenet-b256", "--cluster", "a100-node", *words, "--json"))
    assert found["low"] <= measured <= found["high"]
    assert found["images_per_s"] == pytest.approx(measured, rel=0.35)


def test_the_rates_of_this_machine_are_written_into_a_folder_that_is_made_and_can_be_read_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Measuring takes seconds and two processes: tests/train/sim/fit/test_this_machine.py does it.
    names = ("flops", "memory_bytes_per_s", "link_bytes_per_s", "cores", "sum_bytes_per_s", "sum_bucket_s")
    rates = {name: 2.0 + number for number, name in enumerate(names)}
    monkeypatch.setattr("train.sim.simulate.measure_machine", lambda: rates)
    path = tmp_path / "new" / "runs" / "here.yaml"
    for _ in range(2):
        assert answer(capsys, "--calibrate-here", "--out", str(path)).startswith(f"wrote {path}: flops 2, memory")
        assert load_description(path) == rates
    monkeypatch.setattr("train.sim.simulate.measure_machine", lambda: {**rates, "core_share": 0.5})
    assert main(["simulate", "--calibrate-here", "--out", str(path)]) == 0
    assert "other work had 50% of the cores while it was measured" in capsys.readouterr().err
    assert main(["simulate", "--calibrate-here", "--out", str(path / "below-a-file.yaml")]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_ctrl_c_ends_with_the_status_of_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("train.sim.simulate.answer", interrupted)
    assert main(["simulate", *RECORD]) == 130


def test_a_price_may_be_nothing_but_not_less() -> None:
    options = _parser().parse_args(["digits", "--price", "0"])
    check_options(options)
    for price in (-0.01, float("nan"), float("inf")):
        options.price = price
        with pytest.raises(ConfigError, match="--price: got"):
            check_options(options)


def test_an_error_is_positive_where_the_prediction_is_too_high(capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer(capsys, "--validate", str(EXCERPT)).split("\n\n")[0].splitlines()
    assert lines[0].split()[-4:] == ["measured", "predicted", "error", "%"]
    for line in lines[1:]:
        measured, predicted, error = line.split()[-3:]
        assert float(error) == pytest.approx(100 * (float(predicted) / float(measured) - 1), abs=0.6), line


def test_collectives_are_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(answer(capsys, *RECORD, "--collectives", "--json"))
    heads, *lines = answer(capsys, *RECORD, "--collectives").splitlines()
    names = [name for name in rows[0] if name not in ("ranks", "bytes", "best")]
    assert heads.split() == ["ranks", "bytes", "best", *(word for name in names for word in (name, "ms"))]
    for row, line in zip(rows, lines, strict=True):
        assert line.split()[3:] == [f"{1e3 * row[name]:.3f}" for name in names]


def test_every_width_of_an_interval_is_explained() -> None:
    assert {*load_calibration().half_widths, "measured"} == {*_BASES, *_LACKS}
    said = {"own kernels": "usual programs", "float32": "float32 programs", "another network": "other networks"}
    assert all(words in _LACKS[name] for name, words in said.items())


def test_the_start_up_is_told_from_one_rank_to_4096_by_powers_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split()[0] for line in answer(capsys, "--startup").splitlines()[1:14]]
    assert rows == [str(1 << power) for power in range(13)]
