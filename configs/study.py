"""An accuracy study: one recipe at many points, each with a small grid of a tuned key and several seeds.

`load_study` also loads the other kind of study, `configs.scaling_study`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from configs.errors import ConfigError
from configs.load import load_both, read_tree
from configs.plan import plan_run
from configs.scaling_study import ScalingStudy
from configs.schema import Cluster, Recipe
from configs.section import Section
from configs.validate import validate

Values = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]


class Curve(Section):
    """One line of the plot."""

    set: dict[str, Any] = Field(
        default_factory=dict, description="Keys that make this curve, with dots between blocks, as --set takes them."
    )
    grid: dict[int, Values] = Field(
        min_length=1, description="Value of the swept key -> values of the tuned key to try there."
    )


class Study(Section):
    """Curves of accuracy over a swept key: each point is the best of a grid, then repeated with the other seeds.

    A run sets, each over the one before: ``set``, the curve's own ``set``, the swept key, the tuned key, run.seed.
    """

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the study: letters, digits, dots, dashes and underscores. Its folder in runs bears it.",
    )
    title: str = Field(description="Heading of the study's page.")
    purpose: str = Field(description="What the study asks, as the page's first paragraph.")
    notes: str = Field("", description="What was found, in words, below the table.")
    recipe: str = Field(description="Recipe that every run starts from: a name in configs/recipes or a YAML file.")
    cluster: str = Field(
        "laptop", description="Cluster that every run uses: a name in configs/clusters or a YAML file."
    )
    set: dict[str, Any] = Field(
        default_factory=dict, description="Keys set in every run, with dots between blocks, as --set takes them."
    )
    swept: str = Field(description="Key of the horizontal axis, for example batch.global_size.")
    tuned: str = Field(
        description="Key that each point tunes: it tries the values of the grid with the first seed and keeps the best."
    )
    seeds: Annotated[tuple[int, ...], Field(strict=False, min_length=1)] = Field(
        description="Values of run.seed, each once. The first one chooses the best value of the tuned key; the others "
        "repeat the run with that value."
    )
    curves: dict[str, Curve] = Field(min_length=1, description="The curves to draw: a free name for each.")

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ConfigError("seeds", list(value), "every number once")
        return value

    def grid_cells(self) -> Iterator[Cell]:
        """Yield a cell for every value of every grid, with the first seed."""
        for name, curve in self.curves.items():
            for swept, values in curve.grid.items():
                yield from (Cell(name, swept, tuned, self.seeds[0]) for tuned in values)

    def load(self, cell: Cell) -> tuple[Recipe, Cluster]:
        """Return the recipe and the cluster of one run.

        Raises:
            ConfigError: The study sets a value that a recipe or a cluster refuses.
        """
        values = {**self.set, **self.curves[cell.curve].set}
        values |= {self.swept: cell.swept, self.tuned: cell.tuned, "run.seed": cell.seed}
        return load_both(self.recipe, self.cluster, [f"{key}={json.dumps(value)}" for key, value in values.items()])


@dataclass(frozen=True)
class Cell:
    """One run of an accuracy study.

    Attributes:
        curve: Name of the curve.
        swept: Value of the swept key.
        tuned: Value of the tuned key.
        seed: Value of ``run.seed``.
    """

    curve: str
    swept: int
    tuned: float
    seed: int

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"{self.curve}-{self.swept}-{self.tuned:g}-seed{self.seed}".replace(" ", "-")


def load_study(name: str) -> Study | ScalingStudy:
    """Return a study of either kind, after a check that each of its cells can be run.

    The two kinds of study have different keys: a file is of the kind that knows more of its keys.

    Args:
        name: A name in ``configs/studies``, or a path.

    Raises:
        ConfigError: The study or a key is unknown, or a value has the wrong type or range, in the study or in a cell.
        UserError: The file cannot be read or is not YAML.
    """
    tree = read_tree("study", name)
    if len(tree.keys() & Study.model_fields.keys()) > len(tree.keys() & ScalingStudy.model_fields.keys()):
        study = validate(Study, tree, "study.")
        for cell in study.grid_cells():
            study.load(cell)
        return study
    scaling = validate(ScalingStudy, tree, "study.")
    for point in scaling.cells():
        recipe, cluster = scaling.load(point)
        plan_run(recipe, cluster.world_size)
    return scaling
