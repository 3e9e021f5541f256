"""The checks of ``./run.sh doctor --step``: the recipe's step as the ranks took it, beside plan and simulator. Pure."""

import statistics
from collections.abc import Sequence

import numpy as np

from configs.arguments import counted
from launch.doctor.check_result import CheckResult, ProbeReport, culprits_of
from launch.doctor.facts import RankFacts, StepFacts
from launch.doctor.ranking import OWN_PARTS, Ranking, rank_nodes
from logs.nodes import NodeScore

_LISTED = 8
"""Most slow nodes that are listed one by one."""

_SECONDS_FROM = 0.9995
"""Shorter times are told in milliseconds, of which three digits stay below 1000."""

_OVER_PLAN = 1.1
_PROBE_BYTES = 100_000_000
"""What the doctor's own rank takes on top of the plan: it also measures an allreduce of 32 MiB."""

_CARE = "look for other programs, a throttled GPU, wrong cores or a failing disk there, or leave the host out"

_REMEDY = (
    "docs/troubleshooting.md lists errors of cuDNN and NCCL; if memory ran out, take smaller micro-batches "
    "(batch.bn_span, batch.accumulation_steps), fewer input_threads or a lower prefetch_depth"
)

_Rows = Sequence[tuple[RankFacts, StepFacts]]


def check_step(report: ProbeReport) -> list[CheckResult]:
    """Return the results on the step; none if the ranks did not come so far or were not to take one."""
    rows = [(rank, rank.step) for rank in report.ranks if rank.step is not None]
    if not rows:
        return []
    hung = [(rank, step) for rank, step in rows if rank.failure is None and not step.has_ended]
    failed = [(rank, step) for rank, step in rows if rank.failure is not None]
    # Where all that failed had waited for others, the cause is a rank that stands still and says nothing.
    if failed and not (hung and all(rank.is_second_hand for rank, _ in failed)):
        first, hosts = culprits_of([rank for rank, _ in failed])
        part = next(step.part for rank, step in failed if rank is first)
        words = f"rank {first.rank} on {first.host}, {part}: {first.failure}"
        return [CheckResult("FAIL", "step", words, _REMEDY, hosts)]
    if hung or len(rows) < report.cluster.world_size:
        names = ", ".join(f"rank {rank.rank} on {rank.host} ({step.part})" for rank, step in hung[:8])
        words = f"{names or 'a rank'} did not finish its part"
        remedy = "see the output above; a rank that waits for others is not the cause"
        return [CheckResult("FAIL", "step", words, remedy)]
    # The ranks of a single node are compared with each other.
    noun = "node" if len({rank.host for rank, _ in rows}) > 1 else "rank"
    ranking, *_ = rankings_of(report.ranks, report.times, by_rank=noun == "rank")
    results = [_times(rows)]
    if len(rows) > 1:
        results += [*_nodes(report, ranking, noun, rows), _jitter(ranking, rows)]
    if report.cluster.rehearsal is None:  # or else the memory is not that of the described machine
        results.append(_memory(report, rows))
    return results


def _times(rows: _Rows) -> CheckResult:
    """Report the parts' times of the slowest rank, and the rate of all."""
    facts = max((step for _, step in rows), key=lambda step: step.step_s)
    rate = f"{facts.images / facts.step_s:,.1f} images/s on {counted(len(rows), 'rank')}"
    parts = (f"{part} {_ms(statistics.median(each))}" for part, each in facts.samples.items() if part != "step")
    notes = [] if "input" in facts.samples else ["random images, as no data set is there"]
    return CheckResult("OK", "step", "; ".join([f"{_ms(facts.step_s)}, {rate}", *parts, *notes]))


def rankings_of(ranks: Sequence[RankFacts], times: int = 1, *, by_rank: bool = False) -> list[Ranking]:
    """Return the ranking of the nodes by each set of samples; none unless all ranks came to the end of a step.

    With ``by_rank``, each rank counts as a node of its own, named after its number.
    """
    if not (steps := steps_of(ranks)):
        return []
    split = {part: np.array_split(series, times, axis=1) for part, series in samples_of(steps).items()}
    hosts = [f"rank {rank.rank}" if by_rank else rank.host for rank in ranks]
    return [rank_nodes(hosts, {part: sets[number] for part, sets in split.items()}) for number in range(times)]


