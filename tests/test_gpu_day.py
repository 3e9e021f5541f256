"""``.ci/gpu-day``: what a day of a GPU does with its minutes, with a bench that answers at once."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from configs.load import ROOT
from tests.programs import run_program
from train.bench.bench_gpu import PARTS

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("gpu_day")]

_BENCH = """#!/usr/bin/env bash
set -eu
while [[ $# -gt 0 ]]; do
  case $1 in
    --only) part=$2 ;;
    --folder) folder=$2 ;;
    --minutes) minutes=$2 ;;
  esac
  shift
done
printf '%s %s %s\\n' "$part" "$minutes" "$(basename -- "$folder")" >>asked
printf '{"part": "%s"}\\n' "$part" >>"$folder/rows.jsonl"
printf '| %s |\\n' "$part" >>"$folder/table.md"
mkdir -p -- "$TORCHINDUCTOR_CACHE_DIR" && touch -- "$TORCHINDUCTOR_CACHE_DIR/$part"
[[ ! -e fails || $part != "$(<fails)" ]]
"""


def _day(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script whose Python is the bench above, on a machine that gives back a folder."""
    if not (place / ".ci").exists():
        for folder in (".ci", "bin", "out"):
            (place / folder).mkdir()
        shutil.copy(ROOT / ".ci" / "gpu-day", place / ".ci")
        (place / "bin" / "python3").write_text(_BENCH, encoding="utf-8")
        (place / "bin" / "python3").chmod(0o755)
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "OUT": str(place / "out")}
    return run_program(place / ".ci" / "gpu-day", *words, env=environment)


def _asked(place: Path) -> list[tuple[str, float]]:
    """Return the parts in their order with the minutes of each, without the compilers beside the digits."""
    lines = (line.split() for line in (place / "asked").read_text(encoding="utf-8").splitlines())
    return [(part, float(minutes)) for part, minutes, folder in lines if folder != "ahead"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a machine on which the script has run once, with its output in the file ``told``."""
    folder = tmp_path_factory.mktemp("day")
    done = _day(folder)
    assert done.returncode == 0, done.stderr
    (folder / "told").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture
def own(place: Path, tmp_path: Path) -> Path:
    """Return a copy of that machine."""
    return shutil.copytree(place, tmp_path / "own")


def test_every_part_is_asked_once_the_verdict_first_and_two_commands_of_ten_minutes_are_enough(place: Path) -> None:
    parts = dict(_asked(place))
    assert len(parts) == len(_asked(place))
    assert parts.keys() <= PARTS.keys()
    assert list(parts)[:3] == ["machine", "verdict", "digits"]
    assert parts.keys() >= {"profile", "levers", "compiled", "decoding", "jpegs", "graph"}
    assert sum(parts.values()) < 2 * 9.5
    compiled = (place / "asked").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("compiled ") and line.endswith(" ahead") for line in compiled), "beside the digits"
    assert (place / "told").read_text(encoding="utf-8").endswith("".join(f"| {part} |\n" for part in parts))
    rows = (place / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["part"] for row in rows] == list(parts)
    with tarfile.open(place / "out" / "inductor.tar.gz") as cache:
        assert {"inductor/compiled", "inductor/verdict"} < {*cache.getnames()}


def test_a_part_that_fails_ends_nothing_and_the_next_command_begins_with_what_was_not_tried(own: Path) -> None:
    (own / "asked").unlink()
    (own / "runs/gpu-day/tried-levers").unlink()
    (own / "fails").write_text("levers", encoding="utf-8")
    done = _day(own)
    assert (done.returncode, "levers: exit status 1" in done.stdout) == (0, True)
    order = [part for part, _ in _asked(own)]
    assert order[:2] == ["levers", "machine"]


def test_a_new_machine_goes_on_with_the_rows_and_the_cache_that_came_back(own: Path) -> None:
    shutil.copytree(own / "out", own / "runs" / "gpu-day-back")
    _day(own, "--tiny", str(own / "second"))
    first, second = (folder.joinpath("rows.jsonl").read_text() for folder in (own / "runs/gpu-day", own / "second"))
    assert second == 2 * first
    assert (own / "second" / "inductor" / "verdict").is_file()
