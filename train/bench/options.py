"""What a bench is, and how its options are declared.

Imports the standard library only, as everything does that the module of a bench imports at its top, so that ``--help``
works before anything is installed.
"""

from abc import ABC, abstractmethod
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from configs.schema import Cluster
    from train.bench.launching import Jobs
    from train.bench.measure import Report


class Bench(ABC):
    """A question that ``./run.sh bench NAME`` answers by measurements: a frozen dataclass whose fields are its options.

    The fields are made by `option` and `effort`. The defaults answer the question in under six minutes on two cores.

    Attributes:
        question: What the bench measures, in one line.
        needs: The engine that the question is about; an environment without it cannot answer.
        only_here: Why the bench takes no ``--cluster``; empty if it takes one.
    """

    question: ClassVar[str]
    needs: ClassVar[str | None] = None
    only_here: ClassVar[str] = ""

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


def option(text: str, default: Any = None, *, flag: str | None = None, **settings: Any) -> Any:
    """Return a field that is an option.

    Args:
        text: The help, without the default.
        default: Value without the option.
        flag: The option's name. If None, the name of the field after two dashes.
        settings: Further arguments of `argparse.ArgumentParser.add_argument`.
    """
    if default not in (None, False, ()):
        shown = f"{default:g}" if isinstance(default, float) else default
        text += f" (default: {' '.join(map(str, shown)) if isinstance(shown, tuple) else shown})"
    return field(default=default, metadata={"flag": flag, "help": text, **settings})


def effort(what: str, *, quick: float, usual: float | None, thorough: float, default: str = "") -> Any:
    """Return a field that says how much to measure: by a number, or by ``--quick`` or ``--thorough``.

    Args:
        what: What the number counts.
        quick: The number for a first impression.
        usual: The number that answers the question in under six minutes on two cores; None where the bench chooses it.
        thorough: The number for a narrow interval.
        default: Describes ``usual`` where the bench chooses it.
    """
    text = f"{what} (default: {default or usual})"
    return field(default=usual, metadata={"help": text, "numbers": {"quick": quick, "thorough": thorough}})


@dataclass(frozen=True)
class PlaceOptions:
    """The options that say where a bench measures.

    Attributes:
        cluster: A name in configs/clusters or a YAML file.
        overrides: Changes of the cluster, each ``cluster.key=value``.
    """

    cluster: str = option("a name in configs/clusters or a YAML file", "laptop", metavar="C")
    overrides: Sequence[str] = option(
        "change a value of the cluster (cluster.num_nodes=2); repeatable",
        (),
        flag="--set",
        metavar="KEY=VALUE",
        action="append",
    )


def add_options(parser: ArgumentParser, options: type) -> None:
    """Add the options that a dataclass declares. An option that is not given leaves its field at the default."""
    for each in fields(options):
        settings = dict(each.metadata)
        flag = settings.pop("flag", None) or f"--{each.name.replace('_', '-')}"
        if numbers := settings.pop("numbers", None):
            group, kind = parser.add_mutually_exclusive_group(), type(numbers["quick"])
            metavar = "N" if kind is int else "S"
            group.add_argument(flag, metavar=metavar, type=kind, default=SUPPRESS, **settings)
            for word, value in numbers.items():
                told: dict[str, Any] = {"dest": each.name, "const": value, "help": f"{flag} {value}"}
                group.add_argument(f"--{word}", action="store_const", default=SUPPRESS, **told)
        elif flag.startswith("-"):
            parser.add_argument(flag, dest=each.name, default=SUPPRESS, **settings)
        else:
            parser.add_argument(flag, default=each.default, **settings)
