"""The doctor's real ranks report the truth about this machine; a problem is one line with a remedy, and status 1."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT
from launch.doctor.__main__ import main

_SMALL = ["--set", "model.image_size=16"]


def _doctor(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    sets = ["--set", f"cluster.paths.runs={tmp_path / 'runs'}"]
    command = [sys.executable, "-I", "-m", "launch.doctor", "doctor", "--json", *words, *sets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert {path.name for path in (tmp_path / "runs").iterdir()} <= {"health.jsonl"}, "the reports are removed"
    return done.returncode, json.loads(done.stdout), done.stderr


def _levels(document: dict[str, Any]) -> dict[str, str]:
    return {row["topic"]: row["level"] for row in document["findings"]}


def _words(document: dict[str, Any], topic: str) -> str:
    (row,) = [row for row in document["findings"] if row["topic"] == topic]
    return f"{row['words']}; {row['remedy']}"


@pytest.mark.slow
@pytest.mark.ranks
def test_two_real_ranks_find_a_sound_machine_sound(tmp_path: Path, packed_digits: Path) -> None:
    folders = ["--set", f"cluster.paths.data={packed_digits}", "--set", f"cluster.paths.stage={tmp_path}/stage"]
    status, document, _ = _doctor(tmp_path, "--recipe", "digits", "--step", *folders, *_SMALL)
    levels = _levels(document)
    assert (status, document["ok"], "FAIL" in levels.values()) == (0, True, False)
    sound = ("ranks", "libraries", "versions", "memory", "disk", "data", "stage", "links", "clocks", "allreduce",
             "step")  # fmt: skip
    assert {topic: levels.get(topic) for topic in sound} == dict.fromkeys(sound, "OK")
    assert "1,797 records" in _words(document, "data")
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    for rank in document["ranks"]:
        assert rank["allreduce"]["is_right"]
        assert rank["allreduce"]["bus_bytes_per_s"] > 1e6
        assert abs(rank["clock_offsets_s"][1]) < 0.5
        seconds = rank["step"]["seconds"]
        parts = {"forward", "forward and backward", "warm-up", "network", "first batch", "update", "evaluation", "step"}
        assert parts <= set(seconds)
        assert min(seconds.values()) > 0
        assert len(rank["step"]["buckets_s"]) == 6
        assert 1e8 < rank["step"]["memory_bytes"] < 2e9
        assert set(rank["step"]["samples"]) == {"compute", "copy", "input", "allreduce", "step"}
    assert document["ranks"][0]["cores"] == sorted(os.sched_getaffinity(0))


@pytest.mark.slow
@pytest.mark.ranks
def test_a_part_that_fails_on_one_rank_ends_the_step_on_all(tmp_path: Path, shared_digits: Path) -> None:
    data = shutil.copytree(shared_digits, tmp_path / "data" / "digits")
    with (data / "train.rec").open("r+b") as file:
        size = (data / "train.rec").stat().st_size
        file.seek(int(size * 0.55))
        file.write(b"\0" * int(size * 0.45))  # nearly all records of rank 1, whatever the order of the images
    sets = ["--set", f"cluster.paths.data={tmp_path / 'data'}", "--set", "data.shuffle_buffer=1000"]
    status, document, _ = _doctor(tmp_path, "--recipe", "digits", "--step", *sets, *_SMALL)
    words = _words(document, "step")
    assert (status, _levels(document)["step"]) == (1, "FAIL")
    assert words.startswith("rank 1 on ")
    assert ", first batch: " in words
    assert all("step" not in rank["step"]["seconds"] for rank in document["ranks"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluste", "laptop"], "did you mean '--cluster'?"),
        (["--recipe", "digit"], "did you mean 'digits'?"),
        (["--step"], "name one with --recipe"),
        (["--recipe", "digits", "--set", "batch.global_size=7"], "batch.global_size"),
        (["--set", "cluster.paths.runs=/proc/none"], "/proc/none: No such file or directory; set cluster.paths.runs"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
