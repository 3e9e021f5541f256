"""A study: one recipe at many points, each with a small grid and several seeds. Frozen and self-checking."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, field_validator

from configs.errors import ConfigError, nearest
from configs.load import ROOT, load_both, parse_yaml
from configs.plan import plan_run
from configs.scaling_study import ScalingStudy
from configs.schema import Cluster, Recipe
from configs.section import Section

__all__ = ["Cell", "Curve", "Study", "load_study"]

_Schema = TypeVar("_Schema", bound=Section)
Values = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]


class Curve(Section):
    """One line of the plot."""

    set: dict[str, Any] = Field(default_factory=dict, description="Keys of the recipe that make this curve.")
    grid: dict[int, Values] = Field(min_length=1, description="Values of the tuned key to try at each swept value.")


class Study(Section):
    """Curves of accuracy over a swept key; at each point the best of a grid, then the other seeds at that best."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str
    purpose: str
    notes: str = Field("", description="What was found, in words; stands below the table.")
    recipe: str
    cluster: str = "laptop"
    set: dict[str, Any] = Field(default_factory=dict, description="Keys set in every run, as --set takes them.")
    swept: str = Field(description="Key of the horizontal axis.")
    tuned: str = Field(description="Key of which each point takes its best value.")
    seeds: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    curves: dict[str, Curve] = Field(min_length=1)

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ConfigError("seeds", list(value), "numbers that differ")
        return value

    def grid_cells(self) -> Iterator[Cell]:
        """List every value of every grid at the first seed."""
        for name, curve in self.curves.items():
            for swept, values in curve.grid.items():
                yield from (Cell(name, swept, tuned, self.seeds[0]) for tuned in values)

    def load(self, cell: Cell) -> tuple[Recipe, Cluster]:
        """Give what a cell runs.

        Raises:
            ConfigError: The study sets what a recipe or a cluster refuses.
        """
        values = {
            **self.set, **self.curves[cell.curve].set,
            self.swept: cell.swept, self.tuned: cell.tuned, "run.seed": cell.seed,
        }  # fmt: skip
        return load_both(self.recipe, self.cluster, [f"{key}={json.dumps(value)}" for key, value in values.items()])


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    curve: str
    swept: int
    tuned: float
    seed: int

    @property
    def folder(self) -> str:
        """Name its run's folder."""
        return f"{self.curve}-{self.swept}-{self.tuned:g}-seed{self.seed}".replace(" ", "-")


def load_study(name: str) -> Study | ScalingStudy:
    """Load a study by name (``configs/studies``) or path, and check that each of its cells can be run.

    A file that names a ``swept`` key is a `Study`, any other a `ScalingStudy`.

    Raises:
        ConfigError: Unknown study or key, wrong type, value out of range, here or in a cell.
    """
    folder = ROOT / "configs" / "studies"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        known = [entry.stem for entry in folder.glob("*.yaml")]
        raise ConfigError("study", name, "a name in configs/studies or a YAML file", nearest(name, known))
    tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(tree, Mapping):
        raise ConfigError("study", str(path), "a block of keys")
    if "swept" in tree:
        study = _validate(Study, tree)
        for cell in study.grid_cells():
            study.load(cell)
        return study
    scaling = _validate(ScalingStudy, tree)
    for point in scaling.cells():
        recipe, cluster = scaling.load(point)
        plan_run(recipe, cluster.world_size)
    return scaling


def _validate(schema: type[_Schema], tree: Mapping[str, Any]) -> _Schema:
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            raise cause from None
        key = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(key, problem["input"], problem["msg"]) from None
