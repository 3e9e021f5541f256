"""``./run.sh export``: the trained network of a run in formats that others read, evaluated again as they would load it.

The newest checkpoint becomes ``network-symbol.json`` and ``network-0000.params`` (MXNet), ``network.onnx`` and
``network.json``, which says what the network wants to see. All hold float32 and take images [N, C, H, W].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import load_run
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from logs.checkpoints import newest_whole, read
from logs.folder import CONFIG_FILE, write_json
from train.checkpoint import weights_of
from train.comm.communicator import SingleProcess
from train.dataset import images_of
from train.metric import Score, metric_of
from train.rank.identity import Identity

__all__ = ["evaluate", "export_network", "main"]

_PREFIX = "network"
_ALONE = Identity(rank=0, world_size=1, local_rank=0, local_size=1, host="localhost", launcher="none")
_MOST_OFF = 5e-4
"""Share of images that other kernels' rounding may judge otherwise."""

Predict = Callable[[Any], np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Export and evaluate; give 0, 1 where a format gives another accuracy, 2 for wrong input."""
    parser = Parser(prog="./run.sh", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("export", help="a run's network as MXNet parameters and ONNX", description=__doc__)
    verb.add_argument("run", metavar="RUN", type=Path, help="folder of a run that has kept a checkpoint")
    verb.add_argument("--dest", metavar="DIR", type=Path, help="where to write (default: RUN/export)")
    try:
        options = parser.parse_args(arguments)
        return _export(options.run, options.dest or options.run / "export")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _export(run: Path, destination: Path) -> int:
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"{run}: no {CONFIG_FILE} in it; give the folder of a run")
    recipe, cluster = load_run(run / CONFIG_FILE)
    cluster = on_cpu(cluster)
    checkpoint, _ = newest_whole(run)
    if checkpoint is None:
        raise UserError(f"{run}: no whole checkpoint in it; a run keeps one when it ends")
    images_of(recipe, cluster, plan_run(recipe, cluster.world_size), _ALONE).prepare()
    destination.mkdir(parents=True, exist_ok=True)
    scores = {}
    for name, predict in export_network(recipe, cluster, checkpoint, destination):
        scores[name] = score = evaluate(recipe, cluster, predict)
        sys.stdout.write(f"{name}: {score} ({score.basis})\n")
    description = {
        "recipe": recipe.name, "checkpoint": checkpoint.name, "num_classes": recipe.model.num_classes,
        "input": ["N", recipe.model.input_channels, recipe.model.image_size, recipe.model.image_size],
        "channels": "RGB" + (", zero" if recipe.model.input_channels > 3 else ""),  # noqa: PLR2004
        "mean": recipe.data.mean, "std": recipe.data.std, "eval_resize": recipe.data.eval_resize,
        "output": "logits", **scores["trained"].row,
    }  # fmt: skip
    write_json(destination / f"{_PREFIX}.json", description)
    sys.stdout.write(f"{destination}\n")
    return int(any(abs(each.value - scores["trained"].value) > _MOST_OFF for each in scores.values()))


def on_cpu(cluster: Cluster) -> Cluster:
    """Give the same place with everything on its CPU, in float32 and NCHW."""
    engine = cluster.engine.model_copy(update={"precision": "float32", "layout": "NCHW"})
    return cluster.model_copy(update={"device": "cpu", "engine": engine})


def export_network(
    recipe: Recipe, cluster: Cluster, checkpoint: Path, destination: Path
) -> Iterator[tuple[str, Predict]]:  # fmt: skip
    """Write each format, and give its name and what predicts with it once loaded: normalised images to logits.

    Args:
        recipe: The network and its images.
        cluster: As `on_cpu` gives it.
        checkpoint: Whose weights.
        destination: An existing folder.
    """
    import mxnet as mx  # noqa: PLC0415 (slow)
    import onnxruntime  # noqa: PLC0415

    from train.engine.mxnet.build import build_model  # noqa: PLC0415

    plan = plan_run(recipe, cluster.world_size)
    network = build_model(recipe, cluster, plan, _ALONE, weights_of(read(checkpoint))).network
    side = recipe.model.image_size
    shape = (1, recipe.model.input_channels, side, side)
    network.predict(mx.nd.zeros(shape)).wait_to_read()
    yield "trained", lambda images: network.predict(images).asnumpy()

    prefix = destination / _PREFIX
    network.export(prefix)
    files = f"{prefix}-symbol.json", f"{prefix}-0000.params"
    loaded = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    yield "MXNet", lambda images: loaded(images).asnumpy()

    onnx = f"{prefix}.onnx"
    mx.onnx.export_model(*files, [shape], np.float32, onnx, dynamic=True, dynamic_input_shapes=[("N", *shape[1:])])
    _freeze(onnx)
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    yield "ONNX", lambda images: session.run(None, {"data": images.asnumpy()})[0]


def _freeze(path: str) -> None:
    """Take the weights off the list of inputs, where MXNet puts them too: a runtime may then fold them."""
    import onnx  # noqa: PLC0415 (slow)

    model = onnx.load(path)
    images = [each for each in model.graph.input if each.name == "data"]
    del model.graph.input[:]
    model.graph.input.extend(images)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def evaluate(recipe: Recipe, cluster: Cluster, predict: Predict) -> Score:
    """Give the score over all evaluation images, as a run counts it."""
    import mxnet as mx  # noqa: PLC0415 (slow)

    source = images_of(recipe, cluster, plan_run(recipe, cluster.world_size), _ALONE).open_evaluation()
    metric = metric_of(recipe.loss, _ALONE.rank)()
    for images, labels, num_valid in source.batches():
        metric.add(mx.nd.array(predict(images)), labels, num_valid)
    source.close()
    return metric.score(SingleProcess())


if __name__ == "__main__":
    sys.exit(main())
