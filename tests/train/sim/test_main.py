"""``./run.sh simulate``: a run, an optimum, comparisons with points, and refused input."""

import json
import re
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import Said
from train.sim.__main__ import main

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


@pytest.mark.parametrize(
    ("name", "cluster", "gpu"),
    [("1 L40S", "a100-node", "L40S"), ("8 V100", "a100-node", "V100-SXM2"), ("8 B200 (PyTorch)", "b200-node", "B200")],
)
def test_the_page_of_questions_has_the_forecasts_of_today(
    name: str, cluster: str, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(name)} (\|.*)", page, re.MULTILINE)
    sets = [f"--set=cluster.ranks_per_node={name[0]}", f"--set=cluster.node.gpu={gpu}"]
    found = [
        json.loads(answer(capsys, recipe, "--cluster", cluster, *sets, "--json"))
        for recipe in ("mlperf-b3264", "imagenet-b256")
    ]
    hours = [each[key] / 3600 for each in found for key in ("time_to_train_s", "run_low_s", "run_high_s")]
    told = [float(number.replace(",", "")) for number in re.findall(r"[\d.,]+", row)]
    assert told == pytest.approx([found[0]["images_per_s"], *hours], rel=0.05)


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
    head, *told = answer(capsys, *words, "--optimize", *limits, "--price", "2").splitlines()
    assert head.split()[:6] == ["ranks", "per", "rank", "batch", "size", "global"]
    assert head.split()[-1] == "cost"
    assert float(told[0].split()[-1]) == pytest.approx(2 * expected[0], rel=1e-3)


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
        assert main(["simulate", "--validate", str(path), "--held-out"]) == 2
        assert "no points can be hidden from a fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digitz"], "did you mean 'digits'"),
        ([], "RECIPE"),
        ([*RECORD, "--algorithm", "rings"], "did you mean 'ring'"),
        (["imagenet-b256", "--cluster", "a100-node", "--optimize", "--deadline", "1"], "no run is within the limits"),
        (["--points", "nowhere.csv"], "nowhere.csv: cannot be read: No such file or directory; give a file of points"),
        (["--calibrate", "configs", "--out", "a.yaml"], "--out: got 'a.yaml', allowed: nothing with folders of runs"),
        (["--points", "/dev/null"], "it is not a file"),
        (["--calibrate", "configs", "nowhere.csv"], "--calibrate: got several paths, allowed: one points file, or"),
        (["imagenet-b256", "--as-recorded", "--cluster", "a100-node"], "abci-v100"),
        (["imagenet-smoke", "--optimize", "--cluster", "a100-node"], "no convergence reference"),
        ([*RECORD[:3], "--set", "cluster.node.gpu=B20"], "did you mean 'B200'"),
        ([*RECORD[:3], "--set", "cluster.node.gpu=null"], "node.accelerator"),
        (["digits", "--set", "cluster.node.cpu=EPYC 77630"], "did you mean 'EPYC 7763'"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(words: list[str], message: str, said: Said) -> None:
    error = said(main, *words, status=2).err
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


def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **_others: pytest.fail("measured"))
    (tmp_path / "file").touch()
    assert main(["simulate", "--calibrate-here", "--out", str(tmp_path / "file" / "a.yaml")]) == 2
    assert re.fullmatch(r"error: .*a\.yaml: cannot be written: .*\n", capsys.readouterr().err)
