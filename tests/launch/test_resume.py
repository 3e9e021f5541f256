"""A run that was stopped is resumed and ends with the same bits: real ranks, real images."""

import contextlib
import errno
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from configs.load import ROOT, load_both
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from launch.setup.layout import USED_LOCK
from logs.__main__ import main
from logs.checkpoints import SavedState, read, step_of
from logs.folder import RunFolder, Summary
from logs.metrics import read_metrics
from logs.read.parse import parse_log
from tests.failing_reads import failing_reads
from tests.launch.scheduled import ranks
from tests.limits import processes_like
from tests.logs.rapl import steady_power
from tests.programs import Said, run_program
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, resume, train, train_command

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("resume")]

WATTS = 50


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, tiny: list[str]) -> Path:
    """Press Ctrl-C on a terminal when the first epoch begins, which takes some tenths of a second; return the folder.

    The machine shows a processor that uses 50 W.
    """
    folder, sys = tmp_path_factory.mktemp("stopped") / "run", tmp_path_factory.mktemp("sys")
    terminal, end = os.openpty()
    command = ["setsid", "--ctty", "--wait", *train_command(folder, *tiny)]
    variables = {**os.environ, "RANK_SYS": str(sys)}
    with (
        steady_power(sys, WATTS),
        subprocess.Popen(command, cwd=ROOT, env=variables, stdin=end, stdout=end, stderr=end) as launcher,
    ):
        os.close(end)
        log, told, found = folder / "result_0.txt", b"", None
        with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to any more with an error.
            while True:
                told += os.read(terminal, 65536) if select.select([terminal], [], [], 0.01)[0] else b""
                if found is None and log.exists() and '"epoch_num": 1' in log.read_text(encoding="utf-8"):
                    os.write(terminal, b"\x03")
                    found = _opened(launcher.pid)
        os.close(terminal)
    assert launcher.returncode == 130, told.decode()
    assert not ranks(folder)
    assert "mlperf" not in told.decode().lower()
    assert found is not None
    assert str(USED_LOCK) in found[0], "set-up would change the environment of the run"
    assert found[1] <= {"127.0.0.1"}, "others on the network can reach the run"
    (words,) = re.findall(r" continue with ./run.sh (.*)", told.decode())
    assert shlex.split(words) == ["train", "--resume", str(folder)]
    return folder


def _opened(launcher: int) -> tuple[set[str], set[str]]:
    """Return the files that a launcher or its ranks have open, and the addresses at which they listen."""
    files, addresses = set(), set()
    for process in (psutil.Process(launcher), *psutil.Process(launcher).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            files |= {each.path for each in process.open_files()}
            rows = process.net_connections(kind="inet")
            addresses |= {row.laddr.ip for row in rows if row.status == psutil.CONN_LISTEN}
    return files, addresses


def _course(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's intervals and evaluations, without the values that a clock measures."""
    told = ("kind", "step", "epoch", "loss", "lr", "top1", "correct")
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] in ("interval", "evaluation")]
    return [{key: row[key] for key in told if key in row} for row in rows]


@pytest.fixture
def whole(two_epoch_run: FinishedRun) -> Path:
    """Return the folder of a run in one go."""
    assert two_epoch_run.status == 0, two_epoch_run.errors
    return two_epoch_run.folder


@pytest.fixture(scope="module")
def tiny(packed_digits: Path) -> list[str]:
    """Return the settings of that run, with images that no other process reads."""
    return [*TWO_EPOCHS, f"cluster.paths.data={packed_digits}"]


