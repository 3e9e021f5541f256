"""What the words of the official tools become, also where a tool says nothing; `test_package` runs the tools."""

from pathlib import Path

import pytest

from logs.judge import official
from logs.judge.official import ToolFinding, _complaints, _rcp, _score, _summary

_CRITICAL = "CRITICAL - no results"


@pytest.mark.parametrize(
    ("words", "score", "expected"),
    [
        ("INFO - read", 12.5, ToolFinding("result summary", True, ("score 12.5 minutes",))),
        ("NOTICE - old", 12.5, ToolFinding("result summary", True, ("score 12.5 minutes", "NOTICE - old"))),
        (_CRITICAL, 12.5, ToolFinding("result summary", False, ("score 12.5 minutes", _CRITICAL))),
        ("", None, ToolFinding("result summary", False, ("the tool printed no score",))),
        (f"a\n{_CRITICAL}\nKeyError: 1", None, ToolFinding("result summary", False, (_CRITICAL, "KeyError: 1"))),
    ],
)
def test_a_summary_passes_with_a_score_and_without_a_critical_line(
    words: str, score: float | None, expected: ToolFinding
) -> None:
    assert _summary(words, score) == expected


@pytest.mark.parametrize(
    ("words", "passed", "told"),
    [
        ("INFO - RCP found, RCP test PASSED", True, ("RCP found",)),
        ("ERROR - too fast, RCP test FAILED", False, ("too fast",)),
        ("INFO - near, RCP test PASSED\nScore should be normalized by factor of 36 / 35 = 1.02857", True,
         ("near", "faster than the reference: the score is multiplied by 1.0286")),
        ("a\nKeyError: 'x'\n", False, ("KeyError: 'x'",)),
        ("\n", False, ("the tool printed nothing",)),
    ],
)  # fmt: skip
def test_a_comparison_passes_by_the_tools_word_alone(
    words: str, passed: bool, told: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official, "_run", lambda *_: words)
    assert _rcp(Path(), Path("results"), "4.0.0", None) == ToolFinding("RCP", passed, told)


def test_own_reference_points_are_handed_to_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def keep(*words: object) -> str:
        asked.extend(words)
        return ""

    monkeypatch.setattr(official, "_run", keep)
    _rcp(Path("folder"), Path("results"), "4.0.0", Path("/own.json"))
    usual = ["--rcp_usage", "training", "--rcp_version", "4.0.0", "results"]
    assert asked == [Path("folder"), "rcp_checker", [*usual, "--custom_rcps", "/own.json"]]


def test_complaints_are_errors_once_each_and_the_end_of_a_traceback() -> None:
    words = "ERROR - one\nINFO - two\nERROR - one\nTraceback (most recent call last):\n  x\nValueError: three\n"
    assert _complaints(words) == ("one", "ValueError: three")
    assert _complaints("INFO - ValueError") == ()


def test_the_score_is_that_of_the_first_system_that_has_one(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    assert _score(file) is None
    for text, score in (("[]", None), ('[{"a": 1}]', None), ('[{"resnet": null}, {"resnet": "1.5"}]', 1.5)):
        file.write_text(text, encoding="utf-8")
        assert _score(file) == score
