"""What ``./run.sh accept`` is asked for. Imports the standard library only, so that ``--help`` needs no set-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The command line of ``./run.sh accept``.

    Attributes:
        cluster: The machine. If None, that of the run whose config.yaml ``recipe`` is.
        overrides: Changes of recipe and cluster, as ``--set`` takes them.
        recipe: The recipe whose step is taken. If None, one for the kind of device.
        minutes: Time to spend.
        hosts: The hosts to start the ranks on, as the user lists them. If None, the launcher finds them.
        baseline: An earlier acceptance to compare with. If None, there is none.
        save_baseline: Where to write the document of an acceptance that passes, besides ``out``.
        out: Folder of the outputs. If None, a new one in the cluster's folder of runs.
    """

    cluster: str | None
    overrides: Sequence[str]
    recipe: str | None
    minutes: float
    hosts: str | None
    baseline: Path | None
    save_baseline: Path | None
    out: Path | None
