"""The energy of an acceptance, by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launch.accept.acceptance import energy_of_parts
from launch.accept.judgement import Evidence, judge
from launch.doctor.facts import RankFacts
from logs.energy import AttemptEnergy, Joules, RunEnergy, write_attempts
from logs.folder import RunFolder, Summary


def _part(*joules: Joules | None) -> list[RankFacts]:
    """Return the reports of two ranks a node, of which the first one counts; None for a node without a count."""
    ranks = [RankFacts(rank, rank % 2, 2 * len(joules), "ab"[rank // 2], ()) for rank in range(2 * len(joules))]
    return [replace(rank, joules=joules[rank.rank // 2]) if rank.local_rank == 0 else rank for rank in ranks]


@pytest.mark.parametrize(
    ("parts", "whole", "nodes"),
    [
        ([_part(Joules([3.0, 4.0], [1.0]), Joules([5.0], [1.0])), _part(Joules([1.0]), Joules([2.0]))], 15, (8, 7)),
        ([_part(Joules([], [3.0]), Joules([], [5.0])), _part(None, Joules([], [2.0]))], None, (None, 7)),
        ([_part(Joules([], [3.0]), Joules([], [5.0])), []], None, (None, None)),
        ([[], []], None, ()),
    ],
    ids=["GPUs, and processors once", "a node once not", "a part not", "no rank"],
)
def test_a_sum_is_known_if_every_node_counted_in_every_part(
    parts: Sequence[Sequence[RankFacts]], whole: float | None, nodes: Sequence[float | None]
) -> None:
    found = energy_of_parts(parts, None)
    assert (found.joules, [node.joules for _, node in sorted(found.nodes.items())]) == (whole, list(nodes))
    assert found.images_per_joule is None


@pytest.mark.parametrize(
    ("energy", "verdict", "words"),
    [
        (RunEnergy(7200, None, 7200, images_per_joule=1.25), "pass", ["2 Wh", "1.25 images/J", "not counted: memory"]),
        (RunEnergy(None, None, 5), "skipped", ["unknown"]),
    ],
)
def test_energy_is_told_with_what_is_not_counted_and_decides_nothing(
    energy: RunEnergy, verdict: str, words: Sequence[str]
) -> None:
    (check,) = judge(Evidence((), (), energy=energy))[0]
    assert (check.topic, check.host, check.verdict, check.value) == ("energy", "", verdict, energy.images_per_joule)
    assert all(each in check.words for each in words)


@pytest.mark.parametrize(("counted", "whole"), [([2.0], 13), ([2.0, 3.0], 16), ([], None)])
def test_the_run_that_learns_adds_all_its_attempts_and_its_images(
    counted: Sequence[float], whole: float | None, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    run.make()
    run.write_summary(Summary("accept", "success", energy=RunEnergy(images_per_joule=1.5) if counted else None))
    attempts = [AttemptEnergy(1e9 + number, 1, "a", Joules([], [joules])) for number, joules in enumerate(counted)]
    if attempts:
        write_attempts(run.path, 0, attempts)
    found = energy_of_parts([_part(Joules([], [5.0])), _part(Joules([], [6.0]))], run)
    assert (found.joules, found.nodes["a"].joules) == (whole, whole)
    assert found.images_per_joule == (1.5 if counted else None)
