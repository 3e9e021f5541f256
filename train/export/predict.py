"""Say what is in images: the most probable class of each, its probability, and the runners-up.

IMAGE is a JPEG or PNG file, or a folder, of which all files but hidden ones are taken. The network is that of a run,
exported as ONNX, and each image is treated as an evaluation of the run treated its images. A run without an export is
exported first.
"""

import csv
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import Parser, exit_status, parse, printable
from configs.errors import UserError
from configs.reading import Unreadable, exists, is_file, is_folder, patiently

if TYPE_CHECKING:
    from train.export.classify import Classifier

Best = list[tuple[str, float]]
"""Names and probabilities of the most probable classes of an image, the most probable one first."""

_EXAMPLES = """\
examples:
  ./run.sh predict runs/digits-20261122-161105 photo.jpg
  ./run.sh predict runs/digits-20261122-161105/export my-photos --top 1
  ./run.sh predict runs/digits-20261122-161105 my-photos --csv > classes.csv
exit status: 0 done, 1 some images could not be read, 2 wrong input or no image could be read, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict, and return the exit status.

    1 if some of the images could not be read, 2 if none could; otherwise see `configs.arguments.exit_status`.
    """
    parser = Parser(prog="./run.sh predict", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run, or of an export (./run.sh export)")
    parser.add_argument("images", metavar="IMAGE", nargs="+", type=Path, help="JPEG or PNG files, and folders of them")
    parser.add_argument("--top", metavar="K", type=int, default=3, help="classes to name per image (default: 3)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object a line for each image")
    form.add_argument("--csv", action="store_true", help="print a CSV table: file, class and probability, runners-up")
    return exit_status(lambda: parse(parser, _predict, arguments))


def _predict(*, run: Path, images: list[Path], top: int, json: bool, csv: bool) -> int:
    if top < 1:
        raise UserError(f"--top: got {top}, allowed: 1 or more")
    classifier = _open_classifier(run)
    top = min(top, classifier.network["num_classes"])
    files = [file for image in images for file in _files_of(image)]
    write = _write_json if json else _csv_writer(top) if csv else _write_line
    num_failed = 0
    for file in files:
        best: Best = []
        problem = ""
        try:
            best = _best(classifier, file, top)
        except UserError as error:
            num_failed, problem = num_failed + 1, str(error)
        write(file, best, problem)
    if num_failed == len(files):
        return 2
    return int(num_failed > 0)


def _open_classifier(path: Path) -> "Classifier":
    """Return the network of a run, which is exported if it is not, or of an export.

    Raises:
        UserError: The folder is neither, or its network cannot be loaded.
    """
    from logs.folder import RunFolder
    from train.export.classify import Classifier
    from train.export.description import DESCRIPTION_FILE, read_description

    run, folder = RunFolder(path), path
    if run.is_begun and not run.checkpoints.files() and is_file(path / "export" / DESCRIPTION_FILE):
        folder = path / "export"
        sys.stderr.write(f"{path}: no checkpoint in it; its export is taken\n")
    elif run.is_begun:
        from train.export.exported_run import ExportedRun, with_checkpoint

        folder, is_new = with_checkpoint(lambda: ExportedRun.open(path), ExportedRun.onnx_export)
        if is_new:
            sys.stderr.write(
                f"exported to {folder}, without an evaluation (./run.sh export {shlex.quote(str(path))} evaluates)\n"
            )
    elif not is_file(path / DESCRIPTION_FILE):
        raise UserError(f"{path}: neither the folder of a run nor of an export; give one that has a checkpoint")
    if read_description(folder)["onnx"] is None:
        raise UserError(f"{folder}: has no ONNX file; export the network again where onnx is installed")
    try:
        return Classifier(folder)
    except Exception as error:  # noqa: BLE001 (onnxruntime's errors have no public base class)
        reason = " ".join(str(error).split())
        raise UserError(f"{folder}: the network cannot be loaded ({reason}); export it again") from None


def _files_of(image: Path) -> list[Path]:
    """Return a file, or all files below a folder in the order of their names, but no hidden or system files.

    Raises:
        UserError: There is no such path, or no file in the folder.
    """
    if not _is_folder(image):
        return [image]
    from data.sources.class_folders import is_hidden

    shown = (path for path in sorted(image.rglob("*")) if not any(map(is_hidden, path.relative_to(image).parts)))
    files = [path for path in shown if not _is_folder(path)]
    if not files:
        raise UserError(f"{image}: no file in it; give an image or a folder of images")
    return files


def _is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path; `_best` tells of what is neither that nor a file."""
    try:
        return is_folder(path)
    except Unreadable:
        return False


def _best(classifier: "Classifier", file: Path, top: int) -> Best:
    """Return the most probable classes of an image.

    Raises:
        UserError: The file cannot be classified; the text says why, without the name of the file.
    """
    from data.images import file_problem

    try:
        if not is_file(file):  # opening a pipe would wait for its writer
            raise UserError("is not a file" if exists(file) else "no such file")
    except Unreadable as error:
        raise UserError(error.reason) from None
    if problem := file_problem(file, is_decoded=False):
        raise UserError(problem.text)
    try:
        (row,) = patiently(file, lambda: classifier.probabilities([file]))
    except Exception as error:  # noqa: BLE001 (what Pillow raises depends on the place of the damage)
        problem = file_problem(file, is_decoded=True)
        raise UserError(problem.text if problem else f"cannot be classified: {error}") from None
    if not all(map(math.isfinite, row)):
        raise UserError("the network's output is not finite; train it with a smaller rate")
    best = [int(each) for each in row.argsort(kind="stable")[::-1][:top]]
    return [(classifier.class_name(each), float(row[each])) for each in best]


def _write_json(file: Path, best: Best, problem: str) -> None:
    """Write an object: ``file``, and ``predictions`` or ``error``."""
    predictions = [{"class": name, "probability": probability} for name, probability in best]
    print(json.dumps({"file": str(file), **({"error": problem} if problem else {"predictions": predictions})}))


def _csv_writer(top: int) -> Callable[[Path, Best, str], None]:
    """Write the head of a CSV table; return what writes a row, which ends with an error where there is no class."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    ranked = [name for place in range(2, top + 1) for name in (f"class {place}", f"probability {place}")]
    writer.writerow(["file", "class", "probability", *ranked, "error"])

    def write(file: Path, best: Best, problem: str) -> None:
        cells = [cell for name, value in best for cell in (printable(name), f"{value:.6f}")]
        writer.writerow([file, *cells, *[""] * (2 * (top - len(best))), problem])

    return write


def _write_line(file: Path, best: Best, problem: str) -> None:
    """Write a line; one of what could not be classified goes to the standard error."""
    if problem:
        sys.stderr.write(f"error: {printable(str(file))}: {problem}\n")
    else:
        classes = ", ".join(f"{printable(name)} {value:.4f}" for name, value in best)
        print(f"{printable(str(file))}: {classes}")


if __name__ == "__main__":
    sys.exit(main())
