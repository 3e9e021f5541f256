"""The code in a submission tree is that of the runs' commit, with what was changed since."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logs.judge import package
from logs.judge.official import ToolFinding
from logs.judge.package import Packaged, _is_unfriendly, _snapshot

_CLEAN = {"diff_sha256": None, "diff": None}
_CHANGED = {"diff_sha256": "a", "diff": "+1\n"}
_LARGE = {"diff_sha256": "a", "diff": None}
_UNKNOWN = {"commit": "0" * 40}
_KEPT = ", without .ci/run, docs/a page.md, whose names the repository checker refuses"


def _git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A Tester", "-c", "user.email=tester@example.com")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small git repository, which stands for this one with its thousand files."""
    folder = tmp_path / "checkout"
    for name in (".ci/run", "docs/a page.md", "docs/page.md", "run.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    _git(folder, "init")
    _git(folder, "add", ".")
    _git(folder, "commit", "-m", "all")
    (folder / "untracked").touch()
    monkeypatch.setattr(package, "ROOT", folder)
    return folder


@pytest.mark.parametrize(
    ("states", "passed", "words", "diff"),
    [
        ((_CLEAN, _CLEAN), True, "the tracked files of commit {commit}{kept}", None),
        ((_CHANGED, _CHANGED), True, "commit {commit}{kept}, and uncommitted.diff with the changes since", "+1\n"),
        ((_CHANGED, _CLEAN), False, "uncommitted changes that differ, or were too large to record", None),
        ((_LARGE, _LARGE), False, "uncommitted changes that differ, or were too large to record", None),
        ((_CLEAN, None), False, "the runs recorded no common commit; the tree contains HEAD", None),
        ((None, None), False, "the runs recorded no common commit; the tree contains HEAD", None),
        ((_UNKNOWN, _UNKNOWN), False, f"git archive {'0' * 40} failed (", None),
    ],
    ids=["clean", "changed", "one changed", "too large", "one unknown", "all unknown", "no such commit"],
)
def test_the_tree_has_the_code_of_the_runs(
    states: tuple[Any, ...], passed: bool, words: str, diff: str | None, checkout: Path, tmp_path: Path
) -> None:
    commit = _git(checkout, "rev-parse", "HEAD")
    runs = [SimpleNamespace(environment={"git": each and {"commit": commit, **each}}) for each in states]
    found = _snapshot(tmp_path / "code", cast(Any, runs))
    assert (found.tool, found.passed) == ("code", passed)
    assert words.format(commit=commit[:12], kept=_KEPT) in found.words[0]
    files = {path.relative_to(tmp_path / "code").as_posix() for path in (tmp_path / "code").rglob("*")}
    expected = {"docs", "docs/page.md", "run.sh"} if "failed" not in words else set()
    assert files == expected | ({"uncommitted.diff"} if diff else set())
    assert not diff or (tmp_path / "code" / "uncommitted.diff").read_text(encoding="utf-8") == diff


@pytest.mark.parametrize(("verdicts", "passed"), [((True, None), True), ((True, False, None), False), ((), True)])
def test_a_check_that_the_rules_do_not_ask_for_fails_no_package(
    verdicts: tuple[bool | None, ...], passed: bool
) -> None:
    assert Packaged(Path("tree"), tuple(ToolFinding("tool", each, ()) for each in verdicts)).passed is passed


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [("run.sh", False), ("docs/a.b/c", False), (".ci/run", True), ("docs/.a", True), ("a b", True), ("a b/c", True)],
)
def test_files_that_are_hidden_or_have_a_space_in_their_path_are_left_out(name: str, is_refused: bool) -> None:
    assert _is_unfriendly(name) is is_refused