@pytest.mark.parametrize(
    ("call", "file", "number"),
    [
        ("open", "checkpoints/step-00000005.ckpt", errno.ESTALE),
        ("opendir", "checkpoints", errno.EACCES),
        ("open", "summary.json", errno.EIO),
    ],
)
def test_what_cannot_be_read_at_all_is_named_and_nothing_is_set_aside_renamed_or_overwritten(
    tmp_path: Path, call: str, file: str, number: int
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.write_settings(*load_both("digits", "laptop"))
    for step in (3, 5):
        folder.checkpoints.write(step, SavedState({}, {"weights/a": np.zeros(step)}), keep=2)
    folder.write_summary(Summary("digits", "aborted"))
    folder.claims.take().release()
    before = _files(folder.path)
    # Without --resume, a run without a whole checkpoint would begin at step 0.
    command = train_command(folder.path)
    variables = failing_reads(tmp_path, call, folder / file, number, once=False)
    done = run_program(*command, env=variables)
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert line.startswith(f"error: {folder / file}: cannot be read: {os.strerror(number)}; ")
    assert "repeat the command" in line
    after = _files(folder.path)
    assert {name: after.get(name) for name in before} == before


def _files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a run but the log of whoever claims it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_ctrl_c_on_a_terminal_saves_the_state_and_the_command_that_it_prints_goes_on_to_the_same_bits(
    tmp_path: Path, whole: Path, stopped: Path, said: Said
) -> None:
    """A later checkpoint is damaged, and this one cannot be read for a moment. A processor uses 50 W."""
    folder, sys = shutil.copytree(stopped, tmp_path / "run"), tmp_path / "sys"
    summary = read_summary(folder)
    assert (summary["status"], summary["failed_rank"]) == ("aborted", None)
    assert summary["failure"].startswith("stopped, state saved after step ")
    assert '"status": "aborted"' in (folder / "result_0.txt").read_text(encoding="utf-8").splitlines()[-1]
    (kept,) = RunFolder(folder).checkpoints.files()
    assert 0 < step_of(kept) < 19
    damaged = kept.with_name("step-00000018.ckpt")
    damaged.write_bytes(kept.read_bytes()[:-1])
    variables = failing_reads(tmp_path, "open", kept, errno.ESTALE, once=True) | {"RANK_SYS": str(sys)}
    with steady_power(sys, WATTS):
        done = resume(folder, variables=variables)
    assert done.status == 0, done.errors
    assert (tmp_path / "has-failed").exists()
    assert f"{damaged.name}: damaged" in done.errors
    assert f"resumes from {kept}\n" in done.errors
    assert "not for submission" in done.output
    changed = f"variables.LD_PRELOAD {variables['LD_PRELOAD']} instead of absent"
    assert f"is resumed with {changed}: the results may differ" in done.errors, "and nothing else has changed"
    assert len(json.loads((folder / "environment.json").read_text(encoding="utf-8"))["earlier_attempts"]) == 1
    assert _course(folder) == _course(whole)
    assert read_summary(folder)["weights_checksum"] == read_summary(whole)["weights_checksum"]
    states = [read(RunFolder(each).checkpoints.files()[0]).arrays for each in (folder, whole)]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in {**states[0], **states[1]})
    assert not json.loads((folder / "verdict.json").read_text(encoding="utf-8"))["4.0.0"]["passed"]
    record = parse_log(folder / "result_0.txt")
    assert (record.status, [each.epoch for each in record.evaluations]) == ("success", [1, 2])
    energy, times_s = read_summary(folder)["energy"], _trained_s(folder)
    assert len(times_s) == energy["attempts"] == 2
    # The counter, and the log's milliseconds, are read some hundredths of a second late on a busy machine.
    assert energy["joules"] == energy["packages_j"] == pytest.approx(WATTS * sum(times_s), rel=0.1, abs=0.2 * WATTS)
    assert energy["images_per_joule"] == pytest.approx(38 * 64 / energy["joules"])
    words = f"nergy: {energy['joules'] / 3600:.4g} Wh (processors), {energy['images_per_joule']:.4g} images/J; not"
    assert words in done.output
    assert words in said(main, "watch", folder, "--once").out
    assert main(["report", str(folder)]) == 0
    assert words in (folder / "report.html").read_text(encoding="utf-8")


def _trained_s(folder: Path) -> list[float]:
    """Return the seconds from run_start to run_stop of each attempt, by the log."""
    rows = [json.loads(line.partition(" ")[2]) for line in (folder / "result_0.txt").read_text().splitlines()]
    begins, ends = ([row["time_ms"] for row in rows if row["key"] == key] for key in ("run_start", "run_stop"))
    return [(end - begin) / 1000 for begin, end in zip(begins, ends, strict=True)]


