"""What a bench is, and how its options are declared.

Imports the standard library only, as everything does that the module of a bench imports at its top, so that ``--help``
works before anything is installed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from configs.arguments import option, whole_number

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs
    from train.bench.measure import Report


class Bench(ABC):
    """A question that ``./run.sh bench NAME`` answers by measurements: a frozen dataclass whose fields are its options.

    The fields are made by `configs.arguments.option` and `effort`. The defaults answer the question in under six
    minutes on two cores.

    Attributes:
        question: What the bench measures, in one line.
        needs: The engine that the question is about; an environment without it cannot answer.
    """

    question: ClassVar[str]
    needs: ClassVar[str | None] = None

    @abstractmethod
    def measure(self, jobs: "Jobs") -> "Report":
        """Measure, and return the figures; ``jobs`` starts programs.

        Raises:
            UserError: An option is wrong, or something is missing on this machine.
            MeasurementFailed: A program that was to be measured failed.
        """


def is_local_cpu(cluster: "Cluster") -> bool:
    """Return whether a cluster is the CPU of one machine, whose ranks this program starts by itself."""
    return cluster.launcher == "local" and cluster.device == "cpu"


COUNT = whole_number(1, 1_000_000)
"""Parses the value of an option that counts starts, steps, images, pixels or ranks."""


def effort(what: str, *, quick: float, usual: float | None, thorough: float) -> Any:
    """Return a field that says how much to measure: by a number, or by ``--quick`` or ``--thorough``.

    Args:
        what: What the number counts.
        quick: The number for a first impression.
        usual: The number that answers the question in under six minutes on two cores; None where the bench chooses it.
        thorough: The number for a narrow interval.
    """
    presets = {"--quick": quick, "--thorough": thorough}
    metavar, kind = ("N", COUNT) if isinstance(quick, int) else ("S", float)
    return option(what, usual, metavar=metavar, type=kind, presets=presets)


@dataclass(frozen=True)
class PlaceOptions:
    """The options that say where a bench measures."""

    cluster: str = option("a name in configs/clusters or a YAML file", "laptop", metavar="C")
    overrides: Sequence[str] = option(
        "change a value of the cluster (cluster.num_nodes=2); repeatable",
        (),
        flag="--set",
        metavar="KEY=VALUE",
        action="append",
    )
