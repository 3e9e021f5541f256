"""The recipe file: the mathematics of a run.

A recipe holds no path, host or thread count; a cluster (`configs.cluster`) holds no hyperparameter. Values that follow
from others (per-rank batch, steps per epoch, world size) are never keys: `configs.plan` derives them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from pydantic import Field

from configs.blocks.execution import Communication, EngineSettings
from configs.blocks.images import Data
from configs.blocks.training import Batch, Card, Mlperf, Model, Residual, Run, Schedule
from configs.cluster import Cluster
from configs.errors import ConfigError
from configs.ideas import IDEAS, Idea
from configs.ideas.loss import Loss
from configs.networks import NETWORKS
from configs.optimizers import OPTIMIZER, Optimizer
from configs.section import Section

__all__ = ["Cluster", "Communication", "Data", "EngineSettings", "Loss", "Mlperf", "Model", "Recipe", "Residual"]


class Span(NamedTuple):
    """Consecutive epochs, counted from 1, and the recipe as each of them takes it."""

    epochs: range
    recipe: Recipe


class Recipe(Section):
    """The mathematics of a run, complete: the same recipe gives the same loss curve wherever it runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the recipe: letters, digits, dots, dashes and underscores. Run folders begin with it."""
    card: Card = Card()
    model: Model
    data: Data
    batch: Batch
    optimizer: Optimizer
    schedule: Schedule
    loss: Loss = Loss()
    run: Run
    mlperf: Mlperf = Mlperf()

    @property
    def evaluated(self) -> Recipe:
        """The recipe as an evaluation or an export takes it: the network's images have the side ``data.eval_size``."""
        return self._of_one_size(self.data.eval_size or self.model.image_size)

    def counted(self, counts: Sequence[int] | None) -> Recipe:
        """Return the recipe with the numbers of weights that follow from the training images of each class.

        Args:
            counts: Training images of each class. If None, all classes are equally large.
        """
        classes = self.model.num_classes
        return self.model_copy(update={"loss": self.loss.balanced(counts or [1] * classes, classes)})

    def of_epoch(self, epoch: int) -> Recipe:
        """Return the recipe as an epoch, counted from 1, takes it: all images have the side of this epoch."""
        return self._of_one_size(self._side(epoch, self.ideas))

    def _side(self, epoch: int, ideas: Sequence[Idea]) -> int:
        sides = (idea.side(self, epoch) for idea in ideas)
        return next((side for side in sides if side is not None), self.model.image_size)

    def _of_one_size(self, side: int) -> Recipe:
        data = {"eval_size": None}
        for idea in self.ideas:
            if idea.side(self, 1) is not None:
                data |= idea.off
        model = self.model.model_copy(update={"image_size": side})
        return self.model_copy(update={"model": model, "data": self.data.model_copy(update=data)})

    @property
    def ideas(self) -> tuple[Idea, ...]:
        """The ideas that the recipe asks for, in the order in which they act at one place of a step."""
        return tuple(idea for idea in (*IDEAS, OPTIMIZER) if idea.is_on(self))

    @property
    def spans(self) -> tuple[Span, ...]:
        """The run's epochs, cut where the side of the training images changes."""
        ideas = self.ideas
        groups = groupby(range(1, self.run.epochs + 1), key=lambda epoch: self._side(epoch, ideas))
        spans = [(side, [*epochs]) for side, epochs in groups]
        return tuple(Span(range(epochs[0], epochs[-1] + 1), self._of_one_size(side)) for side, epochs in spans)

    def rows(self, batch_size: int) -> Sequence[int]:
        """Return which of ``batch_size`` records in an epoch's order become an augmented micro-batch, by place."""
        rows = (idea.rows(self, batch_size) for idea in self.ideas)
        return next((each for each in rows if each is not None), range(batch_size))

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of an image's label: of a class, of every class, or as an idea makes it."""
        shapes = (idea.label_shape(self) for idea in self.ideas)
        return next((shape for shape in shapes if shape is not None), ())

    @property
    def eval_passes(self) -> int:
        """Images that pass through the network in an evaluation, each as often as the ideas ask for."""
        return self.data.eval_samples * math.prod(idea.inferences_per_image(self) for idea in self.ideas)

    def _require_fitting_images(self) -> None:
        model, data, network = self.model, self.data, NETWORKS[self.model.name]
        least, most = network.smallest, network.largest
        sides = [("model.image_size", each.recipe.model.image_size) for each in self.spans]
        sides += [("data.eval_size", data.eval_size)] if data.eval_size else []
        for name, side in sides:
            if not least <= side <= most:
                allowed = f"{least} to {most} px" if least < most else f"{least} px"
                others = [each for each, entry in NETWORKS.items() if entry.smallest <= side <= entry.largest]
                raise ConfigError(name, side, f"{allowed} for {model.name}", f"or take one of {', '.join(others)}")
            if side % model.side_multiple:
                allowed = f"a multiple of {model.side_multiple} px where model.residual halves images by average pools"
                raise ConfigError(name, side, allowed)
            if not network.is_pooled and side != model.image_size:
                raise ConfigError(name, side, f"null for {model.name}, which takes images of one size")
        for key, value in (("mean", self.data.mean), ("std", self.data.std)):
            if model.input_channels == 1 and len(set(value)) > 1:
                raise ConfigError(f"data.{key}", list(value), "three equal numbers where model.input_channels is 1")

    def _require_agreement(self) -> None:
        self._require_fitting_images()
        for idea in self.ideas:
            idea.require_fit(self)
        plain, resize = self.data.plain_from_epoch, self.data.eval_resize
        epochs, images = self.run.epochs, self.data.train_samples
        side = max(self.evaluated.model.image_size, self.model.image_size if plain else 0)
        key = "data.eval_size" if side == self.data.eval_size else "model.image_size"
        self.refuse(resize is not None and resize < side, "data.eval_resize", f"at least {key} ({side})")
        allowed, remedy = f"2 to run.epochs ({epochs})", "set data.plain_from_epoch=null, too"
        self.refuse(plain is not None and plain > epochs, "data.plain_from_epoch", allowed, remedy)
        allowed = "false with data.plain_from_epoch, which changes the images"
        self.refuse(plain is not None and self.data.keep_batches, "data.keep_batches", allowed)
        allowed = f"at most 100 times data.train_samples ({images})"
        self.refuse(self.batch.global_size > images * 100, "batch.global_size", allowed)
