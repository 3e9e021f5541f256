"""One rank of ``bench gpu``: does a step on this device in 16 bits compute as float32 does on the CPU?

Both steps begin with the same weights and the same images, so what differs is the arithmetic of the kernels.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from configs.load import load_both
from configs.optimizers import HyperParameters
from configs.plan import plan_run
from train.bench.programs.gpu_step import allow_tf32
from train.bench.samples import Figures, run_task, write_samples
from train.engine.build import build_model
from train.engine.protocol import open_engine
from train.rank.identity import Identity

_HYPER = HyperParameters(lr=0.1, momentum=0.9, weight_decay=1e-4)
_ALONE = Identity(0, 1, 0, 1, "here", "none")
_ON_CPU = ("cluster.device=cpu", "cluster.engine.precision=float32", "cluster.engine.layout=NCHW")


def main(recipe: str, overrides: Sequence[str], kinds: Sequence[str]) -> None:
    """Compare steps in several number types with float32 on the CPU.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster ``laptop``.
        kinds: Number types, see `differences`.
    """
    for kind in kinds:
        write_samples(_ALONE, kind, [differences(recipe, overrides, kind)])


def differences(recipe: str, overrides: Sequence[str], kind: str) -> Figures:
    """Return how far two steps on a device are from the same steps on the CPU in float32.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster ``laptop``, the device among them.
        kind: float32, float16, bfloat16, or TF32: float32 whose products have ten bits of fraction.

    Returns:
        ``loss_error``, the difference of the mean losses of the first step, and as |a - b| / |b|: ``logits_error`` of
        an evaluation before the steps, ``gradient_error`` of the first step, ``statistics_error`` and ``update_error``
        of what the first step added to the running statistics and to the weights, ``second_update_error`` of what both
        steps added to the weights.
    """
    exact = _two_steps(recipe, [*overrides, *_ON_CPU], is_tf32=False)
    precision = "float32" if kind == "TF32" else kind
    found = _two_steps(recipe, [*overrides, f"cluster.engine.precision={precision}"], is_tf32=kind == "TF32")
    loss_error = abs(float(found.pop("loss")[0] - exact.pop("loss")[0]))
    errors = {f"{name}_error": _distance(found[name], exact[name]) for name in exact if exact[name].any()}
    return {"loss_error": loss_error, **errors}


def _two_steps(recipe_name: str, overrides: Sequence[str], *, is_tf32: bool) -> dict[str, np.ndarray]:
    """Return what two steps leave, as one vector a name."""
    recipe, cluster = load_both(recipe_name, "laptop", overrides)
    plan = plan_run(recipe, 1)
    engine = open_engine(cluster, _ALONE)
    allow_tf32(is_allowed=is_tf32)
    model = build_model(engine, recipe, cluster, plan)
    network: Any = model.network
    weights, statistics = _vector(network.read_weights().values()), _vector(network.read_statistics().values())
    size, side = plan.per_rank_batch_size, recipe.model.image_size
    images = np.random.default_rng(0).standard_normal((size, recipe.model.input_channels, side, side), np.float32)
    labels = np.arange(size, dtype=np.float32) % recipe.model.num_classes
    batch = [engine.from_host(images if cluster.engine.layout == "NCHW" else images.transpose(0, 2, 3, 1))]
    batch.append(engine.from_host(labels))

    def step() -> np.ndarray:
        loss = network.forward(*batch)
        network.backward()
        gradients = _vector(engine.to_host(each) for each in network.gradients)
        model.optimizer.update(_HYPER)
        left.setdefault("loss", engine.to_host(loss) / size)
        left.setdefault("gradient", gradients)
        moved: np.ndarray = _vector(network.read_weights().values()) - weights
        return moved

    left = {"logits": _vector([engine.to_host(network.inference()(batch[0]))])}
    left["update"] = step()
    left["statistics"] = _vector(network.read_statistics().values()) - statistics
    left["second_update"] = step()
    return left


def _vector(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(each.ravel().astype(np.float64) for each in arrays)])


def _distance(found: np.ndarray, exact: np.ndarray) -> float:
    """Return |found - exact| / |exact|; infinite if a value is none."""
    distance = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    return float(distance) if np.isfinite(distance) else float("inf")


if __name__ == "__main__":
    run_task(main)
