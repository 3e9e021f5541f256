"""What an idea is: something that a recipe may ask of the training beyond network, data set, batch and schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from configs.ideas.part import Part, Place
from configs.rule import Rule
from configs.section import Section

if TYPE_CHECKING:
    from configs.schema import Cluster, Recipe


class Idea:
    """An idea, and all that the program asks of it without a framework.

    Every answer here is that of an idea to which the question does not matter. A subclass has its keys and the answers
    that differ. What an idea computes is its part (`configs.ideas.part.Part`).

    Attributes:
        block: The recipe's block that has the keys, for example ``data``.
        keys: The keys, each with type, range, default and sentence. With the defaults the idea is off.
        rules: The rules of the closed division for these keys.
        part: Module with a function ``part_of(place)`` that returns the idea's part, if it does not stand beside the
            idea. If empty, see `part_of`.
        augmentation: Module with a function ``augmented(images, recipe)`` that adds DALI's operators for the training
            images of a rank, which are cropped and mirrored, uint8, in HWC. If empty, there are none.
        held_batches: Micro-batches of images that the idea's part makes and holds in a step.
    """

    block: ClassVar[str]
    keys: ClassVar[type[Section]]
    rules: ClassVar[Sequence[Rule]] = ()
    part: ClassVar[str] = ""
    augmentation: ClassVar[str] = ""
    held_batches: ClassVar[int] = 0

    @cached_property  # asked for by each recipe of a study
    def off(self) -> Mapping[str, Any]:
        """Return the keys of the block with the values that turn the idea off."""
        return {name: key.get_default() for name, key in self.keys.model_fields.items()}

    def part_of(self, place: Place) -> Part | None:
        """Return what the idea computes on a rank; None if it computes nothing in a step or an evaluation."""
        if not self.part:
            return None
        part: Part = import_module(self.part).part_of(place)
        return part

    def is_on(self, recipe: Recipe) -> bool:
        """Return whether a recipe asks for the idea; every recipe has one without keys."""
        block = getattr(recipe, self.block)
        return not self.off or any(getattr(block, name) != default for name, default in self.off.items())

    def require_fit(self, recipe: Recipe) -> None:
        """Raise ConfigError if the idea is on and cannot be had beside something else in the recipe."""

    def require_batch(self, recipe: Recipe, per_rank_batch_size: int) -> None:
        """Raise ConfigError if the idea is on and cannot be had with micro-batches of this many images."""

    def require_place(self, recipe: Recipe, cluster: Cluster) -> None:
        """Raise ConfigError if the idea is on and cannot be had with a cluster's engine or communication."""

    def variation(self, recipe: Recipe) -> str:
        """Return what makes the steps differ from each other, in words, so that no CUDA graph can repeat one."""
        return ""

    def begins(self, recipe: Recipe) -> tuple[str, float, int] | None:
        """Return a key, its value, and the steps after which the idea begins to act for it; None if it acts at once."""
        return None

    def side(self, recipe: Recipe, epoch: int) -> int | None:
        """Return the side of the training images of an epoch, counted from 1, px; None if the idea sets none."""
        return None

    def rows(self, recipe: Recipe, batch_size: int) -> Sequence[int] | None:
        """Return which of the ``batch_size`` records that follow in an epoch's order become a micro-batch, by place.

        As many as were read are returned, some of them several times. None if the idea leaves them as they are.
        """
        return None

    def label_shape(self, recipe: Recipe) -> tuple[int, ...] | None:
        """Return the shape of an image's label as the loss takes it; None if the idea does not change it."""
        return None

    def logged(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the hyperparameters that the MLPerf log has of the idea, in ruleset 4.0.0's spelling."""
        return {}

    def inferences_per_image(self, recipe: Recipe) -> int:
        """Return how often an image passes through the network in an evaluation."""
        return 1

    def held_numbers(self, recipe: Recipe, shapes: Sequence[tuple[int, ...]], num_statistics: int) -> int:
        """Return the float32 numbers that a rank holds for the idea; the arguments are those of `state_numbers`."""
        return self.state_numbers(recipe, shapes, num_statistics)

    def state_numbers(self, recipe: Recipe, shapes: Sequence[tuple[int, ...]], num_statistics: int) -> int:
        """Return the least float32 numbers of the idea's state, which checkpoints keep.

        Args:
            recipe: The recipe.
            shapes: Of the network's trainable tensors (OIHW).
            num_statistics: Numbers of its running means and variances.
        """
        return 0

    def renamed(self, settings: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, str]:
        """Return the arrays of an older version's checkpoint that have other names today: old name -> new name.

        Args:
            settings: The recipe of the run, as the checkpoint has it.
            names: Of all arrays in the checkpoint, see `train.checkpoint.Checkpoints`.
        """
        return {}

    def described(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the entries of ``network.json`` that tell a user of the exported network of the idea, on or off."""
        return {}
