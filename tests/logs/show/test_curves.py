"""The curves go to other programs with the values that the log has."""

from __future__ import annotations

import csv
import errno
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from configs.errors import UserError
from logs.__main__ import main
from logs.read.record import Evaluation
from logs.show.curves import write_csv, write_tensorboard
from logs.show.reported_run import gather_run
from tests.logs import samples


def test_csv_has_the_points_of_each_curve_with_epoch_and_seconds(tmp_path: Path) -> None:
    run, out = samples.run_folder(tmp_path / "run"), tmp_path / "new" / "curves.csv"
    assert main(["report", str(run), "--csv", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    accuracies = [(row["epoch"], row["seconds"], row["value"]) for row in rows if row["curve"] == "accuracy"]
    assert accuracies == [("4.0", "41.0", "0.485"), ("8.0", "82.0", "0.97")]
    losses = [row for row in rows if row["curve"] == "loss"]
    assert [float(row["value"]) for row in losses] == pytest.approx([2.3 / epoch for epoch in range(1, 9)])
    assert {row["run"] for row in rows} == {"run"}


def test_csv_leaves_out_values_that_are_no_finite_number(tmp_path: Path) -> None:
    run, out = samples.run_folder(tmp_path / "run"), tmp_path / "curves.csv"
    metrics = run / "metrics.jsonl"
    metrics.write_text(
        metrics.read_text().replace('"loss": 2.3,', '"loss": NaN,').replace('"loss": 1.15,', '"loss": "no",')
    )
    assert main(["report", str(run), "--csv", str(out)]) == 0
    with out.open() as file:
        losses = [row for row in csv.DictReader(file) if row["curve"] == "loss"]
    assert [float(row["value"]) for row in losses] == pytest.approx([2.3 / epoch for epoch in range(3, 9)])


def test_tensorboard_without_its_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match=r"tensorboardX is not installed; run ./run.sh setup --extra tensorboard"):
        write_tensorboard([gather_run(samples.run_folder(tmp_path / "run"))], tmp_path / "events")
    assert not (tmp_path / "events").exists()


def test_event_files_hold_the_curves_of_each_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    run = samples.run_folder(tmp_path / "run")
    assert main(["report", str(run), "--tensorboard", str(tmp_path / "events")]) == 0
    (file,) = (tmp_path / "events" / "run").iterdir()
    content, accuracies = file.read_bytes(), []
    while content:  # A record is its length (8 bytes), a checksum (4), an event, and a checksum (4).
        size = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + size])
        accuracies += [(event.step, each.simple_value) for each in event.summary.value if each.tag == "accuracy"]
        content = content[16 + size :]
    assert accuracies == [(4000, pytest.approx(0.485)), (8000, pytest.approx(0.97))]


def test_csv_tells_nothing_from_zero(tmp_path: Path) -> None:
    run = gather_run(samples.run_folder(tmp_path / "run"))
    run = replace(run, intervals=[{"step": 0, "loss": 0.0}], record=replace(run.record, evaluations=(), began_s=None))
    write_csv([run], tmp_path / "curves.csv")
    (line,) = (tmp_path / "curves.csv").read_text().splitlines()[1:]
    assert re.fullmatch(r"run,loss,0\.05\d+,,0\.0", line)


class _Writer:
    """Stands in the place of the library's writer, which most installations lack."""

    made: ClassVar[list[_Writer]] = []

    def __init__(self, logdir: str) -> None:
        if logdir.endswith("refused"):
            raise OSError(errno.EACCES, "Permission denied")
        self.logdir, self.is_closed, self.points = logdir, False, list[tuple[Any, ...]]()
        self.made.append(self)

    def add_scalar(self, curve: str, value: float, step: int | None, *, walltime: float) -> None:
        self.points.append((curve, value, step, walltime))

    def close(self) -> None:
        self.is_closed = True


def test_each_run_has_a_folder_of_events_with_epochs_in_thousandths_and_unix_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=_Writer))
    monkeypatch.setattr(_Writer, "made", [])
    run = replace(gather_run(samples.run_folder(tmp_path / "run")), name="a b/c_1.0-x", intervals=[])
    told = (Evaluation(4.5, 41.0, 0.25, None), Evaluation(None, None, 0.5, None))
    run = replace(run, record=replace(run.record, evaluations=told))
    late = replace(run, name="late", record=replace(run.record, began_s=None))
    write_tensorboard([run, late], tmp_path / "events")
    assert [each.logdir for each in _Writer.made] == [f"{tmp_path}/events/a-b-c_1.0-x", f"{tmp_path}/events/late"]
    assert all(each.is_closed for each in _Writer.made)
    for writer, began_s in zip(_Writer.made, (samples.BEGIN_S + 20, 0.0), strict=True):
        assert [point[1:] for point in writer.points if point[0] == "accuracy"] == [
            (0.25, 4500, began_s + 41.0), (0.5, None, began_s),
        ]  # fmt: skip
    with pytest.raises(UserError) as caught:
        write_tensorboard([replace(run, name="refused")], tmp_path)
    words = "cannot be made (Permission denied); give another folder"
    assert str(caught.value) == f"--tensorboard: {tmp_path}/refused {words}"


def test_the_command_writes_the_events_of_every_run_and_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=_Writer))
    monkeypatch.setattr(_Writer, "made", [])
    runs = [str(samples.run_folder(tmp_path / name)) for name in ("one", "two")]
    assert main(["report", *runs, "--tensorboard", str(tmp_path / "events")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'events'}\n"
    assert [Path(each.logdir) for each in _Writer.made] == [tmp_path / "events" / name for name in ("one", "two")]
    curves = {point[0] for point in _Writer.made[0].points}
    assert curves == {"accuracy", "loss", "learning_rate", "images_per_s", "evaluation_s"}
