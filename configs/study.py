"""The two kinds of study: curves of accuracy, and a grid of cells whose speed is measured.

An accuracy study trains one recipe at many points, each with a small grid of a tuned key and several seeds. A scaling
study times every cell of ranks x batch x framework x network x communication x data several times.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from typing import Annotated, Any

from pydantic import Field

from configs.errors import ConfigError, UserError
from configs.load import load_both, load_cluster, read_tree
from configs.plan import plan_run
from configs.registry import COMMUNICATORS, ENGINES, communicators_of
from configs.schema import Cluster, Recipe
from configs.section import Section
from configs.validate import validate

Values = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
Positives = tuple[Annotated[int, Field(ge=1)], ...]
Counts = Annotated[Positives, Field(strict=False, min_length=1)]
Variants = Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
"""The values of one axis of the grid: name -> the keys that it sets."""

Numbers = Annotated[tuple[int, ...], Field(strict=False)]
Arguments = Annotated[tuple[str | int, ...], Field(strict=False, min_length=1)]
AXES = ("framework", "network", "communication", "data", "batch", "ranks")
"""What the cells of a scaling study differ by, in the order of the fields of `ScalingCell`."""


class _AnyStudy(Section):
    """The keys that both kinds of study have."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the study: letters, digits, dots, dashes and underscores. Its folder in runs has this name."""
    title: str
    """Heading of the study's page."""
    purpose: str
    """Question that the study answers, as the page's first paragraph."""
    notes: str = ""
    """Findings, at the end of the page. An empty line separates paragraphs."""
    recipe: str
    """Recipe that every run starts from: a name in configs/recipes or a YAML file."""
    cluster: str = "laptop"
    """Cluster that every run uses: a name in configs/clusters or a YAML file. Cells of a scaling study that need more
    cores or GPUs than it has are predicted, not run."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys set in every run, with dots between blocks, as --set takes them."""
    _given: str = ""  # The name or the file of the command that runs the study, quoted for a shell.

    @cached_property
    def _load_once(self) -> Callable[[str, str, tuple[str, ...]], tuple[Recipe, Cluster]]:
        """`load_both` for the cells, each of which is asked for when the study is checked, and with every repeat."""
        return cache(load_both)


class Curve(Section):
    """One line of the plot."""

    set: dict[str, Any] = Field(default_factory=dict)
    """Keys that make this curve, with dots between blocks, as --set takes them."""
    grid: dict[int, Values] = Field(min_length=1)
    """Value of the swept key -> values of the tuned key to try there."""


class Study(_AnyStudy):
    """Curves of accuracy over a swept key: each point is the best of a grid, then repeated with the other seeds.

    A run sets, each over the one before: ``set``, the curve's own ``set``, the swept key, the tuned key, run.seed.
    """

    swept: str
    """Key of the horizontal axis, for example batch.global_size."""
    tuned: str
    """Key that each point tunes: it tries the values of the grid with the first seed and keeps the best."""
    seeds: Annotated[Numbers, Field(min_length=1)]
    """Values of run.seed, each once. The first one chooses the best value of the tuned key; the others repeat the run
    with that value."""
    curves: dict[str, Curve] = Field(min_length=1)
    """The curves to draw: a free name for each."""

    def _require_agreement(self) -> None:
        self.refuse(len(set(self.seeds)) < len(self.seeds), "seeds", "every number once")
        self.refuse(self.swept in {self.tuned, "run.seed"}, "swept", "a key that neither tuned nor seeds sets over it")
        self.refuse(self.tuned == "run.seed", "tuned", "another key, because seeds sets this one over it")

    def cells(self) -> Iterator[Cell]:
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
        return self._load_once(self.recipe, self.cluster, _overrides(values))


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
    def name(self) -> str:
        """The name of the run's folder."""
        return _as_folder(f"{self.curve}-{self.swept}-{self.tuned:g}-seed{self.seed}")


