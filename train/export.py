"""Write the trained network of a run in the formats of other programs, then load and evaluate each file.

The newest checkpoint is written in the formats of its engine (MXNet: network-symbol.json and network-0000.params;
PyTorch: network.pt with the state, network.pt2 with the program) and as network.onnx. network.json describes the images
that the network takes. All files hold float32; images are [N, C, H, W].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.arguments import Parser, exit_status, parse
from configs.errors import UserError

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe
    from train.engine.protocol import Predict
    from train.evaluate import Score

_PREFIX = "network"
_MOST_OFF = 5e-4
"""Largest share of images that a loaded network may classify otherwise, because other kernels round differently."""


@dataclass(frozen=True)
class _Options:
    """The command line of ``./run.sh export``."""

    run: Path
    dest: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Export, and evaluate every format; return the exit status.

    1 if a format has another accuracy; otherwise see `configs.arguments.exit_status`.
    """
    return exit_status(lambda: _export(parse(_parser(), _Options, arguments)))


def _parser() -> Parser:
    parser = Parser(prog="./run.sh export", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run that has a checkpoint")
    parser.add_argument("--dest", metavar="DIR", type=Path, help="folder to write to (default: RUN/export)")
    return parser


def _export(options: _Options) -> int:
    from configs.plan import plan_run
    from logs.disk import write_json
    from logs.folder import CONFIG_FILE, RunFolder
    from train.dataset import images_of

    run, destination = options.run, options.dest or options.run / "export"
    folder = RunFolder(run)
    if not folder.is_begun:
        raise UserError(f"{run}: no {CONFIG_FILE} in it; give the folder of a run")
    recipe, cluster = folder.settings
    cluster = on_cpu(cluster)
    checkpoint, _ = folder.checkpoints.newest_valid()
    if checkpoint is None:
        raise UserError(f"{run}: no complete checkpoint in it; a run writes one when it ends")
    images_of(recipe, cluster, plan_run(recipe, cluster.world_size), _identity()).prepare()
    destination.mkdir(parents=True, exist_ok=True)
    scores = {}
    for name, predict in export_network(recipe, cluster, checkpoint, destination):
        scores[name] = score = evaluate(recipe, cluster, predict)
        sys.stdout.write(f"{name}: {score} ({score.basis})\n")
    write_json(destination / f"{_PREFIX}.json", _description(recipe, checkpoint, scores["trained"]))
    sys.stdout.write(f"{destination}\n")
    return int(any(abs(each.value - scores["trained"].value) > _MOST_OFF for each in scores.values()))


def _description(recipe: Recipe, checkpoint: Path, score: Score) -> dict[str, Any]:
    """Return the content of ``network.json``: the images that the network takes, and its score."""
    return {
        "recipe": recipe.name,
        "checkpoint": checkpoint.name,
        "num_classes": recipe.model.num_classes,
        "input": ["N", recipe.model.input_channels, recipe.model.image_size, recipe.model.image_size],
        "channels": "RGB" + (", zero" if recipe.model.input_channels > 3 else ""),  # noqa: PLR2004
        "mean": recipe.data.mean,
        "std": recipe.data.std,
        "eval_resize": recipe.data.eval_resize,
        "output": "logits",
        **score.row,
    }


def on_cpu(cluster: Cluster) -> Cluster:
    """Return the same cluster with one rank's engine on a CPU, in float32 and NCHW."""
    engine = cluster.engine.model_copy(update={"precision": "float32", "layout": "NCHW"})
    return cluster.model_copy(update={"device": "cpu", "engine": engine})


def _identity() -> Any:
    from train.rank.identity import Identity

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
    from configs.plan import plan_run
    from logs.checkpoints import read
    from train.checkpoint import weights_of
    from train.engine.build import build_model
    from train.engine.protocol import open_engine

    engine = open_engine(cluster, _identity())
    plan = plan_run(recipe, cluster.world_size)
    network = build_model(engine, recipe, cluster, plan, weights_of(read(checkpoint))).network
    yield from engine.export_formats(network, destination / _PREFIX)


def evaluate(recipe: Recipe, cluster: Cluster, predict: Predict) -> Score:
    """Return the score over all evaluation images, counted as in a run."""
    from configs.plan import plan_run
    from train.comm.communicator import SingleProcess
    from train.dataset import images_of
    from train.engine.protocol import open_engine
    from train.evaluate import metric_of

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
