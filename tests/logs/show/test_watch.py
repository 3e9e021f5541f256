import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_recipe
from configs.schema import Recipe
from logs.claims import Claims
from logs.metrics import MetricsFollower
from logs.show.reported_run import gather_run
from logs.show.watch import describe_progress, watch
from logs.show.wording import notes_of
from tests.logs import samples
from tests.programs import Terminal


def row(step: int, **more: object) -> str:
    return json.dumps({"kind": "interval", "step": step, "images_per_s": 1000.0, "time": 100.0, **more}) + "\n"


def test_a_growing_file_is_read_from_the_end_of_the_last_complete_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = MetricsFollower(path)

    def steps(content: str | None) -> dict[str, int]:
        if content is not None:
            path.write_text(content)
        follower.update()
        return {kind: last["step"] for kind, last in follower.last.items()}

    assert steps(None) == {}
    assert steps(row(1) + row(2)[:20]) == {"interval": 1}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: os.open("/stale", 0))
        assert steps(None) == {"interval": 1}, "a read fails"
    evaluated = '{"kind": "evaluation", "step": 3}\n'
    assert steps(f"{row(1)}{row(2)}{evaluated}rubbish\n[1]\n5\n{row(4)}[[[\n") == {"interval": 4, "evaluation": 3}
    assert steps(row(7)) == {"interval": 7}, "the run began anew"


