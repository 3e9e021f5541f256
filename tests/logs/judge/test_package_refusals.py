"""Runs that are no submission together, and a tree that cannot be finished."""

import errno
import shutil
from pathlib import Path

import pytest

from logs.__main__ import main
from logs.judge.official import judge_repository
from tests.logs import samples
from tests.logs.judge.test_package import FIELDS


def _package(*runs: str) -> int:
    return main(["package", *runs, "--org", "T", "--out", "out", *FIELDS])


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["run.epochs=11"], "run"),
        (["run.target_top1=0.96"], "run"),
        (["schedule.base_lr=2"], "schedule"),
        (["optimizer.momentum=0.8"], "optimizer"),
        (["model.bn_epsilon=1e-4"], "model"),
        (["mlperf.ruleset=0.6.0"], "mlperf"),
    ],
)
def test_a_run_that_differs_in_more_than_its_seed_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(4):
        samples.run_folder(Path(f"run{seed}"), seed, best=0.98)
    samples.run_folder(Path("other"), 9, overrides=overrides)
    assert _package("run0", "run1", "run2", "run3", "other") == 2
    assert f"other: differs from run0 in {named}; give runs of one" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["synthetic", "generated"])
def test_made_up_images_are_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [samples.run_folder(Path(f"run{seed}"), seed, overrides=[f"data.source={source}"]) for seed in range(5)]
    assert _package(*map(str, runs)) == 2
    assert f"run0: data.source is {source}: the images are generated" in capsys.readouterr().err


@pytest.mark.ranks
def test_a_tree_that_cannot_be_finished_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [samples.run_folder(Path(f"run{seed}"), seed, best=0.98) for seed in range(5)]
    copied: list[str] = []

    def copy(source: Path, destination: Path) -> None:
        if len(copied) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        copied.append(str(destination))
        Path(destination).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(shutil, "copyfile", copy)
    assert _package(*map(str, runs)) == 2
    assert "the disk is full" in capsys.readouterr().err
    assert len(copied) == 3
    assert not Path("out", "T").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--field", "system_name=.."], "system_name: got '..', allowed: a name that begins with"),
        (["--out", "file/out"], "--out: file/out/T cannot be created (Not a directory)"),
        (["--out", "/proc/none"], "--out: /proc/none/T cannot be created"),
    ],
)
def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("kept")
    runs = [str(samples.run_folder(Path(f"run{seed}"), seed, best=0.98)) for seed in range(5)]
    assert main(["package", *runs, "--org", "T", "--out", "out", *FIELDS, *more]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert Path("file").read_text() == "kept"


def test_a_file_that_a_git_host_refuses_fails_the_repository_check(tmp_path: Path) -> None:
    (tmp_path / "Testers" / "code").mkdir(parents=True)
    assert judge_repository(tmp_path / "Testers").passed
    (tmp_path / "Testers" / "code" / ".hidden").touch()
    finding = judge_repository(tmp_path / "Testers")
    assert not finding.passed
    assert "Files with git-unfriendly name: code/.hidden" in finding.words
