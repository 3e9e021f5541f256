"""A scaling study for tests: sixteen GPUs, two networks, three kinds of communication."""

from typing import Any

from configs.study import ScalingStudy
from configs.validate import validate

GRID: dict[str, Any] = {
    "name": "grid",
    "title": "Grid",
    "purpose": "Tests",
    "recipe": "imagenet-b256",
    "cluster": "dgx-a100",
    "set": {"run.seed": 7, "cluster.num_nodes": 8, "run.epochs": 50},
    "ranks": [4, 16],
    "batch": [32, 96],
    "network": {"deep": {"model.name": "resnet101"}, "plain": {}},
    "communication": {
        "torus": {"cluster.communication.allreduce": "torus"},
        "alone": {"cluster.communication.kind": "none"},
        "devices": {"cluster.communication.kind": "devices"},
    },
    "data": {"real": {}, "short": {"run.epochs": 40}},
    "times_ranks": {"schedule.base_lr": 0.0125},
}
SMALL: dict[str, Any] = {
    "ranks": [4], "batch": [32], "network": {"n": {}}, "communication": {"c": {}}, "data": {"d": {}},
}  # fmt: skip
"""Changes that leave one cell."""


def scaling_study(**changes: Any) -> ScalingStudy:
    """Return the study with other values of some keys."""
    return validate(ScalingStudy, GRID | changes, "study.")
