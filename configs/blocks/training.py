"""The recipe's blocks for training: network, batch, schedule, loss, length of the run, MLPerf, and the card."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.decays import Decay
from configs.errors import ConfigError
from configs.ideas import with_keys_of_ideas
from configs.networks import NETWORKS
from configs.registry import MOST_CLASSES
from configs.section import Section

_STAGES_OF_PHOTOGRAPHS = 4
"""Stages of a residual network for photographs; those for small images have three."""


class Card(Section):
    """What a recipe is for, in words for a newcomer. ``./run.sh plan`` and ``./run.sh recipes`` print the card."""

    purpose: str = ""
    """Purpose of the recipe."""
    source: str = ""
    """Where the hyperparameters and the data come from: paper, log, code."""
    expected: str = ""
    """The accuracy to expect, after how many epochs, and in how many runs."""
    time: str = ""
    """How long a run takes, and on which machine."""
    gains: str = ""
    """How much each time-saving choice gains, measured with all the others in place."""
    hardware: str = ""
    """The machines that the recipe needs."""
    command: str = ""
    """The command that runs the recipe."""


class Residual(Section):
    """What a residual network has in place of layers of its paper.

    ResNet-D (He et al., arXiv:1812.01187) is ``stem: deep`` with ``shortcut: pooled``.
    """

    stem: Literal["standard", "deep"] = "standard"
    """First layers of a network for photographs: a 7x7 convolution with stride 2 (standard), or three 3x3 convolutions
    of 32, 32 and 64 channels, the first with stride 2 (deep)."""
    shortcut: Literal["strided", "pooled"] = "strided"
    """How a shortcut halves the image: by a 1x1 convolution with stride 2, or by a 2x2 average pool before a 1x1
    convolution with stride 1. The latter reads every pixel."""
    stride: Literal["convolution", "pool"] = "convolution"
    """How a block halves the image: by a 3x3 convolution with stride 2, or by a 2x2 average pool after a 3x3
    convolution with stride 1, which takes four times the multiplications."""
    blur: Literal["none", "convolutions", "convolutions_and_max_pool"] = "none"
    """What BlurPool (Zhang, arXiv:1904.11486) smooths: the inputs of the convolutions with stride 2 behind the stem, as
    FFCV has it, and also the max pool of the stem before its stride, as Composer has it."""

    squeeze_excitation: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Blocks with squeeze and excitation (Hu et al., arXiv:1709.01507; ratio 4), after the last batch norm of the
    block, for example [stage3_block6, stage4_block3]."""
    activation: Literal["relu", "silu"] = "relu"
    """What follows batch norms and blocks: ReLU, or SiLU, x times the sigmoid of x (Elfwing et al., arXiv:1702.03118),
    which keeps its input for the backward pass."""


