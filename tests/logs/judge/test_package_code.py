"""The code in a submission tree is that of the runs' commit, with what was changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from configs.load import ROOT
from logs.judge.official import ToolFinding
from logs.judge.package import Packaged, _is_unfriendly, _snapshot

_HEAD = subprocess.run(
    ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
).stdout.strip()  # fmt: skip
_CLEAN = {"commit": _HEAD, "diff_sha256": None, "diff": None}
_CHANGED = {"commit": _HEAD, "diff_sha256": "a", "diff": "+1\n"}
_LARGE = {"commit": _HEAD, "diff_sha256": "a", "diff": None}

pytestmark = pytest.mark.skipif(not _HEAD, reason="this is no checkout")


@pytest.mark.parametrize(
    ("states", "passed", "words", "diff"),
    [
        ((_CLEAN, _CLEAN), True, f"the tracked files of commit {_HEAD[:12]}", None),
        ((_CHANGED, _CHANGED), True, "and uncommitted.diff with the changes since", "+1\n"),
        ((_CHANGED, _CLEAN), False, "uncommitted changes that differ, or were too large to record", None),
        ((_LARGE, _LARGE), False, "uncommitted changes that differ, or were too large to record", None),
        ((_CLEAN, None), False, "the runs recorded no common commit; the tree contains HEAD", None),
        ((None, None), False, "the runs recorded no common commit; the tree contains HEAD", None),
        (({"commit": "0" * 40},) * 2, False, f"git archive {'0' * 40} failed (", None),
    ],
    ids=["clean", "changed", "one changed", "too large", "one unknown", "all unknown", "no such commit"],
)
def test_the_tree_has_the_code_of_the_runs(
    states: tuple[Any, ...], passed: bool, words: str, diff: str | None, tmp_path: Path
) -> None:
    runs = [SimpleNamespace(environment={"git": state}) for state in states]
    found = _snapshot(tmp_path / "code", cast(Any, runs))
    assert (found.tool, found.passed) == ("code", passed)
    assert words in found.words[0]
    assert (tmp_path / "code" / "run.sh").is_file() == ("failed" not in words)
    assert not list((tmp_path / "code").glob(".*")), "the official checker refuses hidden files"
    changes = tmp_path / "code" / "uncommitted.diff"
    assert (changes.read_text(encoding="utf-8") if changes.exists() else None) == diff


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
