"""Write the trained network of a run in the formats of other programs, then load and evaluate each file.

The newest checkpoint, or the one that cluster.checkpoint keeps for this, is written in the formats of the run's
engine (MXNet: network-symbol.json and network-0000.params; PyTorch: network.pt with the state, network.pt2 with the
program), as network.onnx and as network.safetensors. Where evaluations judge other weights than those of the step,
these are written. network.json says what is done to an
image before the network sees it, and classify.py does that. All files hold float32; images are [N, C, H, W].
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.arguments import Parser, exit_status, parse
from configs.errors import UserError

if TYPE_CHECKING:
    from train.evaluate import Score
    from train.export.exported_run import ExportedRun

_MOST_OFF = 5e-4
"""Largest share of images that a loaded network may classify otherwise, because other kernels round differently."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Export, and evaluate every format; return the exit status.

    1 if a format has another accuracy; otherwise see `configs.arguments.exit_status`.
    """
    parser = Parser(prog="./run.sh export", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run that has a checkpoint")
    parser.add_argument("--dest", metavar="DIR", type=Path, help="folder to write to (default: RUN/export)")
    place = "folder of the packed data sets, if they have moved (default: paths.data of the run)"
    parser.add_argument("--data", metavar="DIR", type=Path, help=place)
    names = "names in the files of nothing but tensors (.pt, .safetensors): this program's, or those of torchvision"
    parser.add_argument("--names", choices=["own", "torchvision"], default="own", help=f"{names} (default: own)")
    last = "take the newest checkpoint, although cluster.checkpoint keeps another one for this"
    parser.add_argument("--last", action="store_true", help=last)
    parser.add_argument("--no-evaluation", action="store_true", help="evaluate nothing; needs no images")
    return exit_status(lambda: parse(parser, _export, arguments))


def _export(*, run: Path, dest: Path | None, data: Path | None, names: str, last: bool, no_evaluation: bool) -> int:
    from train.export.exported_run import ExportedRun, with_checkpoint
    from train.export.formats import evaluate, export_network, names_of_torchvision

    def write(opened: ExportedRun) -> tuple[Path, dict[str, Score]]:
        scores = {}
        given = names_of_torchvision(opened.recipe.model) if names == "torchvision" else None
        if not no_evaluation:
            _prepare_images(opened)
        with opened.new_files(dest) as files:
            for name, predict in export_network(opened.recipe, opened.cluster, opened.checkpoint, files, given):
                if no_evaluation:
                    sys.stdout.write(f"{name}: not evaluated\n")
                else:
                    scores[name] = score = evaluate(opened.recipe, opened.cluster, predict)
                    sys.stdout.write(f"{name}: {score} ({score.basis})\n")
            opened.describe(files, scores["trained"].row if scores else None)
        return files.parent, scores

    folder, scores = with_checkpoint(lambda: ExportedRun.open(run, data, is_last=last), write)
    sys.stdout.write(f"{folder}\n")
    return int(any(abs(each.value - scores["trained"].value) > _MOST_OFF for each in scores.values()))


def _prepare_images(run: ExportedRun) -> None:
    """Check the evaluation images before anything is written; they are read where they lie, also if the run copied."""
    from configs.load import resolve_path
    from data.verify import check_dataset

    if run.recipe.data.source == "synthetic":
        return
    place = resolve_path(run.cluster.paths.data) / run.recipe.data.name
    try:
        found = check_dataset(place, run.recipe.data, run.recipe.model.num_classes)
    except UserError as error:
        remedy = "--data DIR if the data sets are elsewhere, --no-evaluation to export without them"
        raise UserError(f"{error}; or give {remedy}") from None
    if run.manifest and found.eval != run.manifest.eval:
        sys.stderr.write(f"warning: {place}: not the evaluation images of the run, whose scores may be others\n")


if __name__ == "__main__":
    sys.exit(main())
