"""A scaling study: a grid of ranks, batches, networks, communications and data, each point timed several times."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from configs.errors import ConfigError
from configs.load import load_both, load_cluster
from configs.schema import Cluster, Recipe
from configs.section import Section

__all__ = ["Expectation", "LeftOut", "ScalingCell", "ScalingStudy"]

Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)]
Variants = Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
"""The names on one axis of the grid, each with the keys that it sets."""

Names = Annotated[tuple[str, ...], Field(strict=False)]
Words = Annotated[tuple[str | int, ...], Field(strict=False, min_length=1)]


class LeftOut(Section):
    """Cells that nobody wants: those that have one of the values listed on every axis listed."""

    network: Names = ()
    communication: Names = ()
    data: Names = ()
    batch: Annotated[tuple[int, ...], Field(strict=False)] = ()
    ranks: Annotated[tuple[int, ...], Field(strict=False)] = ()

    def names(self, cell: ScalingCell) -> bool:
        """Tell whether a cell is one of them."""
        return all(getattr(cell, axis) in values for axis, values in self if values)


class Expectation(Section):
    """A comparison that the study is made for: a network's images/s at one value of an axis over those at another.

    It is judged by the numbers found, wherever both were, and the page says whether it holds.
    """

    axis: Literal["communication", "data", "batch"]
    base: str | int = Field(description="The value that speeds are told relative to.")
    other: str | int
    effect: Literal["loses", "gains"]
    network: str = Field(description="What loses, or gains.")
    than: Names = Field((), description="The networks that lose, or gain, less; none: it loses, or gains, at all.")

    @property
    def words(self) -> str:
        """Say it."""
        compared = f" more than {' and '.join(self.than)}" if self.than else ""
        value = f"batch {self.other}" if self.axis == "batch" else self.other
        base = f"batch {self.base}" if self.axis == "batch" else self.base
        return f"{self.network} {self.effect}{compared} with {value} in place of {base}"


class ScalingStudy(Section):
    """Every combination of the axes, each ``repeats`` times, interleaved.

    A cell sets, each over the one before: ``set``, its network's, communication's and data's keys, ``times_ranks``,
    and what its batch and ranks mean. Repeat r runs with the recipe's seed plus r.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str
    purpose: str
    notes: str = Field("", description="What was found, in words; stands below the figures.")
    recipe: str
    cluster: str = "laptop"
    set: dict[str, Any] = Field(default_factory=dict, description="Keys set in every run, as --set takes them.")
    repeats: int = Field(3, ge=1, le=100)
    warmup_steps: int = Field(10, ge=0, description="Steps at a run's beginning that no rate counts.")
    ranks: Counts
    batch: Counts = Field(description="Images a rank and step.")
    network: Variants
    communication: Variants
    data: Variants
    leave_out: Annotated[tuple[LeftOut, ...], Field(strict=False)] = ()
    prepare: dict[str, Words] = Field(
        default_factory=dict,
        description="Data sets to pack where they are missing: name -> what ./run.sh prepare takes.",
    )
    expects: Annotated[tuple[Expectation, ...], Field(strict=False)] = ()
    times_ranks: dict[str, float] = Field(
        default_factory=dict, description="Keys whose value is this times the ranks: schedule.base_lr: 1e-4."
    )

    @field_validator("ranks", "batch")
    @classmethod
    def _values_differ(cls, value: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ConfigError(str(info.field_name), list(value), "numbers that differ")
        return value

    @model_validator(mode="after")
    def _left_out_cells_are_named_rightly(self) -> ScalingStudy:
        for each in self.leave_out:
            for axis, values in each:
                unknown = [value for value in values if value not in getattr(self, axis)]
                if unknown:
                    raise ConfigError(f"leave_out.{axis}", unknown[0], ", ".join(map(str, getattr(self, axis))))
            if not any(values for _, values in each):
                raise ConfigError("leave_out", "{}", "at least one axis with its values")
        return self

    @model_validator(mode="after")
    def _expectations_are_of_this_grid(self) -> ScalingStudy:
        for each in self.expects:
            for axis, value in (
                *((each.axis, value) for value in (each.base, each.other)),
                *(("network", name) for name in (each.network, *each.than)),
            ):
                if value not in getattr(self, axis):
                    raise ConfigError(f"expects.{axis}", value, ", ".join(map(str, getattr(self, axis))))
        return self

    def cells(self) -> Iterator[ScalingCell]:
        """List the grid, without what is left out, and what cannot be: ranks alone together, devices of two machines.

        Raises:
            ConfigError: The study sets what a recipe or a cluster refuses.
        """
        place = self.place()
        axes = (self.network, self.communication, self.data, self.batch, self.ranks)
        for network, communication, data, batch, ranks in itertools.product(*axes):
            seats = _seats(ranks, place)
            values = {**self.set, **self.communication[communication]}
            kind = values.get("cluster.communication.kind", place.communication.kind)
            if (kind == "none" and ranks > 1) or (kind == "devices" and seats["cluster.num_nodes"] > 1):
                continue
            cell = ScalingCell(network, communication, data, batch, ranks)
            if not any(each.names(cell) for each in self.leave_out):
                yield cell

    def load(self, cell: ScalingCell, repeat: int = 0) -> tuple[Recipe, Cluster]:
        """Give what a cell runs; the recipe's seed plus ``repeat`` is its seed.

        Raises:
            ConfigError: The study sets what a recipe or a cluster refuses.
        """
        recipe, cluster = self._load(self._values(cell))
        return recipe.model_copy(
            update={"run": recipe.run.model_copy(update={"seed": recipe.run.seed + repeat})}
        ), cluster

    def place(self) -> Cluster:
        """Give the machines that there are."""
        return self._place

    @cached_property
    def _place(self) -> Cluster:
        return load_cluster(self.cluster, _overrides(self.set))

    def _values(self, cell: ScalingCell) -> dict[str, Any]:
        return {
            **self.set,
            **self.network[cell.network],
            **self.communication[cell.communication],
            **self.data[cell.data],
            **{key: value * cell.ranks for key, value in self.times_ranks.items()},
            "batch.global_size": cell.batch * cell.ranks,
            **_seats(cell.ranks, self.place()),
        }

    def _load(self, values: dict[str, Any]) -> tuple[Recipe, Cluster]:
        return load_both(self.recipe, self.cluster, _overrides(values))


def _overrides(values: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _seats(ranks: int, place: Cluster) -> dict[str, Any]:
    """Put ``ranks`` on as few machines as hold them; a CPU takes any number.

    Raises:
        ConfigError: They do not fill the last machine.
    """
    a_node = place.ranks_per_node
    if ranks <= a_node or (place.device == "cpu" and place.launcher == "local"):
        cores = {"cluster.node.rank_cores": place.node.rank_cores[:ranks]} if place.node.rank_cores else {}
        return {"cluster.num_nodes": 1, "cluster.ranks_per_node": ranks, **cores}
    if ranks % a_node:
        raise ConfigError("study.ranks", ranks, f"up to {a_node}, or a multiple of them", "change it, or the cluster")
    # More than one machine has no local launcher: such a cell is only ever predicted.
    beyond = {"cluster.launcher": "horovodrun"} if place.launcher == "local" else {}
    return {"cluster.num_nodes": ranks // a_node, "cluster.ranks_per_node": a_node, **beyond}


@dataclass(frozen=True)
class ScalingCell:
    """One point of the grid."""

    network: str
    communication: str
    data: str
    batch: int
    ranks: int

    @property
    def axes(self) -> tuple[str, str, str, int, int]:
        """Give its place in the grid, in the order of the table's columns."""
        return self.network, self.communication, self.data, self.batch, self.ranks

    @property
    def name(self) -> str:
        """Name its runs' folders, save for the repeat."""
        words = f"{self.network}-{self.communication}-{self.data}-b{self.batch}-r{self.ranks}"
        return words.replace(" ", "-").replace("/", "-")
