"""What ``./run.sh doctor`` is asked for. Imports the standard library only, so that ``--help`` needs no set-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The command line of ``./run.sh doctor``.

    Attributes:
        recipe: The recipe of the run that is to follow. If None, data set and plan are not checked.
        cluster: The cluster; if None, ``laptop``.
        overrides: Changes to both, as ``--set`` takes them.
        step: Whether the ranks also take the recipe's step; needs ``recipe``.
        times: How often they take the samples by which nodes are judged.
        hosts: The hosts to start the ranks on, as the user lists them. If None, the launcher finds them.
        run: The run that is to follow, whose spare nodes are examined, too, and whose folder takes the scores. If None,
            there is no run.
        json: Whether to print JSON.
        accept_s: Seconds for the samples of an acceptance, in which the ranks also time the way to other nodes. If
            None, this is no acceptance.
    """

    recipe: str | None
    cluster: str | None
    overrides: Sequence[str]
    step: bool
    times: int
    hosts: str | None
    run: Path | None
    json: bool
    accept_s: float | None = None
