"""The energy of an acceptance: what each node counted in each of its parts."""

from collections.abc import Sequence
from dataclasses import replace

from launch.doctor.facts import RankFacts
from logs.energy import AttemptEnergy, Joules, RunEnergy, add_up, read_attempts
from logs.folder import RunFolder


def energy_of_parts(parts: Sequence[Sequence[RankFacts]], learning: RunFolder | None) -> RunEnergy:
    """Return the energy of all nodes in all parts, with the images per joule of the run that learns.

    A part that a node did not count makes the sums unknown, because none of its devices is known there.

    Args:
        parts: The reports of the ranks in each part.
        learning: The run that learns; None if there was none.
    """
    hosts = list(dict.fromkeys(rank.host for ranks in parts for rank in ranks))
    if not hosts:
        return RunEnergy()
    rows = []
    for number, ranks in enumerate(parts):
        counted = {rank.host: rank.joules for rank in ranks if rank.joules is not None}
        rows += [AttemptEnergy(number, len(hosts), host, counted.get(host, Joules())) for host in hosts]
    if learning is None:
        return add_up(rows)
    rows += read_attempts(learning.path) or [AttemptEnergy(len(parts), len(hosts), host, Joules()) for host in hosts]
    learned = (learning.summary().energy if learning.has_summary else None) or RunEnergy()
    return replace(add_up(rows), images_per_joule=learned.images_per_joule)
