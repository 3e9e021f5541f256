"""The events of a run, one by one, in the order of MLPerf's rules, and the two files that hold them."""

import json
import logging
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlperf_logging.mllog import mllog

from configs.errors import UserError
from configs.load import ROOT, load_cluster
from configs.registry import ENGINES
from configs.schema import Cluster, Mlperf
from logs.mlperf import RESULT_FILES, Kind, MlperfLog, close_log
from logs.read.parse import parse_log

NEW, OLD = RESULT_FILES["4.0.0"], RESULT_FILES["0.6.0"]


def read_new(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / NEW).read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def read_old(folder: Path) -> list[tuple[float, str, Any]]:
    matches = [
        re.fullmatch(r":::MLL (\d+\.\d{3}) (\w+): (.*)", line) for line in (folder / OLD).read_text().splitlines()
    ]
    return [(float(match[1]), match[2], json.loads(match[3])) for match in matches if match]


def test_both_files_contain_the_same_events_at_the_same_times(tmp_path: Path, toy_run: Any) -> None:
    toy_run.write(tmp_path)
    new, old = read_new(tmp_path), read_old(tmp_path)
    assert len(new) == len(old) > 40
    for record, (seconds, _, event) in zip(new, old, strict=True):
        assert event == {"value": record["value"], "metadata": record["metadata"]}
        assert seconds == pytest.approx(record["time_ms"] / 1000)
    renamed = {record["key"]: key for record, (_, key, _) in zip(new, old, strict=True) if record["key"] != key}
    assert renamed["lars_opt_base_learning_rate"] == "opt_base_learning_rate"
    assert renamed["seed"] == "run_set_random_seed"
    assert "lars_opt_weight_decay" not in renamed


def test_an_event_names_the_file_and_line_that_logged_it(tmp_path: Path) -> None:
    log = MlperfLog(tmp_path)
    log.emit("point", "seed", 1)
    here = sys._getframe().f_lineno
    with log.block(1, 1), log.interval("epoch", 1):
        log.emit("point", "our_own_key")
    for record, lineno in zip(read_new(tmp_path), [here - 1, here + 1, here + 1, here + 2], strict=False):
        assert record["metadata"]["file"] == "tests/logs/test_mlperf.py"
        assert record["metadata"]["lineno"] == lineno
    log.close()


def test_a_line_is_that_of_mlperf_s_own_logger(tmp_path: Path) -> None:
    log, official = MlperfLog(tmp_path), mllog.MLLogger(logging.Logger("official", logging.INFO))
    official.logger.addHandler(logging.FileHandler(tmp_path / "official"))
    writers: dict[Kind, Any] = {"point": official.event, "start": official.start, "stop": official.end}
    for kind, write in writers.items():
        for value in (None, "ä", 0.5, [1, 2], np.float32(0.5), np.arange(3)):
            log.emit(kind, "key", value, epoch_num=np.int64(3))
            write("key", value, metadata={"epoch_num": np.int64(3)})
    log.close()
    texts = [(tmp_path / name).read_text() for name in (NEW, "official")]
    ours, theirs = (re.sub(r'"time_ms": \d+|"file": "[^"]*"|"lineno": \d+', "", text) for text in texts)
    assert ours == theirs