def test_a_run_is_followed_to_its_end_and_decides_the_exit_status(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    metrics = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").unlink()
    row = {"time": "t", "outcome": "failed", "cause": "rank 1 broke", "host": "b", "from_step": 0, "kept_step": 19}
    row |= {"goes_on": True, "leaves_out": ["b"]}
    (folder / "attempts.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            (folder / "metrics.jsonl").write_text("".join(metrics[:3]))
        else:
            (folder / "metrics.jsonl").write_text("".join(metrics))
            (folder / "summary.json").write_bytes(summary)

    shown = io.StringIO()
    assert watch(folder, shown, every_s=0.5, once=False, sleep=sleep) == 0
    assert waits == [0.5, 0.5]
    lines = shown.getvalue().splitlines()
    assert lines[0] == "digits: starting, no step reported yet"
    assert "epoch 2.99 of at most 6" in lines[2]
    assert "waiting for input 8.0%, exposed communication 21.0%" in lines[3]
    assert lines[-1] == "ended: success"
    words = "failed: rank 1 broke; from step 0, kept step 19, was restarted automatically without b"
    assert lines[-2] == f"  attempt 1 {words}"
    assert f"Attempt 1 {words}." in notes_of(gather_run(folder))
    assert "\x1b" not in shown.getvalue()


def test_the_end_is_told_with_its_reason_and_a_success_whose_files_say_otherwise_is_none(tmp_path: Path) -> None:
    shown = io.StringIO()
    aborted = samples.run_folder(tmp_path / "aborted", status="aborted")
    told = json.loads((aborted / "summary.json").read_text())
    (aborted / "summary.json").write_text(json.dumps({**told, "failure": "rank 1 died"}))
    assert watch(aborted, shown, every_s=1, once=True) == 1
    assert shown.getvalue().endswith("ended: aborted, rank 1 died\n")
    folder = samples.run_folder(tmp_path / "run", best=0.98)
    assert watch(folder, shown, every_s=1, once=True) == 0
    log = folder / "result_0.txt"
    log.write_text(log.read_text().replace('"value": 0.98', '"value": 0.99'))
    assert watch(folder, shown, every_s=1, once=True) == 1
    assert "ended: success, but files disagree: accuracy is 0.9" in shown.getvalue()


def test_a_run_whose_owner_is_gone_has_no_time_left_and_one_that_goes_on_has(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "summary.json").unlink()
    ended = subprocess.Popen(["true"])
    ended.wait()
    texts = []
    for pid in (os.getpid(), ended.pid):
        Claims(folder).take(pid=pid)
        shown = io.StringIO()
        assert watch(folder, shown, every_s=1, once=True) == 1
        texts.append(shown.getvalue())
        shutil.rmtree(folder / "claims")
    assert [("left until" in text, "no process trains in it" in text) for text in texts] == [
        (True, False),
        (False, True),
    ]


def test_a_run_that_goes_on_tells_its_last_figures_and_the_time_left() -> None:
    recipe = load_recipe("mlperf-b3264")
    steps_of_10_epochs = 10 * 1281167 // 3264
    last = {
        "interval": json.loads(row(steps_of_10_epochs - 1, loss=None, lr=0.5) ),
        "evaluation": {"kind": "evaluation", "top1": 0.44, "epoch": 7},
    }  # fmt: skip
    last["interval"]["images_per_s"] = 1281167 / 20
    words = _text(recipe, last)
    assert "last metrics 3 s ago" in words
    assert "loss not finite" in words
    assert "top-1 0.4400 after epoch 7, target 0.759" in words
    several = {"interval": last["interval"], "evaluation": {"kind": "evaluation", "mean_auc": 0.81, "epoch": 7}}
    assert "mean ROC-AUC 0.8100 after epoch 7" in _text(recipe, several)
    digits = load_recipe("digits", ["run.epochs=1000"])
    steps_of_900_epochs = 900 * 1198 // 64
    last = {"interval": json.loads(row(steps_of_900_epochs - 1))}
    # 100 epochs of 1.198 s
    left, _ = describe_progress(digits, 20_000, last, now=100.0)[-1]
    assert left == "  at most 2m00s left until the last epoch ends"


def _text(recipe: Recipe, last: dict[str, dict[str, Any]]) -> str:
    return "\n".join(text for text, _ in describe_progress(recipe, 20_000, last, now=103.0))


def test_a_run_that_is_deleted_is_told_after_a_second_look_and_ends_the_watching(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    (folder / "summary.json").unlink()
    looks = []

    def sleep(_: float) -> None:
        looks.append(folder.exists())
        if len(looks) == 1:
            folder.rename(tmp_path / "away")  # as a file server may lose it for a moment
        elif len(looks) == 2:
            (tmp_path / "away").rename(folder)
        elif len(looks) == 3:
            shutil.rmtree(folder)
        assert len(looks) < 9

    with pytest.raises(UserError, match=rf"^{folder}: was deleted while it was watched; what is above"):
        watch(folder, io.StringIO(), every_s=0.5, once=False, sleep=sleep)
    assert looks == [True, False, True, False]


class Screen(Terminal):
    def fileno(self) -> int:
        return 1


def test_an_update_takes_the_place_of_the_one_before_and_a_single_look_leaves_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = samples.run_folder(tmp_path / "run")
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    once = Screen()
    assert watch(folder, once, every_s=0.5, once=True) == 1
    assert "\x1b[J" not in once.getvalue()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            (folder / "summary.json").write_bytes(summary)

    terminal = Screen()
    assert watch(folder, terminal, every_s=0.5, once=False, sleep=sleep) == 0
    nothing, *screens = terminal.getvalue().split("\x1b[H\x1b[J")
    assert (nothing, len(screens)) == ("", 3)
    assert screens[-1].endswith("\x1b[32mended: success\x1b[0m\n")
    assert ["left until" in screen for screen in screens] == [True, True, False]


@pytest.mark.parametrize(("step", "full"), [(0, 0), (149, 10), (299, 20), (400, 20)])
def test_a_step_line_counts_from_one_its_bar_has_twenty_places_and_unknown_shares_are_called_so(
    step: int, full: int
) -> None:
    recipe = load_recipe("digits", ["run.epochs=12"])
    row = {"step": step, "images_per_s": 1234.6, "loss": 0.123456, "lr": float("nan"), "time": 90.0}
    where, rates, evaluated, *_ = (text for text, _ in describe_progress(recipe, 300, {"interval": row}, now=95.4))
    assert (
        f"[{'#' * full}{'.' * (20 - full)}] step {step + 1} of 300, epoch {min((step + 1) * 64 / 1198, 12):.2f}"
        in where
    )
    assert "last metrics 5 s ago" in where
    for words in ("1235 images/s", "loss 0.1235", "learning rate not finite", "input unknown", "communication unknown"):
        assert words in rates
    assert "none yet" in evaluated
    assert len(describe_progress(recipe, 300, {"interval": row}, now=None)) == 3