def test_a_run_goes_on_with_other_ranks_more_epochs_and_another_cpu_and_says_what_differs(
    tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    begun = _pretend_another_cpu(folder / "environment.json")
    (folder / "summary.json").unlink()  # as killed ranks leave it
    RunFolder(folder).checkpoints.files()[0].unlink()
    done = resume(folder, "--set", "run.epochs=3", "--set", "cluster.ranks_per_node=1")
    assert done.status == 0, done.errors
    summary = read_summary(folder)
    assert (summary["world_size"], summary["epochs"], summary["resumed_from_step"]) == (1, 3, 19)
    ranks_changed = "1 rank instead of 2: the global batch stays the same"
    assert any(change.startswith(ranks_changed) for change in summary["changes"])
    assert any(change.startswith("3 epochs instead of 2: ") for change in summary["changes"])
    assert f"resumed with {ranks_changed}" in done.output
    assert read(RunFolder(folder).checkpoints.files()[0]).meta["changes"] == summary["changes"]
    recorded = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    (earlier,) = recorded["earlier_attempts"]
    assert (earlier["cpu"], earlier["cpu_flags"]) == (begun["cpu"], begun["cpu_flags"])
    assert earlier["variables"]["OMP_NUM_THREADS"] == "2"
    (warning,) = [line for line in done.errors.splitlines() if "the run is resumed with" in line]
    assert f"; cpu {recorded['cpu']} instead of A 64-bit CPU of old; " in warning
    assert "; cpu_flags.avx9 absent instead of present: " in warning
    assert warning.startswith("warning:")
    assert "variables.OMP_NUM_THREADS 1 instead of 2" in warning
    assert recorded["cpu"] != begun["cpu"]
    assert recorded["variables"]["OMP_NUM_THREADS"] == "1"


def _pretend_another_cpu(path: Path) -> dict[str, Any]:
    """Rewrite an ``environment.json`` as if the run had begun on another CPU with two threads; return what it says."""
    found = json.loads(path.read_text(encoding="utf-8"))
    # The other way around, ranks of two threads would fight for two cores: 22 s of CPU instead of 8 s.
    variables = found["variables"] | {"OMP_NUM_THREADS": "2"}
    begun = {"cpu": "A 64-bit CPU of old", "cpu_flags": [*found["cpu_flags"], "avx9"], "variables": variables}
    path.write_text(json.dumps(found | begun), encoding="utf-8")
    return begun


@pytest.mark.parametrize("is_new", [True, False], ids=["another-set", "another-byte"])
def test_other_images_under_the_same_name_are_refused(
    tmp_path: Path, whole: Path, shared_digits: Path, is_new: bool
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()  # as killed ranks leave it
    RunFolder(folder).checkpoints.files()[0].unlink()
    data = tmp_path / "data" / "digits"
    if is_new:
        prepare(open_source("digits", Settings()), data, seed=9)
    else:
        shutil.copytree(shared_digits, data)
        images = bytearray((data / "eval.rec").read_bytes())
        images[300_000] ^= 1
        (data / "eval.rec").write_bytes(images)
    done = train(folder, *TWO_EPOCHS, "cluster.ranks_per_node=1", f"cluster.paths.data={data.parent}")
    assert done.status == 2, done.errors
    assert ("data set.train.rec: got" if is_new else f"{data}: eval.rec was changed after the run began") in done.errors
    assert RunFolder(folder).checkpoints.files(), "refused, not removed"


def test_a_run_whose_folder_is_gone_ends_soon_with_that_reason(tmp_path: Path) -> None:
    """The rank sleeps through its steps until it looks again, which costs less than to compute them."""
    folder = tmp_path / "run"
    sets = ["run.epochs=2000", "cluster.ranks_per_node=1", "cluster.scheduler.max_restarts=2"]
    words = ["--ranks", "1", "--speed", "0.3", *(word for each in sets for word in ("--set", each))]
    command = [sys.executable, "-I", "-m", "train.rehearse", "rehearse", "digits", "--cluster", "dgx-a100", *words]
    command += ["--run-dir", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as launcher:
        while not RunFolder(folder).checkpoints.files():
            assert launcher.poll() is None
            time.sleep(0.05)
        folder.rename(tmp_path / "away")
        begin = time.monotonic()
        _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    told = "was moved or deleted during the run, which ends; resume it, or start it again"
    assert f"error: {folder}: {told}\n" in errors
    assert "continue with" not in errors
    assert "Traceback" not in errors
    assert time.monotonic() - begin < 30 * max(1, os.getloadavg()[0])
    assert not folder.exists()
    assert not processes_like(str(folder))
