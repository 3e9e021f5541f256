"""What the verbs hand on to the modules behind them, print and return; the modules have tests of their own."""

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import ROOT
from logs.__main__ import main
from logs.judge import compliance, eligible
from logs.judge import package as packing
from logs.judge.compliance import Verdict
from logs.judge.official import ToolFinding
from logs.judge.package import Packaged
from logs.show import report, watch
from tests.logs import samples


def _keep(into: list[Any], answer: Any) -> Any:
    """Return a function that keeps its arguments, and returns or raises the answer."""

    def function(*given: Any, **named: Any) -> Any:
        into.append((*given, named) if named else given)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return function


@pytest.mark.parametrize(
    ("words", "every_s", "once"),
    [([], 2.0, False), (["--once"], 2.0, True), (["--every", "0.1"], 0.1, False), (["--every", "3600"], 3600.0, False)],
)
@pytest.mark.parametrize("status", [0, 1])
def test_watch_hands_on_folder_pause_and_status(
    monkeypatch: pytest.MonkeyPatch, words: list[str], every_s: float, once: bool, status: int
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(watch, "watch", _keep(asked, status))
    assert main(["watch", "run", *words]) == status
    assert asked == [(Path("run"), sys.stdout, {"every_s": every_s, "once": once})]


@pytest.mark.parametrize("pause", ["0.09", "3600.1", "nan", "inf", "-2", "often"])
def test_a_pause_lasts_from_a_tenth_of_a_second_to_an_hour(capsys: pytest.CaptureFixture[str], pause: str) -> None:
    assert main(["watch", "run", f"--every={pause}"]) == 2
    assert f"got {pause}, allowed: 0.1 to 3600 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "asked", "said"),
    [
        ([], "write_report", ([Path("a"), Path("b")], None), "written"),
        (["--out", "o"], "write_report", ([Path("a"), Path("b")], Path("o")), "written"),
        (["--plot", "p"], "write_picture", ([Path("a"), Path("b")], Path("p")), "written"),
        (["--csv", "c"], "write_curves", ([Path("a"), Path("b")], Path("c")), "written"),
        (["--tensorboard", "t"], "write_events", ([Path("a"), Path("b")], Path("t")), "written"),
        (["--json"], "figures_of", ([Path("a"), Path("b")],), '"written"'),
    ],
)
def test_report_writes_what_is_asked_for_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], name: str, asked: Any,
    said: str,
) -> None:  # fmt: skip
    told: list[Any] = []
    monkeypatch.setattr(report, name, _keep(told, "written"))
    assert main(["report", "a", "b", *words]) == 0
    assert told == [asked]
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [(KeyboardInterrupt(), 130, ""), (UserError("no"), 2, "error: no\n"), (BrokenPipeError(), 1, None)],
    ids=["interrupt", "user error", "broken pipe"],
)
def test_an_end_before_the_end_has_its_status_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, words: str | None
) -> None:
    stderr = StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(report, "write_report", _keep([], error))
    assert main(["report", "a"]) == status
    assert stderr.closed == (words is None)
    assert words is None or stderr.getvalue() == words


FINDINGS = (
    ToolFinding("seeds", True, ("1, 2", "more")), ToolFinding("RCP", None, ()), ToolFinding("package", False, ("bad",)),
)  # fmt: skip


@pytest.mark.parametrize(("verdict", "status"), [(True, 0), (False, 1)])
def test_package_prints_each_finding_and_where_the_tree_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: bool, status: int
) -> None:
    asked: list[Any] = []
    findings = (*FINDINGS[:2], ToolFinding("package", verdict, ("bad",)))
    monkeypatch.setattr(packing, "package", _keep(asked, Packaged(Path("tree"), findings)))
    (tmp_path / "fields.yaml").write_text("cooling: water\nnics: 4\n")
    fields = ["--system-file", str(tmp_path / "fields.yaml"), "--field", "cooling=air", "--field", "x=1"]
    assert main(["package", "a", "b", "--org", "Me", *fields, "--custom-rcp", "own"]) == status
    given = {"fields": {"cooling": "air", "nics": "4", "x": "1"}, "custom_rcp": Path("own")}
    assert asked == [([Path("a"), Path("b")], "Me", ROOT / "runs" / "packages", given)]
    assert capsys.readouterr().out.splitlines() == [
        "PASS  seeds               1, 2", f"{'':26}more", "----  RCP",
        f"{'PASS' if verdict else 'FAIL'}  package             bad",
        "tree" if verdict else "tree: not written, because a check failed",
    ]  # fmt: skip
    assert main(["package", "a", "--org", "Me", "--out", "there"]) == status
    assert asked[1] == ([Path("a")], "Me", Path("there"), {"fields": {}, "custom_rcp": None})


def test_reference_points_are_made_of_the_logs_of_the_new_dialect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(samples.run_folder(tmp_path / f"run{seed}", seed)) for seed in range(10)]
    for run in runs:
        (Path(run) / "result_0.mll.txt").write_text(samples.mll(samples.run_events(epochs=4)))
    assert main(["package", *runs, "--make-rcp", str(tmp_path / "own.json")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/own.json\n"
    ((point,),) = [json.loads((tmp_path / "own.json").read_text()).values()]
    assert (point["BS"], point["Epochs to converge"]) == (64, [8] * 10)


def test_check_prints_complaints_in_words_judges_each_log_and_asks_for_its_times_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, asked, timed = tmp_path / "log", list[Any](), list[Any]()
    log.write_text(samples.mllog(samples.run_events()))
    required = "Required EXACTLY_ONE occurrence of 'seed' but found 0"
    verdict = Verdict("4.0.0", passed=False, messages=(required,))
    monkeypatch.setattr(compliance, "judge", _keep(asked, verdict))
    monkeypatch.setattr(eligible, "impossible_times", _keep(timed, ""))
    words = ["check", str(log), str(log), "--ruleset", "4.0.0", "--division", "closed"]
    assert main([*words, "--raw"]) == 1
    assert asked == [(log, "4.0.0", "closed")] * 2
    assert len(timed) == 1
    explained = "seed is missing; log seed once, from rank 0, with another value in each run"
    assert capsys.readouterr().out == f"FAIL  4.0.0  {log}\n      {explained}\n        {required}\n" * 2
    monkeypatch.setattr(compliance, "judge", _keep(asked, Verdict("4.0.0", passed=True, messages=())))
    assert main(words) == 0
    monkeypatch.setattr(eligible, "impossible_times", _keep(timed, "no time"))
    assert main(words) == 1
    assert capsys.readouterr().out.endswith(f"FAIL  times  {log}\n      no time\n")
