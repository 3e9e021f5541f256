"""What trackers get of a run: each row once, under the names of the report's curves, over all attempts."""

import json
import runpy
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import UserError
from configs.plan import Position
from logs.__main__ import main
from logs.metrics import MetricsWriter
from logs.track.follow import Sender, follow
from logs.track.trackers import FOLDER, TRACKERS, Tracker, open_tracker, require_installed
from tests.logs import samples


def _interval(step: int, **values: Any) -> dict[str, Any]:
    return {"kind": "interval", "step": step, "epoch": 1, "loss": 2.5, "lr": 0.1, "time": 100.0 + step, **values}


def _evaluation(step: int) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "epoch": 1, "top1": 0.75, "eval_loss": 0.5, "seconds": 2.0, "time": 9.0}


def test_rows_are_sent_once_as_they_come_also_by_the_next_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first, second, ends = list[Any](), list[Any](), list[bool | None]()
    (tmp_path / FOLDER).mkdir()
    writer = MetricsWriter(path)
    writes = iter([[_interval(4)], [], [_interval(9, loss=float("nan")), _evaluation(9)]])
    left = [True, True, False]

    def goes_on() -> bool:
        for row in next(writes):
            writer.row(**row)
        writer.flush()
        return left.pop(0)

    follow(tmp_path, Sender(tmp_path, "kept", Tracker(lambda *point: first.append(point), ends.append)), goes_on)
    assert first == [
        (5, 104.0, {"loss": 2.5, "learning_rate": 0.1, "epoch": 1.0}),
        (10, 109.0, {"learning_rate": 0.1, "epoch": 1.0}),
        (10, 9.0, {"accuracy": 0.75, "validation_loss": 0.5, "evaluation_s": 2.0, "epoch": 1.0}),
    ]
    writer.flush()
    resumed = MetricsWriter(path, Position(1, 5))  # drops what came after step 5
    for row in (_interval(9), _evaluation(9), _interval(14)):
        resumed.row(**row)
    resumed.flush()
    sender = Sender(tmp_path, "kept", Tracker(lambda *point: second.append(point), ends.append))
    follow(tmp_path, sender, lambda: False)
    assert [step for step, *_ in second] == [15]
    sender.close(True)
    assert ends == [True]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = {"tensorboard": "tensorboardX"}.get(name, name)
    monkeypatch.setattr("sys.meta_path", [])
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(
        UserError, match=rf"^cluster.trackers: got {name}, but the package {package} is not installed; "
    ):
        require_installed([name])
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(__spec__=SimpleNamespace()))
    require_installed([name])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = samples.run_folder(tmp_path / "run +1", best=0.98)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("  environment: {}", "  environment: {HF_TOKEN: hush}"))
    assert "hush" in (folder / "config.yaml").read_text()
    return folder


def test_wandb_gets_the_settings_without_secrets_and_finds_the_run_of_an_earlier_attempt(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    told: list[Any] = []

    def init(**options: Any) -> Any:
        asked.update(options)
        return SimpleNamespace(log=lambda values, step: told.append((step, values)), finish=finish)

    def finish(*, exit_code: int) -> None:
        told.append(exit_code)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for is_success in (True, False, None):
        tracker = open_tracker("wandb", run)
        tracker.log(5, 3.0, {"loss": 1.0})
        tracker.close(is_success)
    logged = (5, {"loss": 1.0, "time": 3.0})
    assert told == [logged, 0, logged, 1, logged, 1]
    assert (asked["id"], asked["resume"], asked["project"], asked["name"]) == ("run--1", "allow", "mine", "run +1")
    assert asked["dir"] == str(run / "trackers")
    assert asked["config"]["recipe.run.seed"] == 1
    assert "hush" not in json.dumps(asked["config"], default=str)


@pytest.mark.parametrize(("status", "told"), [("success", "FINISHED"), ("aborted", "FAILED"), (None, "KILLED")])
def test_mlflow_tells_a_run_that_may_go_on_from_one_that_failed(
    status: str | None, told: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[str, str]] = []
    client = SimpleNamespace(
        get_experiment_by_name=lambda _: SimpleNamespace(experiment_id="1"),
        search_runs=lambda *_, **__: [SimpleNamespace(info=SimpleNamespace(run_id="found"))],
        update_run=lambda *_, **__: None,
        log_batch=lambda *_, **__: None,
        set_terminated=lambda name, status: ends.append((name, status)),
    )
    package = SimpleNamespace(__spec__=SimpleNamespace(), MlflowClient=lambda: client)
    monkeypatch.setitem(sys.modules, "mlflow", package)
    entities = SimpleNamespace(Metric=lambda *values: values, Param=lambda *values: values)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite://")
    if status is None:
        (run / "summary.json").unlink()  # as of a run that was killed
    else:
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"status": status}))
    monkeypatch.setattr(sys, "argv", ["logs.track", str(run), "mlflow"])
    with Path("/dev/null").open() as ended, pytest.raises(SystemExit) as left:
        monkeypatch.setattr(sys, "stdin", ended)
        runpy.run_module("logs.track", run_name="__main__")
    assert (left.value.code, ends) == (0, [("found", told)])


@pytest.mark.medium
def test_event_files_hold_the_points_with_step_and_time(run: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    assert main(["watch", str(run), "--track", "tensorboard"]) == 0
    (file,) = (run / "trackers" / "tensorboard").iterdir()
    content, points = file.read_bytes(), []
    while content:  # length, its check sum, an event, its check sum
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        points += [(value.tag, event.step, event.wall_time, value.simple_value) for value in event.summary.value]
        content = content[16 + length :]
    # Epoch 1 of 1,198 images ends after 18 steps of 64, 10 s after run_start.
    assert ("loss", 18, samples.BEGIN_S + 30, pytest.approx(2.3)) in points
    assert sum(tag == "accuracy" for tag, *_ in points) == 2