@pytest.mark.medium
def test_a_killed_process_leaves_every_event_whole(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, pathlib; from logs.mlperf import MlperfLog\n"
        "log = MlperfLog(pathlib.Path(sys.argv[1]))\n"
        "log.emit('start', 'init_start')\nlog.emit('stop', 'init_stop')\nlog.emit('start', 'run_start')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [record["key"] for record in read_new(tmp_path)] == ["init_start", "init_stop", "run_start"]
    assert [key for _, key, _ in read_old(tmp_path)] == ["init_start", "init_stop", "run_start"]


def test_an_interval_that_an_exception_leaves_stays_open_and_the_run_can_be_aborted(tmp_path: Path) -> None:
    log = MlperfLog(tmp_path)
    with pytest.raises(ZeroDivisionError), log.block(1, 1), log.interval("epoch", 1):
        raise ZeroDivisionError
    log.run_stop("aborted")
    log.close()
    records = read_new(tmp_path)
    assert [record["key"] for record in records] == ["block_start", "epoch_start", "run_stop"]
    assert records[-1]["event_type"] == "INTERVAL_END"
    assert records[-1]["metadata"]["status"] == "aborted"


@pytest.mark.parametrize("name", [NEW, OLD])
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    log = MlperfLog(tmp_path)
    with pytest.raises(UserError, match=rf"{name}: cannot be written: the disk is full; free some space"):
        log.emit("point", "seed", 1)
    with pytest.raises(UserError):
        log.close()


@pytest.mark.parametrize("name", [NEW, OLD])
def test_a_log_that_is_deleted_ends_the_run_and_a_deleted_folder_is_left_to_the_claim(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    log = MlperfLog(folder)
    log.emit("point", "seed", 1)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"run/{name}: was deleted during the run, which ends"):
        log.emit("point", "seed", 2)
    shutil.rmtree(folder)
    log.emit("point", "seed", 3)
    log.close()


@pytest.mark.parametrize("ruleset", sorted(RESULT_FILES))
def test_a_resumed_run_that_is_killed_is_closed_although_the_attempt_before_was(tmp_path: Path, ruleset: str) -> None:
    for is_resumed in (False, True):
        log = MlperfLog(tmp_path, is_resumed=is_resumed)
        if is_resumed:
            log.emit("point", "resumed_from_step", 7)
        else:
            log.run_stop("aborted")
        log.close()
    for _ in range(2):
        close_log(tmp_path / RESULT_FILES[ruleset], ruleset)
        lines = (tmp_path / RESULT_FILES[ruleset]).read_text(encoding="utf-8").splitlines()
        assert ["run_stop" in line for line in lines] == [True, False, True]


@settings(max_examples=30)
@given(cut=st.floats(0, 1), ruleset=st.sampled_from(sorted(RESULT_FILES)))
def test_a_log_cut_off_anywhere_is_closed_as_aborted_once(cut: float, ruleset: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        log = MlperfLog(Path(name))
        log.emit("point", "seed", 1)
        log.emit("start", "run_start")
        log.run_stop("success")
        log.close()
        path = Path(name) / RESULT_FILES[ruleset]
        content = path.read_bytes()
        kept = content[: round(cut * len(content))]
        path.write_bytes(kept)
        close_log(path, ruleset)
        lines = path.read_bytes().splitlines(keepends=True)
        whole = kept.splitlines(keepends=True)[: kept.count(b"\n")]
        assert lines[: len(whole)] == whole
        assert len(lines) == (3 if kept == content else len(whole) + 1)
        assert sum(b"run_stop" in line for line in lines) == 1
        assert lines[-1].endswith(b"}\n")
        assert (b"aborted" in lines[-1]) == (kept != content)
        close_log(path, ruleset)
        assert path.read_bytes() == b"".join(lines)


SUBMISSION = {"org": "Org", "platform": "box", "poc_name": "Ann", "poc_email": "a@b.c", "status": "onprem"}


def _cluster(engine: str) -> Cluster:
    """Return the cluster of a submission; the engine is set by hand, because the environment may lack it."""
    told = [f"cluster.submission.{key}={value}" for key, value in SUBMISSION.items()]
    cluster = load_cluster("laptop", told)
    return cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"name": engine})})


def _framework(engine: str) -> str:
    try:
        return f"{ENGINES[engine].title} {version(*ENGINES[engine].packages)}" if ENGINES[engine].computes else "none"
    except PackageNotFoundError:
        return "none"


@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_submitter_and_the_framework_are_those_of_cluster_and_engine(engine: str, tmp_path: Path) -> None:
    log = MlperfLog(tmp_path)
    log.submission(_cluster(engine), Mlperf(division="closed"))
    log.close()
    told = {record["key"].removeprefix("submission_"): record["value"] for record in read_new(tmp_path)}
    entry = {"hardware": "box", "framework": _framework(engine)}
    assert told == {"benchmark": "resnet", "division": "closed", "entry": entry, **SUBMISSION}


def test_a_clock_that_is_moved_in_the_run_moves_no_event_and_is_named(
    tmp_path: Path, toy_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_s = time.time()
    log = MlperfLog(tmp_path)
    monkeypatch.setattr("time.time", lambda: begin_s - 3600)
    toy_run.log_events(log)
    log.run_stop("success")
    log.close()
    record = parse_log(tmp_path / "result_0.txt")
    assert record.began_s == pytest.approx(begin_s, abs=60)
    assert record.time_to_train_s is not None
    assert 0 <= record.time_to_train_s < 60
    assert re.search(r"moved by -3,6\d\d s", capsys.readouterr().err), "a busy machine may add some seconds"