@with_keys_of_ideas("model")
class Model(Section):
    """The network (a table of layers in `train.networks`), and what may vary in it."""

    name: Literal[tuple(NETWORKS)]  # type: ignore[valid-type]
    """The network."""
    num_classes: int = Field(ge=2, le=MOST_CLASSES, json_schema_extra={"unit": "classes"})
    """Outputs of the classifier. The data set may not have more classes."""
    image_size: int = Field(ge=8, le=1024, json_schema_extra={"unit": "px"})
    """Side of the square input image. Compute and memory grow with its square; each network has a smallest and a
    largest size."""
    input_channels: Literal[1, 3, 4] = Field(3, json_schema_extra={"unit": "channels"})
    """Channels of the input image. 1 converts images to grey; 3 is red, green and blue; 4 adds a channel of zeros,
    which tensor cores prefer and which counts in the first layer's initial weights (fan-in)."""
    bn_epsilon: float = Field(1e-5, gt=0, lt=1)
    """Added to the variance in batch norm, so that nothing is divided by 0."""
    bn_momentum: float = Field(0.9, ge=0, lt=1)
    """Share of the running mean and variance that batch norm keeps at each step; the batch gives the rest. Each of k
    accumulated micro-batches keeps the k-th root. Larger values average over more steps."""
    classifier_std: float = Field(0.01, gt=0, lt=1)
    """Standard deviation of the classifier's initial weights, which are N(0, std)."""
    classifier_bias: float = Field(0.0, ge=-100, le=100)
    """Initial value of the classifier's biases. With a sigmoid in loss.kind, minus the logarithm of the number of
    classes starts at the frequency of a class."""
    initial_kernels: Literal["he_normal", "lecun_uniform"] = "he_normal"
    """How the initial weights of all layers but the classifier are drawn: normal with variance 2 / fan-in (he_normal),
    or uniform with variance 1 / fan-in (lecun_uniform)."""
    zero_gamma: bool = False
    """Whether the last batch-norm gamma of each residual block starts at 0 instead of 1."""
    last_gamma: float = Field(1.0, ge=0, le=10)
    """Initial value of the last batch-norm gamma of each residual block; all others start at 1. zero_gamma excludes
    it."""
    residual: Residual = Residual()
    parameters: str | None = Field(None, min_length=1)
    """File of trained parameters to start from; a relative path starts in the cluster's paths.data. ./run.sh train
    --from RUN or FILE sets it. If null, the weights are drawn from run.seed."""
    frozen: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Layers that keep the values of model.parameters: names of layers, or what the names begin with, for example
    [stem, stage1]; [backbone] is all layers but the classifier. They have no gradients, weight decay or momenta, and
    their batch norms normalise by the running statistics, which stay as they are, too."""

    def _require_agreement(self) -> None:
        self.refuse(self.zero_gamma and self.last_gamma != 1, "last_gamma", "1 where model.zero_gamma is true")
        allowed, remedy = "[] where the weights are drawn: frozen layers would stay at random", "give trained weights"
        self.refuse(self.frozen and self.parameters is None, "frozen", allowed, f"{remedy} by --from RUN or FILE")
        residual, blocks = self.residual, NETWORKS[self.name].blocks
        has_no_blocks = residual != Residual() and not blocks
        self.refuse(has_no_blocks, "residual", f"left out for {self.name}, which has no residual blocks")
        has_no_stride = residual.stem == "deep" and len(blocks) != _STAGES_OF_PHOTOGRAPHS
        self.refuse(has_no_stride, "residual.stem", f"standard for {self.name}, whose stem has no stride")
        names = [f"stage{stage}_block{block}" for stage, last in enumerate(blocks, 1) for block in range(1, last + 1)]
        unknown, allowed = set(residual.squeeze_excitation).difference(names), " to ".join(names[:1] + names[-1:])
        self.refuse(unknown, "residual.squeeze_excitation", f"blocks of {self.name}, {allowed}")

    @property
    def side_multiple(self) -> int:
        """What the side of every image is a multiple of, so that average pools that halve images lose no pixel."""
        if self.residual.shortcut != "pooled" and self.residual.stride != "pool":
            return 1
        return 32 if len(NETWORKS[self.name].blocks) == _STAGES_OF_PHOTOGRAPHS else 4


class Batch(Section):
    """The global batch and how it is cut. The number of ranks is the cluster's: see `configs.plan.plan_run`."""

    global_size: int = Field(ge=1, json_schema_extra={"unit": "images"})
    """Images of one step, over all ranks and micro-batches. It must be ranks times micro-batches times the size of a
    micro-batch."""
    accumulation_steps: int | None = Field(None, ge=1, json_schema_extra={"unit": "micro-batches"})
    """Micro-batches whose gradients a rank accumulates before the allreduce. Larger values fit the same global batch
    into less memory. If null, as many as bn_span requires, otherwise 1."""
    bn_span: int | None = Field(None, ge=1, json_schema_extra={"unit": "images"})
    """Images over which a batch norm computes its statistics, which is the size of a micro-batch. A fixed value keeps
    the accuracy independent of the number of ranks. Where a rank has fewer images in a step, neighbouring ranks of a
    node compute the statistics together, under PyTorch with communication.kind=torch_distributed. If null, it follows
    from a rank's share of the batch."""


