"""The doctor's real ranks report the truth about this machine; a problem is one line with a remedy, and status 1."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT
from launch.doctor.__main__ import main


@pytest.mark.slow
@pytest.mark.ranks
def test_two_real_ranks_find_a_sound_machine_sound(tmp_path: Path, packed_digits: Path) -> None:
    paths = {"data": packed_digits, "stage": tmp_path / "stage", "runs": tmp_path / "runs"}
    sets = ["model.image_size=16", *(f"cluster.paths.{name}={path}" for name, path in paths.items())]
    words = ["--recipe", "digits", "--step", *(word for each in sets for word in ("--set", each))]
    command = [sys.executable, "-I", "-m", "launch.doctor", "doctor", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert {path.name for path in (tmp_path / "runs").iterdir()} <= {"health.jsonl"}, "the reports are removed"
    document = json.loads(done.stdout)
    levels = {row["topic"]: row["level"] for row in document["findings"]}
    assert (done.returncode, document["ok"], "FAIL" in levels.values()) == (0, True, False)
    sound = ("ranks", "libraries", "versions", "memory", "disk", "data", "stage", "links", "clocks", "allreduce",
             "step")  # fmt: skip
    assert {topic: levels.get(topic) for topic in sound} == dict.fromkeys(sound, "OK")
    assert "1,797 records" in next(row["words"] for row in document["findings"] if row["topic"] == "data")
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
