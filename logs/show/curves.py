"""The curves of a report for other programs: as CSV, and as event files for TensorBoard."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs.errors import UserError
from logs.disk import explain_disk_errors, write_text
from logs.read.lines import to_number
from logs.show.figures import samples_of
from logs.show.reported_run import ReportedRun

_PACKAGE = "tensorboardX"


class Point(NamedTuple):
    """A value of a curve; ``epoch`` or ``seconds`` (since run_start) is None where the log does not say."""

    run: str
    curve: str
    epoch: float | None
    seconds: float | None
    value: float


def points_of(runs: Sequence[ReportedRun]) -> Iterator[Point]:
    """Yield the points of all curves of all runs; values that are no finite number are left out."""
    for run in runs:
        for curve, samples in samples_of(run).items():
            for epoch, seconds, value in samples:
                number = to_number(value)
                if number is not None:
                    yield Point(run.name, curve, to_number(epoch), to_number(seconds), number)


def write_csv(runs: Sequence[ReportedRun], file: Path) -> None:
    """Write the curves with one point a line.

    Raises:
        UserError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Point._fields)
    writer.writerows(["" if value is None else value for value in point] for point in points_of(runs))
    with explain_disk_errors(file):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, text.getvalue())
        except OSError as error:
            raise UserError(f"--csv: {file} cannot be written ({error.strerror}); give another file") from None


def write_tensorboard(runs: Sequence[ReportedRun], folder: Path) -> None:
    """Write the curves as event files, a folder for each run; a point's step is its epoch in thousandths.

    TensorBoard wants whole numbers as steps, and most curves have points within an epoch.

    Raises:
        UserError: The library is not installed, or the folder cannot be written.
    """
    writer_class = _writer()
    for run in runs:
        place = folder / "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in run.name)
        began = run.record.began_s or 0.0
        try:
            writer = writer_class(logdir=str(place))
        except OSError as error:
            raise UserError(f"--tensorboard: {place} cannot be made ({error.strerror}); give another folder") from None
        for point in points_of([run]):
            step = None if point.epoch is None else round(1000 * point.epoch)
            writer.add_scalar(point.curve, point.value, step, walltime=began + (point.seconds or 0.0))
        writer.close()


def _writer() -> Any:
    """Return the class of TensorBoard's event files, from the library made for them."""
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 (an extra that most installations lack)
    except ImportError:
        raise UserError(
            f"--tensorboard: the package {_PACKAGE} is not installed; run ./run.sh setup --extra tensorboard"
        ) from None
    return SummaryWriter
