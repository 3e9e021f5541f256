"""``python -m tests.train.engine.torch.kernel_program update|norm DEVICE FOLDER``: what kernels leave, in files.

With ``launches ARCHITECTURE TYPE ...`` it compiles the kernels of batch norm for a GPU, see `launches`; with ``check``,
see `check`.

A process of its own, because Triton decides at its import whether it interprets kernels (TRITON_INTERPRET=1).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
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


EPSILON = 1e-5


@dataclass(frozen=True)
class Norm:
    """Tensors of a batch norm, and about how many programs sum over them."""

    kind: str
    channels: int
    images: int
    side: int
    has_addend: bool
    has_relu: bool
    programs: int = 1024
    mean: float = 3.0

    @property
    def name(self) -> str:
        """Return a name for files and parameters of tests."""
        words = ["bn", *["add"] * self.has_addend, *["relu"] * self.has_relu]
        return f"{self.kind}-{self.channels}x{self.images}x{self.side}-{'_'.join(words)}-{self.programs}-{self.mean}"

    def inputs(self) -> dict[str, Any]:
        """Return the tensors on the CPU, the four-dimensional ones in channels last."""
        import torch

        draw, shape = np.random.default_rng(7), (self.images, self.channels, self.side, self.side)

        def drawn(mean: float, std: float) -> Any:
            values = torch.from_numpy(draw.normal(mean, std, shape)).to(getattr(torch, self.kind))
            return values.contiguous(memory_format=torch.channels_last)

        return {
            "x": drawn(self.mean, 2.0), "addend": drawn(0.0, 1.0) if self.has_addend else None,
            "gradient": drawn(0.2, 1.0),
            "gamma": torch.from_numpy(draw.uniform(0.5, 1.5, self.channels).astype(np.float32)),
            "beta": torch.from_numpy(draw.normal(0, 1, self.channels).astype(np.float32)),
        }  # fmt: skip


_PATTERNS = [(False, False), (False, True), (True, False), (True, True)]
NORMS = [
    *(Norm("float16", 64, 5, 3, *each) for each in _PATTERNS),
    *(Norm("float16", width, 5, 3, width != 1024, True) for width in (128, 1024, 2048)),
    *(Norm(kind, 64, 3, 5, *each) for kind in ("bfloat16", "float32") for each in _PATTERNS),
    # Rows that fill no tile, columns that fill no strip; parts of several tiles, and more parts than a tile of them.
    *(Norm("float32", 7, 3, 5, *each) for each in [(False, True), (True, False)]),
    *(Norm(kind, 72, 5, 11, True, True, programs=4) for kind in ("float16", "float32")),
    Norm("bfloat16", 24, 11, 10, False, True, programs=1),
    Norm("float32", 64, 67, 8, True, True),
    Norm("float32", 16, 1, 1, False, False),
    Norm("float32", 64, 9, 7, False, False, mean=20_000.0, programs=2),
]


def norm(case: Norm, device: str) -> dict[str, Any]:
    """Return what the kernels leave of a case, by the operator and its registered gradient."""
    import torch

    from train.engine.torch import fused_norm, norm_kernels  # noqa: F401 (registers the operator)

    norm_kernels.PROGRAMS = case.programs
    return differentiated(case, torch.ops.resnet_records.batch_norm, "cuda" if device == "gpu" else device)


def check() -> None:
    """Let PyTorch examine the operator as one of its own."""
    import torch

    from train.engine.torch import fused_norm  # noqa: F401 (registers it)

    of = Norm("float32", 8, 2, 3, True, True).inputs()
    given = [of[each].requires_grad_() for each in ("x", "gamma", "beta", "addend")]
    torch.library.opcheck(torch.ops.resnet_records.batch_norm.default, (*given, EPSILON, True))


def differentiated(case: Norm, operator: Callable[..., Any], place: str = "cpu") -> dict[str, np.ndarray]:
    """Return the results of an operator, and the gradients of its tensors."""
    leaves = {name: each.to(place) for name, each in case.inputs().items() if each is not None}
    gradient = leaves.pop("gradient")
    of = {"addend": None} | {name: each.requires_grad_() for name, each in leaves.items()}
    output, mean, inverse_std = operator(**of, epsilon=EPSILON, has_relu=case.has_relu)
    output.backward(gradient)
    found = {"output": output, "mean": mean, "inverse_std": inverse_std}
    found |= {f"of_{name}": leaf.grad for name, leaf in leaves.items()}
    return {name: _host(each) for name, each in found.items()}


def launches(architecture: int, *kinds: str) -> list[dict[str, Any]]:
    """Compile and launch the kernels for a GPU that computes nothing.

    Returns:
        For each type and pattern: for each launch of ``forward`` and ``backward`` the number of tensors of the size of
        an activation, each of which a kernel reads or writes once.
    """
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from train.engine.torch import norm_kernels

    launched: list[int] = []

    def launch(*words: Any) -> None:
        launched.append(sum(isinstance(each, torch.Tensor) and each.dim() == len("NCHW") for each in words))

    driver.set_active(SimpleNamespace(
        launcher_cls=lambda *_: launch, get_current_device=lambda: 0, get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", architecture, 32),
        utils=SimpleNamespace(
            load_binary=lambda *_: (None, None, 0, 0, 1024), get_device_properties=lambda _: {"max_shared_mem": 65_536}
        ),
    ))  # fmt: skip
    found = []
    for kind in kinds:
        for has_addend, has_relu in _PATTERNS:
            of = Norm(kind, 64, 3, 50, has_addend, has_relu).inputs()
            x, gradient, gamma, beta, addend = (of[each] for each in ("x", "gradient", "gamma", "beta", "addend"))
            output, mean, inverse_std = norm_kernels.forward(x, gamma, beta, addend, EPSILON, has_relu)
            kept, forward = output if has_addend and has_relu else None, [*launched]
            norm_kernels.backward(gradient, x, kept, gamma, beta, mean, inverse_std, has_relu)
            backward = launched[len(forward) :]
            found.append({"pattern": [has_addend, has_relu], "forward": forward, "backward": backward})
            launched.clear()
    return found


needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="no Triton, which ./run.sh setup --engine torch --extra test installs"
)
_LONG = pytest.mark.slow, pytest.mark.timeout(600)
WAYS = [
    pytest.param(("cpu", {"TRITON_INTERPRET": "1"}), id="interpreted", marks=(needs_triton, *_LONG)),
    pytest.param(("gpu", {}), id="on_gpu", marks=(pytest.mark.gpu("torch"), *_LONG)),
]
"""Where the kernels run: a device, and variables of the environment."""

Found = dict[str, np.ndarray]


def computed(program: str, folder: Path, way: tuple[str, Mapping[str, str]]) -> Callable[[Any], Found]:
    """Run this program in one of `WAYS`; return what gives the files of a case."""
    device, variables = way
    run(program, device, str(folder), **variables)
    return lambda case: dict(np.load(folder / f"{case.name}.npz"))


def run(*words: str, **variables: str) -> str:
    """Run this program; return what it prints."""
    command = [sys.executable, "-m", "tests.train.engine.torch.kernel_program", *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _host(values: Any) -> np.ndarray:
    array: np.ndarray = values.detach().to("cpu").float().contiguous().numpy().copy()
    return array


if __name__ == "__main__":
    program, *words = sys.argv[1:]
    if program == "launches":
        sys.stdout.write(json.dumps(launches(int(words[0]), *words[1:])))
    elif program == "check":
        check()
    else:
        programs: dict[str, Any] = {"update": (update, UPDATES), "norm": (norm, NORMS)}
        compute, cases = programs[program]
        for case in cases:
            np.savez(Path(words[1]) / f"{case.name}.npz", **compute(case, words[0]))
