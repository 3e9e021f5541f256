"""``./run.sh simulate``: a run, an optimum, comparisons with points, and refused input."""

import json
import re
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import Said
from train.sim.__main__ import main

RECORD = ["abci-b86016", "--cluster", "abci-v100", "--round", "0.6", "--as-recorded"]


def test_the_record_with_its_efficiency_and_the_cause_of_what_is_lost(said: Said) -> None:
    found = json.loads(said(main, *RECORD, "--json").out)
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
def test_the_page_of_questions_has_the_forecasts_of_today(name: str, cluster: str, gpu: str, said: Said) -> None:
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(name)} (\|.*)", page, re.MULTILINE)
    sets = [f"--set=cluster.ranks_per_node={name[0]}", f"--set=cluster.node.gpu={gpu}"]
    found = [
        json.loads(said(main, recipe, "--cluster", cluster, *sets, "--json").out)
        for recipe in ("mlperf-b3264", "imagenet-b256")
    ]
    hours = [each[key] / 3600 for each in found for key in ("time_to_train_s", "run_low_s", "run_high_s")]
    told = [float(number.replace(",", "")) for number in re.findall(r"[\d.,]+", row)]
    assert told == pytest.approx([found[0]["images_per_s"], *hours], rel=0.05)


@pytest.mark.medium
def test_a_search_keeps_to_the_cluster_its_memory_the_deadline_and_the_budget_and_shows_ten(said: Said) -> None:
    words = ["imagenet-b256", "--cluster", "dgx-a100", "--set", "cluster.node.gpu_memory_bytes=6000000000"]
    rows = json.loads(said(main, *words, "--optimize", "--price", "2", "--json").out)
    assert len(rows) == 10
    assert {row["ranks"] for row in rows} <= {8, 16}
    assert max(row["per_rank_batch_size"] for row in rows) == 64  # (6 - 1.5) GB hold 64 images of 70 MB
    assert {row["algorithm"] for row in rows} <= {"auto", "hierarchical"}, "which this program has"
    assert [row["cost"] for row in rows] == pytest.approx([2 * row["accelerator_hours"] for row in rows])
    times, hours = ([row[key] for row in rows] for key in ("time_to_train_s", "accelerator_hours"))
    # Six runs are as fast as the sixth; of these, four are as cheap as the fourth.
    expected = sorted(hours[:6])[:4]
    limits = ["--deadline", str(times[5]), "--budget", str(expected[-1])]
    cheap = json.loads(said(main, *words, "--optimize", *limits, "--json").out)
    assert [row["accelerator_hours"] for row in cheap] == expected, "the cheapest in time is the best"
    head, *told = said(main, *words, "--optimize", *limits, "--price", "2").out.splitlines()
    assert head.split()[:6] == ["ranks", "per", "rank", "batch", "size", "global"]
    assert head.split()[-1] == "cost"
    assert float(told[0].split()[-1]) == pytest.approx(2 * expected[0], rel=1e-3)


@pytest.mark.parametrize(
    ("row", "message"),
    [("", "there are no rows; a points file has a header"), ("16,64,V100", "no row has a measured rate")],
)
def test_points_that_nobody_measured_are_not_compared(row: str, message: str, tmp_path: Path, said: Said) -> None:
    path = tmp_path / "points.csv"
    path.write_text(f"n_acc,batch_per_acc,accelerator\n{row}\n")
    assert f"error: {path}: {message}" in said(main, "--validate", path, status=2).err
    if row:
        told = said(main, "--validate", path, "--held-out", status=2).err
        assert "no points can be hidden from a fit" in told


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
        (["--validate", "nowhere.csv", "--json"], "--json: allowed only together with RECIPE or --points"),
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
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    for recipe, cluster in (("abci-b86016", "abci-v100"), ("imagenet-b256", "a100-kubernetes")):
        found = set()
        for installed in ("mxnet", "torch"):
            monkeypatch.setattr("configs.registry.has_engine", lambda name, only=installed: name == only)
            found.add(said(main, recipe, "--cluster", cluster, "--json").out)
        assert len(found) == 1


def test_a_file_that_cannot_be_written_is_one_line_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **_others: pytest.fail("measured"))
    (tmp_path / "file").touch()
    told = said(main, "--calibrate-here", "--out", tmp_path / "file" / "a.yaml", status=2).err
    assert re.fullmatch(r"error: .*a\.yaml: cannot be written: .*\n", told)
