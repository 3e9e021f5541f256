"""The recipe (the maths of a run), frozen and self-checking; the cluster (the place) is `configs.cluster`'s.

A recipe holds no path, host or thread count; a cluster holds no hyperparameter. Values that follow from others
(per-rank batch, steps per epoch, world size) are derived in `configs.plan`, never keys.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from configs.cluster import (
    Cluster,
    Communication,
    Container,
    Engine,
    Fabric,
    Node,
    Paths,
    Scheduler,
    Submission,
)
from configs.decays import Cosine, Decay, Polynomial, StepDecay
from configs.errors import ConfigError
from configs.networks import IMAGE_SIZES, NETWORKS, networks_for
from configs.optimizers import Adam, Lars, Optimizer, Sgd
from configs.registry import SOURCES_WITH_LABEL_VECTORS, DataSource
from configs.rules import require_allowed
from configs.section import Section

__all__ = [
    "Adam", "Batch", "Card", "Cluster", "Communication", "Container", "Cosine", "Crop", "Data", "Engine", "Fabric",
    "Lars", "Loss", "Mlperf", "Model", "Node", "Paths", "Polynomial", "Recipe", "Run", "Schedule", "Scheduler", "Sgd",
    "StepDecay", "Submission",
]  # fmt: skip

Pair = Annotated[tuple[float, float], Field(strict=False)]
Triple = Annotated[tuple[float, float, float], Field(strict=False)]


class Card(Section):
    """What a recipe is for, in words a newcomer reads first."""

    purpose: str
    source: str = ""
    expected: str = ""
    time: str = ""
    hardware: str = ""
    command: str = ""


class Model(Section):
    """The network: a row of `train.networks.arch` and what may vary in it."""

    name: Literal[NETWORKS]  # type: ignore[valid-type]
    num_classes: int = Field(ge=2, le=1_000_000)
    image_size: int = Field(ge=8, le=1024, description="Side of the square input, px.")
    input_channels: Literal[1, 3, 4] = Field(
        3, description="1: images are read as grey. 4 pads a zero channel for tensor cores; fan-in sees it."
    )
    bn_epsilon: float = Field(1e-5, gt=0, lt=1)
    bn_momentum: float = Field(0.9, ge=0, lt=1)
    classifier_std: float = Field(0.01, gt=0, lt=1, description="N(0, std) for the classifier's weights.")
    zero_gamma: bool = Field(False, description="Start each block's last BN gamma at 0.")
    parameters: str | None = Field(
        None, min_length=1, description="File of parameters to start from, below the cluster's data path; none: seeded."
    )


class Crop(Section):
    """How a training image is cut. ``none`` leaves it; ``shift`` pads and crops; ``resized`` is the ImageNet crop."""

    kind: Literal["none", "shift", "resized"] = "resized"
    area: Pair = Field((0.08, 1.0), description="Share of the image's area, both in (0, 1].")
    aspect: Pair = Field((0.75, 1.3333333333333333), description="Width over height.")
    padding: int = Field(0, ge=0, le=64, description="Pixels that a shift may move the image by, each way.")

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Crop:
        for key, (low, high), top in (("area", self.area, 1.0), ("aspect", self.aspect, 10.0)):
            if not 0 < low <= high <= top:
                raise ConfigError(key, [low, high], f"0 < low <= high <= {top:g}")
        return self


class Data(Section):
    """The images: which set, how many, and what is done to each before the network sees it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Folder below the cluster's data path.")
    source: DataSource = Field(description="Where the records come from; synthetic images never touch a disk.")
    train_samples: int = Field(ge=1)
    eval_samples: int = Field(ge=1)
    crop: Crop = Crop()
    flip: bool = True
    eval_resize: int | None = Field(None, ge=8, le=2048, description="Shorter side before centre crop; none: as is.")
    mean: Triple = (123.675, 116.28, 103.53)
    std: Triple = (58.395, 57.12, 57.375)
    shuffle_buffer: int = Field(4096, ge=1, description="Records held by the reader to draw the next one from.")
    plain_from_epoch: int | None = Field(
        None, ge=2, description="From this epoch (1-based) on: cut as in evaluation, no flip, no shuffling."
    )
    keep_batches: bool = Field(
        False, description="Keep the first epoch's training batches, as augmented, in memory, and train on them again."
    )
    bad_record: Literal["stop", "skip"] = Field("stop", description="What an undecodable training image does.")

    @field_validator("std")
    @classmethod
    def _std_is_positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if min(value) <= 0:
            raise ConfigError("std", list(value), "three numbers above 0")
        return value


class Batch(Section):
    """The global batch, and how it is cut. Ranks are the cluster's affair: see `configs.plan.plan_run`."""

    global_size: int = Field(ge=1, description="Images a step, over all ranks and accumulation.")
    accumulation_steps: int | None = Field(None, ge=1, description="Micro-batches a rank sums before it reduces.")
    bn_span: int | None = Field(None, ge=1, description="Images a batch-norm sees at once, which is the micro-batch.")