def steps_of(ranks: Sequence[RankFacts]) -> list[StepFacts]:
    """Return the steps of all ranks; none unless each of them came to the end of one."""
    steps = [rank.step for rank in ranks if rank.step is not None and rank.step.has_ended]
    return steps if steps and len(steps) >= max(len(ranks), ranks[0].world_size) else []


def samples_of(steps: Sequence[StepFacts]) -> dict[str, np.ndarray]:
    """Return part -> seconds, [ranks, rounds], of the parts that every rank does by itself."""
    return {part: np.array([step.samples[part] for step in steps]) for part in OWN_PARTS if part in steps[0].samples}


def _nodes(report: ProbeReport, ranking: Ranking, noun: str, rows: _Rows) -> list[CheckResult]:
    """Name the slow nodes, or ranks of a single node, and tell what waiting for them costs the run."""
    worst, many = ranking.nodes[0], len(ranking.nodes)
    slow = [node for node in ranking.nodes if node.is_slow]
    if not slow:
        words = f"none of {many} is slow; the slowest is {worst.host}, {_excess(worst)}"
        return [CheckResult("OK", f"{noun}s", words)]
    saved = f"without {'it' if len(slow) == 1 else 'them'} a step takes {_share(ranking.cost_s, rows)} less"
    if steps := report.plan["total_steps"] if report.plan else 0:
        saved += f", and the planned {steps:,} steps {ranking.cost_s * steps:,.1f} s"
    words = f"{len(slow)} of {many} are slow; {saved}"
    total = CheckResult("WARN", f"{noun}s", words, "--json has the scores of all, and their samples")
    where = " (rank {})" if noun == "node" else ""
    named = ((node.host, _excess(node) + where.format(ranking.slowest[node.host])) for node in slow[:_LISTED])
    return [total, *(CheckResult("WARN", f"slow {noun}", words, _CARE, (host,)) for host, words in named)]


def _excess(node: NodeScore) -> str:
    return f"{100 * node.excess:.1f} % longer than the median rank in {node.part}"


def _jitter(ranking: Ranking, rows: _Rows) -> CheckResult:
    """Tell what the ranks wait for whichever is late, and how much the time of an allreduce varies."""
    words = f"the ranks wait {_share(ranking.jitter_s, rows)} of a step for whichever is late"
    # The rank that arrives last waits for no other one, so its time is that of the transfer.
    alone = [min(round_s) for round_s in zip(*(step.samples["allreduce"] for _, step in rows), strict=True)]
    ends = f"{_ms(statistics.median(alone))}, from {_ms(min(alone))} to {_ms(max(alone))}"
    return CheckResult("OK", "jitter", f"{words}; all buckets alone {ends}, which tells nothing of single ranks")


def _share(seconds: float, rows: _Rows) -> str:
    """Return a time and its share of a step."""
    return f"{_ms(seconds)} ({100 * seconds / max(step.step_s for _, step in rows):.1f} %)"


def _memory(report: ProbeReport, rows: _Rows) -> CheckResult:
    """Compare the rank that uses most memory with the plan."""
    rank, step = max(rows, key=lambda row: row[1].memory_bytes or 0)
    if step.memory_bytes is None or report.plan is None:
        return CheckResult("WARN", "step memory", "not measured: nvidia-smi does not report it", "")
    used, expected = step.memory_bytes, report.plan["total_bytes"]
    expected += 0 if report.cluster.device == "gpu" else _PROBE_BYTES
    words = f"{used / 1e9:.2f} GB in use by rank {rank.rank} on {rank.host}, planned {expected / 1e9:.2f} GB"
    if used > _OVER_PLAN * expected:
        return CheckResult("WARN", "step memory", words, "leave that much room: the plan gives estimates")
    return CheckResult("OK", "step memory", words)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < _SECONDS_FROM else f"{seconds:.3g} s"