class ScalingStudy(_AnyStudy):
    """A grid: every combination of frameworks, networks, communications, data, batches and ranks, ``repeats`` times.

    A cell sets, each over the one before: ``set``; the keys of its framework, network, communication and data;
    ``times_ranks``; and batch.global_size and the cluster's nodes and ranks, which follow from its batch and ranks.
    """

    repeats: int = Field(3, ge=1, le=100, json_schema_extra={"unit": "runs"})
    """Runs of each cell; repeat r adds r to the recipe's seed. More repeats show the spread and take longer."""
    warmup_steps: int = Field(10, ge=0)
    """Steps at the beginning of a run that are not measured."""
    ranks: Counts = Field(json_schema_extra={"unit": "ranks"})
    """Numbers of ranks to run on, each once."""
    batch: Counts = Field(json_schema_extra={"unit": "images"})
    """Images per rank in one step, each number once."""
    global_batch: Annotated[Positives, Field(strict=False)] = Field((), json_schema_extra={"unit": "images"})
    """Images of all ranks together in one step, for strong scaling: each number is also split evenly over each number
    of ranks that divides it."""
    framework: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Frameworks to compare: a free name for each, with the keys that choose it, as cluster.engine.name: torch. If
    empty, the cluster's. A framework that is not installed is left out and reported. No cell is predicted, because the
    simulator does not distinguish frameworks."""
    network: Variants
    """Networks to compare: a free name for each, with the keys that choose it, or {} for the recipe's."""
    communication: Variants
    """Kinds of communication to compare: a free name for each, with the keys that choose it, or {}."""
    data: Variants
    """Data sets to compare: a free name for each, with the keys that choose it, or {} for the recipe's."""
    leave_out: Annotated[tuple[dict[str, Arguments], ...], Field(strict=False)] = ()
    """Combinations that are not run, each with values by axis, as {network: [resnet50], ranks: [1, 2]}. A cell that has
    one of the listed values on every listed axis is left out."""
    prepare: dict[str, Arguments] = Field(default_factory=dict)
    """Data sets to pack where they are missing: name of the data set -> arguments of ./run.sh prepare."""
    times_ranks: dict[str, float] = Field(default_factory=dict)
    """Keys that scale with the ranks of the cell: value for one rank, for example schedule.base_lr: 1e-4."""

    def _require_agreement(self) -> None:
        for each in self.leave_out:
            if not each:
                raise ConfigError("leave_out", "{}", "at least one axis with values to leave out")
            _require_known("leave_out", each, AXES)
            for axis, values in each.items():
                known = {batch for batch, _ in self._sizes} if axis == "batch" else getattr(self, axis)
                _require_known(f"leave_out.{axis}", values, known)

    def cells(self) -> Iterator[ScalingCell]:
        """Yield the cells of the grid, then the cells of strong scaling that the grid does not have.

        Left out are the cells that ``leave_out`` describes, and the cells that cannot exist: several ranks with
        communication ``none``, ``devices`` on several machines, and those that `grid` yields with a reason.

        Raises:
            ConfigError: The study sets a value that a recipe or a cluster refuses.
        """
        return (cell for cell, why_not in self.grid() if not why_not)

    def grid(self) -> Iterator[tuple[ScalingCell, str]]:
        """Yield each cell that is not left out, and in words why its engine cannot have it; empty if it can."""
        base = self.base_cluster
        axes = (self.framework or {"": {}}, self.network, self.communication, self.data, self._sizes)
        for framework, network, communication, data, (batch, ranks) in itertools.product(*axes):
            cell = ScalingCell(framework, network, communication, data, batch, ranks)
            values = self._values(cell)
            engine = str(values.get("cluster.engine.name", base.engine.name))
            default = (
                base.communication.kind if engine == base.engine.name else next(iter(communicators_of(engine)), "")
            )
            kind = str(values.get("cluster.communication.kind", default))
            if (kind == "none" and ranks > 1) or (kind == "devices" and values["cluster.num_nodes"] > 1):
                continue
            if not any(all(getattr(cell, axis) in each[axis] for axis in each) for each in self.leave_out):
                is_known = engine in ENGINES and kind in COMMUNICATORS  # Other names are refused when a cell is loaded.
                has_kind = not is_known or kind in communicators_of(engine)
                yield cell, "" if has_kind else f"{ENGINES[engine].title} has no communication.kind {kind}"

    def _values(self, cell: ScalingCell) -> dict[str, Any]:
        """Return the keys that a cell sets, those of a later axis over those of an earlier one."""
        return {
            **self.set,
            **self.framework.get(cell.framework, {}),
            **self.network[cell.network],
            **self.communication[cell.communication],
            **self.data[cell.data],
            **{key: value * cell.ranks for key, value in self.times_ranks.items()},
            "batch.global_size": cell.batch * cell.ranks,
            **_placement(cell.ranks, self.base_cluster),
        }

    def load(self, cell: ScalingCell, repeat: int = 0) -> tuple[Recipe, Cluster]:
        """Return the recipe and the cluster of one run.

        Args:
            cell: The cell.
            repeat: Number of the run among the cell's repeats, counted from 0. It is added to the recipe's seed.

        Raises:
            ConfigError: The study sets a value that a recipe or a cluster refuses.
        """
        recipe, cluster = self._load_once(self.recipe, self.cluster, _overrides(self._values(cell)))
        run = recipe.run.model_copy(update={"seed": recipe.run.seed + repeat})
        return recipe.model_copy(update={"run": run}), cluster

    @cached_property
    def base_cluster(self) -> Cluster:
        """The study's cluster, with the keys that the study sets in every run: the machines that exist."""
        return load_cluster(self.cluster, _overrides(self.set))

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """The pairs of batch and ranks: the grid, then those of strong scaling that the grid does not have."""
        split = [(size // ranks, ranks) for size in self.global_batch for ranks in self.ranks if size % ranks == 0]
        return list(dict.fromkeys([*itertools.product(self.batch, self.ranks), *split]))


def _as_folder(name: str) -> str:
    """Return the name of a folder: a dash stands for each space, slash and character that does not print."""
    return "".join(each if each.isprintable() and each not in " /" else "-" for each in name)


def _require_known(key: str, values: Iterable[str | int], known: Any) -> None:
    for value in values:
        if value not in known:
            raise ConfigError(key, value, ", ".join(map(str, known)))


def _overrides(values: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={json.dumps(value)}" for key, value in values.items())


def _placement(ranks: int, cluster: Cluster) -> dict[str, Any]:
    """Return the cluster's keys that place ``ranks`` on as few machines as possible.

    One machine whose CPU runs the ranks takes any number of them.

    Raises:
        ConfigError: The ranks need several machines and do not fill the last one.
    """
    per_node = cluster.ranks_per_node
    if ranks <= per_node or (cluster.device == "cpu" and cluster.launcher == "local"):
        cores = {"cluster.node.rank_cores": cluster.node.rank_cores[:ranks]} if cluster.node.rank_cores else {}
        return {"cluster.num_nodes": 1, "cluster.ranks_per_node": ranks, **cores}
    if ranks % per_node:
        allowed = f"up to {per_node}, or a multiple of {per_node}"
        raise ConfigError("study.ranks", ranks, allowed, "change it, or the cluster's ranks_per_node")
    # The local launcher starts ranks on one machine only. A cell on several machines is predicted and never started,
    # so any other launcher will do.
    launcher = {"cluster.launcher": "horovodrun"} if cluster.launcher == "local" else {}
    return {"cluster.num_nodes": ranks // per_node, "cluster.ranks_per_node": per_node, **launcher}


@dataclass(frozen=True)
class ScalingCell:
    """One combination of the grid, with its values on all axes in the order of the table's columns.

    Attributes:
        framework: Name in the study's ``framework``; empty if the study compares none.
        network: Name in the study's ``network``.
        communication: Name in the study's ``communication``.
        data: Name in the study's ``data``.
        batch: Images of a rank in one step.
        ranks: Number of ranks.
    """

    framework: str
    network: str
    communication: str
    data: str
    batch: int
    ranks: int

    @property
    def name(self) -> str:
        """The name of the cell's run folders, without the number of the repeat."""
        *names, batch, ranks = astuple(self)
        return _as_folder("-".join([*filter(None, names), f"b{batch}", f"r{ranks}"]))


def load_study(name: str) -> Study | ScalingStudy:
    """Return a study of either kind, after a check that each of its cells can be run.

    The two kinds of study have different keys: a file is of the kind that knows more of its keys.

    Args:
        name: A name in ``configs/studies``, or a path.

    Raises:
        ConfigError: The study or a key is unknown, or a value has the wrong type or range, in the study or in a cell.
        UserError: The file cannot be read or is not YAML, or the ranks of a cell cannot share its batch.
    """
    tree = read_tree("study", name)
    is_of_accuracy = len(tree.keys() & Study.model_fields.keys()) > len(tree.keys() & ScalingStudy.model_fields.keys())
    study: Any = validate(Study if is_of_accuracy else ScalingStudy, tree, "study.")
    study._given = shlex.quote(name)
    cells = list(study.cells())
    for folder, number in Counter(cell.name for cell in cells).items():
        if number > 1:  # as of 1 and 1.0, or of the names "a b" and "a-b"
            remedy = "list each value once, with up to 6 digits, and give names without spaces and slashes"
            raise UserError(f"study: {number} of its cells would have the folder {folder}; {remedy}")
    for recipe, cluster in map(study.load, cells):
        plan_run(recipe, cluster.world_size)
    found: Study | ScalingStudy = study
    return found
