"""The energy of a real run of two ranks, by a made-up processor that uses 50 W all the time."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import ROOT, load_cluster, load_recipe
from launch.resume import prepared
from logs.__main__ import main
from logs.energy import AttemptEnergy, Joules, energy_of, write_attempts
from logs.folder import RunFolder
from tests.logs.rapl import steady_power
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, resume, train_command

WATTS = 50


@pytest.fixture
def _steady_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANK_SYS", str(tmp_path / "sys"))
    with steady_power(tmp_path / "sys", WATTS):
        yield


def _stopped_and_resumed(folder: Path, *settings: str) -> FinishedRun:
    """Train, stop the run in its first epoch, and go on with it."""
    log = folder / "result_0.txt"
    with subprocess.Popen(train_command(folder, *TWO_EPOCHS, *settings), cwd=ROOT) as launcher:
        while launcher.poll() is None and not (log.exists() and '"epoch_num": 1' in log.read_text(encoding="utf-8")):
            time.sleep(0.01)
        launcher.send_signal(signal.SIGTERM)
    return resume(folder)


def _trained_s(folder: Path) -> list[float]:
    """Return the seconds from run_start to run_stop of each attempt, by the log."""
    rows = [json.loads(line.partition(" ")[2]) for line in (folder / "result_0.txt").read_text().splitlines()]
    begins, ends = ([row["time_ms"] for row in rows if row["key"] == key] for key in ("run_start", "run_stop"))
    return [(end - begin) / 1000 for begin, end in zip(begins, ends, strict=True)]


@pytest.mark.ranks
@pytest.mark.usefixtures("_steady_power")
def test_the_energy_of_a_run_is_that_of_its_timed_parts_and_is_told(
    packed_digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"cluster.paths.data={packed_digits}", "run.target_top1=0.01", "run.eval_first_epoch=2"]
    run = _stopped_and_resumed(tmp_path / "run", *settings)
    assert run.status == 0, run.errors
    summary, times_s = read_summary(run.folder), _trained_s(run.folder)
    energy = summary["energy"]
    assert len(times_s) == energy["attempts"] == 2
    # The counter, and the log's milliseconds, are read some hundredths of a second late on a busy machine.
    assert energy["joules"] == energy["packages_j"] == pytest.approx(WATTS * sum(times_s), rel=0.1, abs=0.2 * WATTS)
    assert (energy["gpus_j"], energy["dram_j"]) == (None, None)
    images = summary["steps"] * summary["global_batch_size"]
    assert energy["images_per_joule"] == pytest.approx(images / energy["joules"])
    assert energy["watt_hours_to_target"] == pytest.approx(energy["joules"] / 3600)
    joules, rate = f"{energy['joules'] / 3600:.4g} Wh to the target (processors)", f"{energy['images_per_joule']:.4g}"
    words = f"nergy: {joules}, {rate} images/J; not counted: memory, network"
    assert words in run.output
    assert main(["watch", str(run.folder), "--once"]) == 0
    assert main(["report", str(run.folder)]) == 0
    assert f"nergy: {joules}" in capsys.readouterr().out
    assert words in (run.folder / "report.html").read_text(encoding="utf-8")


def test_what_a_run_used_is_kept_where_it_begins_anew(tmp_path: Path) -> None:
    run, recipe, cluster = RunFolder(tmp_path / "run"), load_recipe("digits"), load_cluster("laptop")
    run.make()
    run.write_settings(recipe, cluster)
    (run / "usage.json").touch()
    write_attempts(run.path, 0, [AttemptEnergy(1.0, 1, "a", Joules([], [7.0]))])
    with prepared(run, recipe, cluster, must_resume=False):
        assert (run / "attempt-1" / "usage.json").exists()
        found = energy_of(run.path)
    assert found is not None
    assert found.joules == 7
