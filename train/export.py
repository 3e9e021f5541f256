"""``./run.sh export``: the trained network of a run in other programs' formats, evaluated again after loading.

The newest checkpoint becomes the formats of its engine (MXNet: ``network-symbol.json`` and ``network-0000.params``;
PyTorch: ``network.pt``, its state, and ``network.pt2``, a program), ``network.onnx``, and ``network.json``, which
describes the images that the network takes. All files hold float32; images are [N, C, H, W].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import Parser
from configs.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from configs.schema import Cluster, Recipe
    from train.evaluate import Score

    Predict = Callable[[Any], np.ndarray]


_PREFIX = "network"
_MOST_OFF = 5e-4
"""Largest share of images that a loaded network may classify otherwise, because other kernels round differently."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Export and evaluate; returns 0, 1 if a format has another accuracy, 2 for wrong input."""
    try:
        options = _parser().parse_args(arguments)
        return _export(options.run, options.dest or options.run / "export")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _parser() -> Parser:
    parser = Parser(prog="./run.sh", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "export", help="a run's network in its framework's own format and as ONNX", description=__doc__
    )
    verb.add_argument("run", metavar="RUN", type=Path, help="folder of a run that has a checkpoint")
    verb.add_argument("--dest", metavar="DIR", type=Path, help="folder to write to (default: RUN/export)")
    return parser


def _export(run: Path, destination: Path) -> int:
    from configs.plan import plan_run  # noqa: PLC0415
    from logs.disk import write_json  # noqa: PLC0415
    from logs.folder import CONFIG_FILE, RunFolder  # noqa: PLC0415
    from train.dataset import images_of  # noqa: PLC0415

    folder = RunFolder(run)
    if not folder.is_begun:
        raise UserError(f"{run}: no {CONFIG_FILE} in it; give the folder of a run")
    recipe, cluster = folder.settings
    cluster = on_cpu(cluster)
    checkpoint, _ = folder.checkpoints.newest_valid()
    if checkpoint is None:
        raise UserError(f"{run}: no whole checkpoint in it; a run writes one when it ends")
    images_of(recipe, cluster, plan_run(recipe, cluster.world_size), _identity()).prepare()
    destination.mkdir(parents=True, exist_ok=True)
    scores = {}
    for name, predict in export_network(recipe, cluster, checkpoint, destination):
        scores[name] = score = evaluate(recipe, cluster, predict)
        sys.stdout.write(f"{name}: {score} ({score.basis})\n")
    description = {
        "recipe": recipe.name,
        "checkpoint": checkpoint.name,
        "num_classes": recipe.model.num_classes,
        "input": ["N", recipe.model.input_channels, recipe.model.image_size, recipe.model.image_size],
        "channels": "RGB" + (", zero" if recipe.model.input_channels > 3 else ""),  # noqa: PLR2004
        "mean": recipe.data.mean,
        "std": recipe.data.std,
        "eval_resize": recipe.data.eval_resize,
        "output": "logits",
        **scores["trained"].row,
    }
    write_json(destination / f"{_PREFIX}.json", description)
    sys.stdout.write(f"{destination}\n")
    return int(any(abs(each.value - scores["trained"].value) > _MOST_OFF for each in scores.values()))


def on_cpu(cluster: Cluster) -> Cluster:
    """Return the same cluster with one rank's engine on a CPU, in float32 and NCHW."""
    engine = cluster.engine.model_copy(update={"precision": "float32", "layout": "NCHW"})
    return cluster.model_copy(update={"device": "cpu", "engine": engine})


def _identity() -> Any:
    from train.rank.identity import Identity  # noqa: PLC0415 (--help needs the standard library only)

    return Identity(rank=0, world_size=1, local_rank=0, local_size=1, host="localhost", launcher="none")


def export_network(
    recipe: Recipe, cluster: Cluster, checkpoint: Path, destination: Path
) -> Iterator[tuple[str, Predict]]:
    """Write each format; yield its name and a function from normalised images to logits of the loaded network.

    Args:
        recipe: The network and its images.
        cluster: A cluster as `on_cpu` returns it.
        checkpoint: The checkpoint that holds the weights.
        destination: An existing folder.
    """
    from configs.plan import plan_run  # noqa: PLC0415 (--help needs the standard library only)
    from logs.checkpoints import read  # noqa: PLC0415
    from train.checkpoint import weights_of  # noqa: PLC0415
    from train.engine.build import build_model  # noqa: PLC0415
    from train.engine.protocol import open_engine  # noqa: PLC0415

    engine = open_engine(cluster, _identity())
    plan = plan_run(recipe, cluster.world_size)
    network = build_model(engine, recipe, cluster, plan, weights_of(read(checkpoint))).network
    yield from engine.export_formats(network, destination / _PREFIX)


def evaluate(recipe: Recipe, cluster: Cluster, predict: Predict) -> Score:
    """Return the score over all evaluation images, counted as in a run."""
    from configs.plan import plan_run  # noqa: PLC0415 (--help needs the standard library only)
    from train.comm.communicator import SingleProcess  # noqa: PLC0415
    from train.dataset import images_of  # noqa: PLC0415
    from train.engine.protocol import open_engine  # noqa: PLC0415
    from train.evaluate import metric_of  # noqa: PLC0415

    engine = open_engine(cluster, _identity())
    images = images_of(recipe, cluster, plan_run(recipe, cluster.world_size), _identity())
    images.load()
    source = images.open_evaluation(engine)
    metric = metric_of(engine, recipe.loss, 0)()
    for batch in source.batches():
        metric.add(engine.from_host(predict(batch.images)), batch.labels, batch.num_valid)
    source.close()
    return metric.score(SingleProcess())


if __name__ == "__main__":
    sys.exit(main())
