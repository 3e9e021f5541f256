"""``python -m tests.train.engine.torch.norm_program``: the kernels of batch norm, computed or compiled, in a process.

A process of its own, because Triton decides at its import whether it interprets kernels (TRITON_INTERPRET=1).
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

EPSILON = 1e-5


@dataclass(frozen=True)
class Case:
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
CASES = [
    *(Case("float16", 64, 5, 3, *each) for each in _PATTERNS),
    *(Case("float16", width, 5, 3, width != 1024, True) for width in (128, 256, 512, 1024, 2048)),
    *(Case(kind, 64, 3, 5, *each) for kind in ("bfloat16", "float32") for each in _PATTERNS),
    # Rows that fill no tile, columns that fill no strip; parts of several tiles, and more parts than a tile of them.
    *(Case("float32", 7, 3, 5, *each) for each in [(False, True), (True, False)]),
    *(Case(kind, 72, 5, 11, True, True, programs=4) for kind in ("float16", "float32")),
    Case("bfloat16", 24, 11, 10, False, True, programs=1),
    Case("float32", 64, 67, 8, True, True),
    Case("float32", 16, 1, 1, False, False),
    Case("float32", 64, 9, 7, False, False, mean=20_000.0, programs=2),
]


def compute(case: Case, device: str) -> dict[str, np.ndarray]:
    """Return what the kernels leave of a case."""
    import torch

    from train.engine.torch import norm_kernels

    of = {name: None if each is None else each.to(device) for name, each in case.inputs().items()}
    output, mean, inverse_std = norm_kernels.forward(
        of["x"], of["gamma"], of["beta"], of["addend"], EPSILON, case.has_relu, case.programs
    )
    kept = output if case.has_addend and case.has_relu else None
    gradients = norm_kernels.backward(
        of["gradient"], of["x"], kept, of["gamma"], of["beta"], mean, inverse_std, case.has_relu, case.programs
    )
    names = "output", "mean", "inverse_std", "of_x", "of_gamma", "of_beta", "of_addend"
    found = zip(names, (output, mean, inverse_std, *gradients), strict=True)
    return {name: each.to("cpu", torch.float32).numpy() for name, each in found if each.numel()}


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
            of = Case(kind, 64, 3, 50, has_addend, has_relu).inputs()
            x, gradient, gamma, beta, addend = (of[each] for each in ("x", "gradient", "gamma", "beta", "addend"))
            output, mean, inverse_std = norm_kernels.forward(x, gamma, beta, addend, EPSILON, has_relu)
            kept, forward = output if has_addend and has_relu else None, [*launched]
            norm_kernels.backward(gradient, x, kept, gamma, beta, mean, inverse_std, has_relu)
            backward = launched[len(forward) :]
            found.append({"pattern": [has_addend, has_relu], "forward": forward, "backward": backward})
            launched.clear()
    return found


def main(device: str, folder: str) -> None:
    """Save what the kernels leave of each case."""
    for case in CASES:
        np.savez(Path(folder) / f"{case.name}.npz", **compute(case, device))


if __name__ == "__main__":
    if sys.argv[1] == "launches":
        sys.stdout.write(json.dumps(launches(int(sys.argv[2]), *sys.argv[3:])))
    else:
        main(*sys.argv[1:])
