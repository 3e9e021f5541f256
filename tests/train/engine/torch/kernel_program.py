"""``python -m tests.train.engine.torch.kernel_program update|pool DEVICE FOLDER``: what kernels leave, in files.

A process of its own, because Triton decides at its import whether it interprets kernels (TRITON_INTERPRET=1).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import ROOT
from configs.optimizers import HyperParameters, Lars, Sgd
from tests.engines import small_network

RATES, RESCALE, MOMENTUM = (0.1, 0.3, 0.2), 1 / 8, 0.9


@dataclass(frozen=True)
class Update:
    """An optimizer, and the gradient that is not finite in the step after the last one, which float16 skips."""

    config: Lars | Sgd
    kind: str
    classes: int = 16
    accumulate: bool = False
    bad: tuple[str, float] = ("weight", np.inf)

    @property
    def name(self) -> str:
        """Return a name for files and parameters of tests."""
        return f"{self.config.name}-{self.config.is_decoupled}-{self.kind}-{self.classes}-{self.accumulate}"


UPDATES = [
    Update(Lars(name="lars", weight_decay=5e-4, trust_coefficient=0.1), "float16"),
    # A bias of 10 numbers lies apart from the others, and no weight has neighbours.
    Update(
        Lars(name="lars", weight_decay=5e-4, trust_weight_decay=0.01, epsilon=0.1, trust_coefficient=0.1),
        "float16",
        10,
        bad=("bias", -np.inf),
    ),
    Update(
        Lars(name="lars", weight_decay=0.01, skip_trust_ratio=(), skip_weight_decay=(), trust_coefficient=0.1),
        "bfloat16",
    ),
    Update(Lars(name="lars", weight_decay=5e-4, trust_coefficient=0.1), "float32"),
    Update(Sgd(name="sgd", weight_decay=0.01), "float16", accumulate=True, bad=("gamma", np.nan)),
    Update(Sgd(name="sgd", weight_decay=0.05, decoupled_weight_decay=True), "bfloat16"),
]
"""Three pieces of memory: float16 or bfloat16 with float32, float32 alone, and float32 of which some have copies."""


def update(case: Update, device: str) -> dict[str, Any]:
    """Return weights before and after some steps, what the gradients were, and what a step by a bad one changes."""
    import torch

    from train.engine.torch.fused_momentum import FusedMomentum

    place = f"cluster.device={device}", "cluster.communication.kind=none", "cluster.ranks_per_node=1"
    settings: Any = {"accumulate": case.accumulate, "precision": case.kind, "layout": "NHWC"}
    engine, _, network = small_network("torch", *place, f"model.num_classes={case.classes}", **settings)
    optimizer, draw = FusedMomentum(engine, case.config, network, rescale=RESCALE), torch.Generator().manual_seed(1)
    found: dict[str, Any] = {f"before_{index}": _host(each) for index, each in enumerate(network.masters)}

    def step(number: int) -> float:
        rate = RATES[min(number, len(RATES) - 1)]
        decay = case.config.weight_decay * (rate / max(RATES) if case.config.is_decoupled else 1)
        skipped = optimizer.update(HyperParameters(rate, MOMENTUM, decay, number))
        return -1.0 if skipped is None else float(skipped)

    flags = []
    for number in range(len(RATES)):
        for index, gradient in enumerate(network.gradients):
            gradient.copy_(torch.randn(gradient.shape, generator=draw))
            found[f"gradient_{index}_{number}"] = _host(gradient)
        flags.append(step(number))
    state = [*network.masters, *network.weights, *optimizer.momenta]
    before = [each.clone() for each in state]
    kind, value = case.bad
    index = [each.kind for each in network.parameters].index(kind)
    network.gradients[index][(-1,) * network.gradients[index].ndim] = value
    if case.kind == "float16":
        flags.append(step(len(RATES)))
        assert all(map(torch.equal, state, before)), "a step by a gradient that is not finite changes nothing"
    found |= {f"after_{index}": _host(each) for index, each in enumerate(network.masters)}
    found |= {f"copy_{index}": _host(each) for index, each in enumerate(network.weights)}
    return found | {"flags": np.array(flags), "kinds": np.array([each.kind for each in network.parameters])}


@dataclass(frozen=True)
class Pool:
    """Images, and a window in its side, its stride and its padding."""

    kind: str
    shape: tuple[int, int, int, int]
    window: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Return a name for files and parameters of tests."""
        return "-".join(map(str, (self.kind, *self.shape, *self.window)))

    def inputs(self) -> tuple[Any, Any]:
        """Return images of few different numbers, and the gradient of what is pooled."""
        import torch
        from torch.nn import functional

        draw, dtype = torch.Generator().manual_seed(1), getattr(torch, self.kind)
        x = torch.randint(-2, 3, self.shape, generator=draw).to(dtype)
        x[0, 0, 0, 0], x[0, 1], x[0, 2, -2:, -2:] = float("nan"), float("-inf"), float("nan")
        shape = functional.max_pool2d(x.float(), *self.window).shape
        return x, torch.randn(shape, generator=draw).to(dtype)


POOLS = [
    *(Pool(kind, (2, 72, 9, 8), (3, 2, 1)) for kind in ("float16", "bfloat16", "float32")),
    Pool("float32", (1, 64, 15, 16), (3, 2, 0)),
    Pool("float32", (3, 5, 6, 7), (2, 2, 0)),
    Pool("float32", (1, 7, 5, 6), (3, 1, 1)),
    Pool("float32", (1, 3, 7, 8), (2, 3, 0)),
    Pool("float32", (1, 3, 9, 9), (5, 2, 2)),
]


def pool(case: Pool, device: str) -> dict[str, Any]:
    """Return the output and the gradient of the input."""
    from train.engine.torch.fused_pool import max_pool

    x, gradient = (each.to("cuda" if device == "gpu" else device) for each in case.inputs())
    output = max_pool(x.requires_grad_(), *case.window)
    output.backward(gradient)
    return {"output": _host(output), "gradient": _host(x.grad)}


WAYS = [
    pytest.param(("cpu", {"TRITON_INTERPRET": "1"}), id="interpreted", marks=pytest.mark.skipif(
        find_spec("triton") is None, reason="no Triton, which ./run.sh setup --engine torch --extra test installs")),
    pytest.param(("gpu", {}), id="on_gpu", marks=pytest.mark.gpu("torch")),
]  # fmt: skip
"""Where the kernels run: a device, and variables of the environment."""

Found = dict[str, np.ndarray]


def computed(program: str, folder: Path, way: tuple[str, Mapping[str, str]]) -> Callable[[Any], Found]:
    """Run this program in one of `WAYS`; return what gives the files of a case."""
    device, variables = way
    command = [sys.executable, "-m", "tests.train.engine.torch.kernel_program", program, device, str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True)
    return lambda case: dict(np.load(folder / f"{case.name}.npz"))


def _host(values: Any) -> np.ndarray:
    array: np.ndarray = values.detach().to("cpu").float().contiguous().numpy().copy()
    return array


if __name__ == "__main__":
    _, program, device, folder = sys.argv
    compute: Any = {"update": update, "pool": pool}[program]
    for case in UPDATES if program == "update" else POOLS:
        np.savez(Path(folder) / f"{case.name}.npz", **compute(case, device))