class Schedule(Section):
    """Linear warm-up to ``base_lr``, then a decay."""

    base_lr: float = Field(gt=0, le=1000, description="Learning rate at the end of the warm-up.")
    warmup_epochs: float | None = Field(
        None, ge=0, description="Epochs in which the learning rate rises linearly to base_lr. Excludes warmup_steps."
    )
    warmup_steps: int | None = Field(None, ge=0, description="The same length in steps. Excludes warmup_epochs.")
    weight_decay_lag_steps: Literal[0, 1] = Field(
        0, description="Steps by which weight decay follows the warm-up of the learning rate; the 2019 record used 1."
    )
    decay: Decay = Field(description="How the learning rate falls after the warm-up.")

    @model_validator(mode="after")
    def _one_spelling_of_warmup(self) -> Schedule:
        if (self.warmup_epochs is None) == (self.warmup_steps is None):
            got = {"warmup_epochs": self.warmup_epochs, "warmup_steps": self.warmup_steps}
            raise ConfigError("warmup", got, "exactly one of warmup_epochs and warmup_steps", "remove the other")
        if self.end_lr > self.base_lr:
            raise ConfigError("decay.end_lr", self.end_lr, f"at most schedule.base_lr ({self.base_lr:g})")
        return self

    @property
    def end_lr(self) -> float:
        """The learning rate when the decay is over."""
        return self.decay.final_lr(self.base_lr)


class Loss(Section):
    """``softmax``: cross-entropy with smoothed labels, one class an image. ``sigmoid``: any number of them.

    The latter is binary cross-entropy, the mean over classes, and is judged by ROC-AUC instead of top-1.
    ``uniform`` is the TensorFlow/MLPerf sense: 1-a+a/K on the label and a/K elsewhere (Szegedy et al.,
    arXiv:1512.00567). ``softmax_output`` is that of MXNet's SoftmaxOutput: 1-a on the label, a/(K-1) elsewhere.
    """

    kind: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    smoothing: Literal["uniform", "softmax_output"] = "uniform"

    @model_validator(mode="after")
    def _only_one_class_is_smoothed(self) -> Loss:
        if self.kind == "sigmoid" and self.label_smoothing:
            raise ConfigError("label_smoothing", self.label_smoothing, "0 where loss.kind is sigmoid")
        return self


class Run(Section):
    """How long, towards what, and how often one looks."""

    epochs: int = Field(ge=1, le=100_000)
    target_top1: float | None = Field(gt=0, lt=1, description="Evaluation top-1 that ends the run; none: all epochs.")
    eval_every_epochs: int = Field(1, ge=1)
    eval_first_epoch: int = Field(1, ge=1, description="First evaluation; the last epoch is always evaluated.")
    seed: int = Field(1, ge=0, lt=2**31)
    log_every_steps: int = Field(20, ge=1)
    max_steps: int | None = Field(None, ge=1, description="Stop and evaluate after so many steps; for smoke runs.")


class Mlperf(Section):
    """What the log says of itself to the official checker."""

    benchmark: Literal["resnet"] = "resnet"
    division: Literal["open", "closed"] = "open"
    ruleset: Literal["0.6.0", "4.0.0"] = "4.0.0"
    reference: Literal["official", "own"] = Field(
        "official", description="own: runs of one's own stand in for a missing reference convergence point."
    )


class Recipe(Section):
    """The maths of a run, complete: the same recipe gives the same loss curve wherever it runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    card: Card
    model: Model
    data: Data
    batch: Batch
    optimizer: Optimizer
    schedule: Schedule
    loss: Loss = Loss()
    run: Run
    mlperf: Mlperf = Mlperf()

    @model_validator(mode="after")
    def _network_fits_the_images(self) -> Recipe:
        model, (least, most) = self.model, IMAGE_SIZES[self.model.name]
        if not least <= model.image_size <= most:
            allowed = f"{least} to {most} px" if least < most else f"{least} px"
            others = f"or take one of {', '.join(networks_for(model.image_size))}"
            raise ConfigError("model.image_size", model.image_size, f"{allowed} for {model.name}", others)
        for key, value in (("mean", self.data.mean), ("std", self.data.std)):
            if model.input_channels == 1 and len(set(value)) > 1:
                raise ConfigError(f"data.{key}", list(value), "three equal numbers where model.input_channels is 1")
        return self

    @model_validator(mode="after")
    def _labels_fit_the_loss(self) -> Recipe:
        source, target = self.data.source, self.run.target_top1
        if self.loss.kind == "softmax" and source in SOURCES_WITH_LABEL_VECTORS:
            raise ConfigError(
                "loss.kind", "softmax", f"sigmoid for data.source: {source}, whose images have several labels"
            )
        if self.loss.kind == "sigmoid" and source not in (*SOURCES_WITH_LABEL_VECTORS, "synthetic"):
            allowed = ", ".join(sorted(SOURCES_WITH_LABEL_VECTORS))
            raise ConfigError("data.source", source, f"{allowed} or synthetic where loss.kind is sigmoid")
        if self.loss.kind == "sigmoid" and target is not None:
            raise ConfigError("run.target_top1", target, "null where loss.kind is sigmoid, which has no top-1")
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Recipe:
        if self.data.eval_resize is not None and self.data.eval_resize < self.model.image_size:
            raise ConfigError(
                "data.eval_resize", self.data.eval_resize, f"at least model.image_size ({self.model.image_size})"
            )
        plain = self.data.plain_from_epoch
        if plain is not None and plain > self.run.epochs:
            raise ConfigError("data.plain_from_epoch", plain, f"2 to run.epochs ({self.run.epochs})")
        if plain is not None and self.data.keep_batches:
            raise ConfigError("data.keep_batches", True, "false with data.plain_from_epoch, which changes the images")
        if self.run.eval_first_epoch > self.run.epochs:
            raise ConfigError("run.eval_first_epoch", self.run.eval_first_epoch, f"1 to run.epochs ({self.run.epochs})")
        if self.batch.global_size > self.data.train_samples * 100:
            raise ConfigError(
                "batch.global_size", self.batch.global_size,
                f"at most 100 times data.train_samples ({self.data.train_samples})",
            )  # fmt: skip
        if self.mlperf.division == "closed":
            require_allowed(self)
        return self
