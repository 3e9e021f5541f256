"""The steps by which ``bench gpu`` and the tests prove a GPU's kernels: one list for both. Imports no framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

ALLOWED_ERROR: Mapping[str, float] = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.05}
"""Number type -> largest error of any case (`train.bench.programs.gpu.errors`).

On a CPU, bfloat16 is up to 0.037 away, and float32 in another layout up to 0.0012 (AMD EPYC). float16 has three more
bits of fraction than bfloat16.
"""

EXECUTIONS: Mapping[str, Sequence[str]] = {
    "eager": (),
    "graph": ("cluster.engine.cuda_graphs=step",),
    "sums between graphs": ("cluster.engine.cuda_graphs=compute",),
    "fused": ("cluster.engine.batch_norm=fused",),
    "fused, graph": ("cluster.engine.batch_norm=fused", "cluster.engine.cuda_graphs=step"),
    "compiled": ("cluster.engine.compile=true",),
    "compiled, graph": ("cluster.engine.compile=true", "cluster.engine.cuda_graphs=step"),
}
"""Name -> changes of the cluster, by which a step is queued in another way; the most wanted first."""

_SMALL = (
    "model.name=resnet8",
    "model.num_classes=10",
    "model.image_size=32",
    "batch.global_size=32",
    "batch.bn_span=null",
    "data.source=synthetic",
    "data.train_samples=64",
    "data.eval_samples=40",  # The second batch is padded.
    "run.target_top1=null",
    "mlperf.division=open",
    "mlperf.submits=false",
    "cluster.engine.name=torch",
    "cluster.engine.layout=NHWC",
    "cluster.ranks_per_node=1",
    "cluster.communication.kind=torch_distributed",
)
"""A network that is small enough for errors of rounding to stay small, on one rank."""


@dataclass(frozen=True)
class KernelCase:
    """Something that a device computes as the CPU does in float32.

    Attributes:
        recipe: A name in ``configs/recipes``.
        changes: Changes of the recipe and of the cluster ``laptop``, after `_SMALL`.
        lr: The learning rate of the steps.
        kinds: The number types in which the case differs from the others.
        check: What is computed: two steps and two evaluations of a run, a network of every kind of layer, or the masks
            of dropout, which differ from device to device.
    """

    recipe: str = "imagenet-b256"
    changes: tuple[str, ...] = ()
    lr: float = 0.1
    kinds: tuple[str, ...] = tuple(ALLOWED_ERROR)
    check: Literal["steps", "layers", "masks"] = "steps"

    @property
    def executions(self) -> list[str]:
        """Return the keys of `EXECUTIONS` that the case is tried in: graphs are made of steps, and masks of neither."""
        tried = {"steps": list(EXECUTIONS), "layers": ["eager", "fused", "compiled"], "masks": ["eager"]}
        is_nchw = "cluster.engine.layout=NCHW" in self.changes
        return [each for each in tried[self.check] if not (is_nchw and each.startswith("fused"))]

    @property
    def overrides(self) -> list[str]:
        """Return all changes but those that choose the device and the number type."""
        return [*_SMALL, *self.changes]


KERNEL_CASES: Mapping[str, KernelCase] = {
    "SGD": KernelCase(),
    "NCHW": KernelCase(changes=("cluster.engine.layout=NCHW",)),
    "LARS": KernelCase("mlperf-b3264", lr=10.0),
    # An epsilon as large as gradients, because the division by their size makes errors of rounding large.
    "Adam": KernelCase(changes=("optimizer={name: adam, weight_decay: 1e-4, epsilon: 0.1}",)),
    "sigmoid loss": KernelCase(changes=("loss={kind: sigmoid}",)),
    # Without batch norm, micro-batches add up to the one batch that the CPU takes.
    "micro-batches": KernelCase(
        changes=("model.name=mnist_small_cnn", "model.image_size=28", "batch.accumulation_steps=2")
    ),
    "float32 sums": KernelCase(changes=("cluster.num_nodes=128", "cluster.launcher=mpirun"), kinds=("bfloat16",)),
    "layers": KernelCase(check="layers"),
    "dropout": KernelCase(check="masks"),
}
"""Name -> case."""