class Schedule(Section):
    """Warm-up to ``base_lr``, then a decay."""

    base_lr: float = Field(gt=0, le=1000)
    """Learning rate at the end of the warm-up."""
    warmup_epochs: float | None = Field(None, ge=0)
    """Epochs in which the learning rate rises to base_lr. Excludes warmup_steps."""
    warmup_steps: int | None = Field(None, ge=0)
    """Steps in which the learning rate rises to base_lr. Excludes warmup_epochs."""
    warmup_shape: Literal["linear", "cosine"] = "linear"
    """How the learning rate rises in the warm-up: by equal steps, or along half a cosine, which rises slowly at both
    ends."""
    warmup_start_lr: float = Field(0.0, ge=0, le=1000)
    """Learning rate from which the warm-up rises; its first step is above this rate, its first epoch at it with
    changes_every: epoch."""
    changes_every: Literal["step", "epoch"] = "step"
    """How often the learning rate changes: at every step, or once an epoch, as in programs that call their scheduler
    after each epoch. With epoch, warm-up and decay count in epochs of the run: epoch e, from 0, has the rate at the
    share e / warmup_epochs of the warm-up, or of e - warmup_epochs epochs behind it."""
    weight_decay_lag_steps: Literal[0, 1] = 0
    """Steps by which the weight decay lags behind the learning rate in the warm-up; the 2019 record used 1."""
    decay: Decay
    """How the learning rate falls after the warm-up."""

    def _require_agreement(self) -> None:
        epochs, start, lags = self.warmup_epochs, self.warmup_start_lr, self.weight_decay_lag_steps
        allowed = "a number here or in schedule.warmup_steps; 0 is no warm-up"
        self.refuse(epochs is None and self.warmup_steps is None, "warmup_epochs", allowed)
        allowed = f"null beside schedule.warmup_epochs ({epochs or 0:g})"
        self.refuse(None not in (epochs, self.warmup_steps), "warmup_steps", allowed, "set one of the two to null")
        highest = f"at most schedule.base_lr ({self.base_lr:g})"
        self.refuse(start > self.base_lr, "warmup_start_lr", highest)
        is_plain = self.warmup_shape == "linear" and not start
        self.refuse(lags and not is_plain, "weight_decay_lag_steps", "0 unless the warm-up is linear and starts at 0")
        if self.changes_every == "epoch":
            where = "with schedule.changes_every: epoch"
            self.refuse(epochs is None or not epochs.is_integer(), "warmup_epochs", f"a whole number {where}")
            allowed = f"above 0 {where}: it is the rate of the first epoch"
            self.refuse(epochs and not start, "warmup_start_lr", allowed)
            self.refuse(lags, "weight_decay_lag_steps", f"0 {where}")
            self.refuse(self.at("decay.steps") is not None, "decay.steps", f"null {where}")
        if self.end_lr > self.base_lr:
            raise ConfigError("decay.end_lr", self.end_lr, highest)

    @property
    def end_lr(self) -> float:
        """The learning rate when the decay is over."""
        return self.decay.final_lr(self.base_lr)


class Run(Section):
    """How long a run is, what accuracy ends it, and how often it evaluates and reports."""

    epochs: int = Field(ge=1, le=100_000, json_schema_extra={"unit": "epochs"})
    """Passes over the training images. A run ends earlier when it reaches target_top1."""
    target_top1: float | None = Field(gt=0, lt=1)
    """Top-1 accuracy, the share of evaluation images classified correctly, that ends the run with success. If null, the
    run takes all epochs."""
    stop_at_chance: bool = True
    """Whether a run with a target ends early when it learns nothing: for half of its steps after the warm-up, and at
    least 200 steps and 3 evaluations, top-1 is no better than guessing and the training loss does not fall. If false,
    such a run takes all epochs."""
    eval_every_epochs: int = Field(1, ge=1)
    """Epochs between two evaluations. Larger values save time but may detect the target later."""
    eval_first_epoch: int = Field(1, ge=1, json_schema_extra={"unit": "epoch"})
    """First epoch, counted from 1, that ends with an evaluation. The last epoch always ends with one, also if there are
    fewer epochs."""
    seed: int = Field(1, ge=0, lt=2**31)
    """Seed of the initial weights, of shuffling and of augmentation. Runs that differ only in the seed show the spread
    of a result."""
    log_every_steps: int = Field(20, ge=1)
    """Steps between two rows of metrics.jsonl and two lines of the log."""
    compare_every_steps: int | None = Field(None, ge=1, json_schema_extra={"unit": "steps"})
    """Steps between two comparisons of the ranks' weights and optimizer's state, which also look for values that are
    not finite. Smaller values find a wrong rank sooner and cost time. If null, the ranks are compared before each
    evaluation and checkpoint only."""
    max_steps: int | None = Field(None, ge=1)
    """Steps after which the run stops and evaluates, for smoke runs; the schedule keeps its length. If null, the run
    takes all epochs."""


class Mlperf(Section):
    """What the MLPerf log says of the run, and by which rules the run is judged."""

    submits: bool = False
    """Whether the run is meant for an MLPerf submission, so that its log is part of its verdict."""
    benchmark: Literal["resnet"] = "resnet"
    """Name of the benchmark in the log."""
    division: Literal["open", "closed"] = "open"
    """MLPerf division. A closed recipe that breaks a rule of the closed division is refused; an open one may choose its
    hyperparameters."""
    ruleset: Literal["0.6.0", "4.0.0"] = "4.0.0"
    """Edition of the rules by which the recipe is checked and a run's success is judged."""
    reference: Literal["official", "own"] = "official"
    """Reference convergence points that a closed run is compared with. own: ten runs of your own replace the reference
    for a batch size that has no official one."""
