"""The verdict on a machine: figures of its ranks beside what is expected of them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from configs.arguments import counted
from configs.schema import Recipe
from launch.accept.document import Check, Figures, Node, Verdict, worst
from launch.doctor.check_result import CheckResult, Expected, rate_in_words
from launch.doctor.facts import RankFacts, StepFacts
from launch.doctor.ranking import Excess, compare
from launch.doctor.step_checks import samples_of, steps_of
from logs.energy import RunEnergy
from logs.folder import Summary

FLOORS: Mapping[str, float] = {"compute": 0.025, "copy": 0.1, "input": 0.2, "link": 0.1}
"""Part of a rank's own work -> share by which sound ranks may differ, however exactly they were measured. Ranks read
their input from a file system that others use."""

_REMEDIES = {
    "compute": "look for other programs, a throttled or hot GPU, a power cap, wrong cores",
    "copy": "look at the GPU's PCIe link (nvidia-smi -q: width and generation), and at the cores of the rank",
    "input": "look at the node's cores, its disk and its way to the file system",
    "link": "look at the node's network card, its cable and its switch port (error counters, rate)",
}

_JUDGED_HERE = ("slow rank", "slow node", "nodes", "jitter", "step")
"""Topics of the doctor that an acceptance judges by itself, unless they FAIL; and ``ranks``, but for the first result,
which tells whether all are there."""

_LEAST_OF_LINK = 0.5
"""Share of a link's rate that an allreduce of buckets reaches on a sound machine: NCCL reaches 0.8 with large ones."""

_BASELINE_RATE = 0.9
"""Least share of the baseline's images/s, however exactly the steps were measured."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is judged.

    Attributes:
        doctor: Results of the doctor's checks.
        ranks: What the ranks report of machine and step, by rank.
        alone: What they report of their trainings alone, by rank; empty if they did not train.
        forecast: What images/s are expected by the simulator and the data sheet; empty if nobody was asked.
        predicted_buckets_s: Time of each bucket's allreduce by the simulator; empty if nobody knows.
        link_bytes_per_s: Of the cluster file, of one rank; None if the file does not say.
        others: The check of the short run of all ranks, and one for each topic that was not tried.
        baseline: An earlier acceptance; None without one.
        energy: Of all parts, with the images per joule of the short run; None if it is not asked for.
    """

    doctor: Sequence[CheckResult]
    ranks: Sequence[RankFacts]
    alone: Sequence[RankFacts] = ()
    forecast: Sequence[Expected] = ()
    predicted_buckets_s: Sequence[float] = ()
    link_bytes_per_s: float | None = None
    others: Sequence[Check] = ()
    baseline: Figures | None = None
    energy: RunEnergy | None = None


_Slowest = dict[str, tuple[int, Excess]]
"""Host -> place of its slowest rank in a part, and the comparison of that."""


def judge(evidence: Evidence) -> tuple[list[Check], Figures]:
    """Return all checks, those of the whole machine first, and the figures for a later acceptance."""
    steps = steps_of(evidence.ranks)
    series = samples_of(steps) if steps else {}
    if steps and steps[0].links_s:
        series["link"] = np.array([step.links_s for step in steps], float)
    slowest = _slowest(series, evidence.ranks)
    parts: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for part, hosts in slowest.items():
        for host, (_, each) in hosts.items():
            parts[host][part] = each.median_s, each.spread_s
    figures = replace(_pace(steps), parts={**parts}, bits=_majorities(evidence.alone))
    whole = [
        *_doctor(evidence.doctor), *_resolution(slowest), *_rates(evidence, steps), *_allreduce(evidence, steps),
        *evidence.others, *_energy(evidence),
    ]  # fmt: skip
    nodes = [*_parts(evidence, series, slowest), *_bits(evidence)]
    return [*sorted(whole, key=lambda check: bool(check.host)), *nodes], figures


def nodes_of(checks: Sequence[Check], ranks: Sequence[RankFacts]) -> list[Node]:
    """Return the verdict on each node of the ranks, and of the checks that name one."""
    found = []
    for host in dict.fromkeys([rank.host for rank in ranks] + [check.host for check in checks if check.host]):
        own = [check for check in checks if check.host == host]
        mine = [rank for rank in ranks if rank.host == host]
        words = [f"{check.topic}: {check.words}" for check in own if check.is_bad]
        gpus = [rank.gpu for rank in mine if rank.gpu]
        models = {rank.model: None for rank in mine if rank.model}
        verdict = worst(check.verdict for check in own)
        found.append(Node(host, verdict, words, [rank.rank for rank in mine], gpus, ", ".join(models)))
    return found


def _doctor(results: Sequence[CheckResult]) -> Iterator[Check]:
    """Yield a check for each of the doctor's; a warning is told, and is no fault of the machine."""
    seen: set[str] = set()
    for result in results:
        is_judged = result.topic in _JUDGED_HERE or (result.topic == "ranks" and "ranks" in seen)
        seen.add(result.topic)
        if result.level != "FAIL" and is_judged:
            continue
        verdict: Verdict = "failed" if result.level == "FAIL" else "pass"
        note = "a warning: " if result.level == "WARN" else ""
        words = f"{note}{result.words}" + (f"; {result.remedy}" if result.remedy else "")
        for host in result.hosts if verdict == "failed" and result.hosts else ("",):
            yield Check(result.topic, host, verdict, words)


def _slowest(series: Mapping[str, np.ndarray], ranks: Sequence[RankFacts]) -> dict[str, _Slowest]:
    """Return part -> host -> its slowest rank beside the ranks of the rank's own model."""
    groups = defaultdict(list)
    for place, rank in enumerate(ranks):
        groups[rank.model].append(place)
    found: dict[str, _Slowest] = {}
    for part, samples in series.items():
        excesses: dict[int, Excess] = {}
        for places in groups.values():
            compared = compare(samples[places], floor=FLOORS[part], comparisons=len(ranks) * len(series))
            excesses |= zip(places, compared, strict=True)
        found[part] = {rank.host: (0, excesses[0]) for rank in ranks}
        for place, each in sorted(excesses.items(), key=lambda row: row[1].excess):
            found[part][ranks[place].host] = place, each
    return found


def _drift(part: str, samples: np.ndarray, slowest: _Slowest, evidence: Evidence) -> dict[str, Excess]:
    """Return host -> the comparison of its slowest rank with the host's own baseline, where it has one."""
    known = evidence.baseline.parts if evidence.baseline else {}
    before = {host: known[host][part] for host in slowest if part in known.get(host, {})}
    if not before:
        return {}
    rows = samples[[slowest[host][0] for host in before]]
    comparisons = len(before) * len(FLOORS)
    excesses = compare(rows, floor=FLOORS[part], comparisons=comparisons, before=[*before.values()])
    return dict(zip(before, excesses, strict=True))


def _parts(evidence: Evidence, series: Mapping[str, np.ndarray], slowest: Mapping[str, _Slowest]) -> Iterator[Check]:
    """Yield a check for each part of each node: beside the other nodes, and beside the node's own baseline."""
    sizes = Counter(rank.model for rank in evidence.ranks)
    for part, hosts in slowest.items():
        drifts = _drift(part, series[part], hosts, evidence)
        for host, (place, each) in hosts.items():
            rank = evidence.ranks[place]
            usual_s = each.median_s / (1 + each.excess)
            expected, is_slow = [], False
            words = f"{1e3 * each.median_s:.4g} ms, {100 * each.excess:+.1f} % from the median of its like"
            if sizes[rank.model] > 1:
                expected.append(Expected("the other nodes", high=usual_s * (1 + each.limit)))
                is_slow = each.is_slow
            if drift := drifts.get(host):
                before_s = each.median_s / (1 + drift.excess)
                expected.append(Expected("the baseline", high=before_s * (1 + drift.limit)))
                is_slow |= drift.is_slow
                words += f", {100 * drift.excess:+.1f} % from its baseline"
            if is_slow:
                words += f", {_name(rank)}; {_REMEDIES[part]}"
            yield Check(part, host, "slow" if is_slow else "pass", words, each.median_s, "s", tuple(expected))


def _resolution(slowest: Mapping[str, _Slowest]) -> Iterator[Check]:
    """Yield for each part of several nodes the least difference that would have named one; it grows with the noise."""
    for part, hosts in slowest.items():
        if len(hosts) > 1:
            limit = median(each.limit for _, each in hosts.values())
            words = f"a rank that takes {100 * limit:.3g} % longer than its like would be named"
            words += "; a quiet machine and more --minutes tell smaller differences" if limit > 2 * FLOORS[part] else ""
            yield Check(part, "", "pass", words, limit, "of the median")


def _name(rank: RankFacts) -> str:
    return f"rank {rank.rank}" + (f", GPU {rank.gpu}" if rank.gpu else "")


def _pace(steps: Sequence[StepFacts]) -> Figures:
    """Return the images/s of all ranks together, and the spread of their steps."""
    if not steps:
        return Figures()
    # The steps end on all ranks at once.
    slowest = max(steps, key=lambda step: step.step_s)
    (step,) = compare(np.array([slowest.samples["step"]]), floor=0.0, comparisons=1)
    return Figures(steps[0].images / step.median_s, step.spread_s / step.median_s)


def _rates(evidence: Evidence, steps: Sequence[StepFacts]) -> Iterator[Check]:
    """Yield the check of the rate of all ranks: beside the simulator and the baseline."""
    rate, expected, baseline = _pace(steps).images_per_s, [*evidence.forecast], evidence.baseline
    if rate is None:
        return
    if baseline is not None and baseline.images_per_s:
        before_s = steps[0].images / baseline.images_per_s
        before = [(before_s, before_s * baseline.step_spread)]
        samples = np.array([max(steps, key=lambda step: step.step_s).samples["step"]])
        (drift,) = compare(samples, floor=1 / _BASELINE_RATE - 1, comparisons=1 + len(FLOORS), before=before)
        expected.append(Expected("the baseline", low=baseline.images_per_s / (1 + drift.limit)))
    is_low = any(each.is_above(rate) for each in expected)
    words = f"{rate_in_words(rate, expected)} on {counted(len(evidence.ranks), 'rank')}"
    words += "; see the parts of the nodes, the allreduce, and whether all nodes are slow alike" if is_low else ""
    yield Check("rate", "", "slow" if is_low else "pass", words, rate, "images/s", tuple(expected))


def _allreduce(evidence: Evidence, steps: Sequence[StepFacts]) -> Iterator[Check]:
    """Yield the check of the allreduce at the recipe's bucket sizes: beside the links and the simulator."""
    count = len(steps)
    if count < 2 or not steps[0].buckets_s:  # noqa: PLR2004 (the least that can be summed)
        return
    # A rank that arrives early waits for the others; the last one's time is that of the transfer.
    times = [min(each) for each in zip(*(step.buckets_s for step in steps), strict=True)]
    sizes = steps[0].buckets_bytes
    rate = 2 * (count - 1) / count * sum(sizes) / sum(times)
    expected = []
    if evidence.link_bytes_per_s:
        note = f"half of {evidence.link_bytes_per_s / 1e9:.3g} GB/s"
        expected.append(Expected("the cluster file", low=_LEAST_OF_LINK * evidence.link_bytes_per_s / 1e9, note=note))
    if evidence.predicted_buckets_s:
        rate_expected = 2 * (count - 1) / count * sum(sizes) / sum(evidence.predicted_buckets_s) / 1e9
        rows = zip(sizes, times, evidence.predicted_buckets_s, strict=True)
        each = ", ".join(f"{size / 1e6:.3g} MB {1e3 * s:.3g} for {1e3 * than_s:.3g} ms" for size, s, than_s in rows)
        # The simulator has no interval of a single collective.
        by_bucket = Expected("the simulator", low=_LEAST_OF_LINK * rate_expected, decides=False, note=each)
        expected.append(by_bucket)
    is_slow = any(each.is_above(rate / 1e9) for each in expected)
    buckets = f"{counted(len(sizes), 'bucket')} of {min(sizes) / 1e6:.3g} to {max(sizes) / 1e6:.3g} MB"
    words = f"{buckets} in {1e3 * sum(times):.3g} ms: {rate / 1e9:.3g} GB/s on the bus"
    words += "; with NCCL_DEBUG=INFO, NCCL logs which transport it chose" if is_slow else ""
    yield Check("allreduce of buckets", "", "slow" if is_slow else "pass", words, rate / 1e9, "GB/s", tuple(expected))


def _majorities(ranks: Sequence[RankFacts]) -> dict[str, str]:
    """Return model -> the checksum of more than half of all its trainings; models without one are left out."""
    sums: dict[str, list[str]] = defaultdict(list)
    for rank in ranks:
        sums[rank.model] += rank.alone.checksums if rank.alone else ()
    found = {}
    for model, checksums in sums.items():
        (common, number), *_ = Counter(checksums).most_common(1) or [("", 0)]
        if 2 * number > len(checksums):
            found[model] = common
    return found


def _bits(evidence: Evidence) -> Iterator[Check]:
    """Yield the check of each node's arithmetic: the same bits as its like, and the same ones twice.

    Where as many ranks differ as agree, the baseline decides; without one, nobody knows who is right.
    """
    ranks = evidence.alone
    usual, sizes = _majorities(ranks), Counter(rank.model for rank in ranks)
    before = evidence.baseline.bits if evidence.baseline else {}
    words: dict[str, list[str]] = defaultdict(list)
    for rank in ranks:
        right, by = (usual[rank.model], "most of its like") if rank.model in usual else (before.get(rank.model), "")
        if problem := _wrong(rank, right, by or "the baseline"):
            words[rank.host].append(f"{_name(rank)} on {rank.host} ({rank.model}) {problem}")
    for host in dict.fromkeys(rank.host for rank in ranks):
        if host in words:
            care = "do not train or compute on it: look at memory errors (ECC), clocks and the power supply"
            yield Check("bits", host, "failed", f"{'; '.join(words[host])}; {care}")
        else:
            own = {rank.model for rank in ranks if rank.host == host}
            alone = all(sizes[model] == 1 for model in own)
            same = "the same bits twice; no other rank of its model to compare with" if alone else "the same bits"
            yield Check("bits", host, "pass", same)


def _wrong(rank: RankFacts, right: str | None, by: str) -> str:
    """Return what is wrong with the trainings of a rank; empty if nothing is."""
    alone = rank.alone
    if alone is None or not alone.checksums:
        return f"did not finish the training alone: {alone.failure if alone else rank.failure or 'it ended or hung'}"
    if len(set(alone.checksums)) > 1:
        return f"computed {' and then '.join(alone.checksums)} from the same seed"
    if not alone.are_finite:
        return "computed weights that are not finite"
    if right is None:
        return f"computed {alone.checksums[0]}, and no checksum of its model is that of most"
    return "" if alone.checksums[0] == right else f"computed {alone.checksums[0]}, {by} computed {right}"


def judge_learning(recipe: Recipe, status: int, ended: Summary | None, folder: Path) -> Check:
    """Return the check of the short run that learns.

    Args:
        recipe: What it trained.
        status: Its exit status.
        ended: Its summary; None if it wrote none.
        folder: Where it is.
    """
    target, epochs = recipe.run.target_top1, counted(recipe.run.epochs, "epoch")
    assert target is not None
    if ended is None:
        return Check("learning", "", "failed", f"the run ended with status {status}, see {folder}")
    aim = f"top-1 {target} within {epochs}"
    if ended.top1 is not None and ended.top1 < target:
        words = f"{ended.top1}, expected {aim}; the sums of the gradients or a rank's arithmetic are wrong"
        return Check("learning", "", "failed", words)
    if status or ended.top1 is None:
        return Check("learning", "", "failed", ended.failure or f"the run ended with status {status}, see {folder}")
    return Check("learning", "", "pass", f"{aim}: after {ended.epochs}", ended.epochs, "epochs")


def _energy(evidence: Evidence) -> Iterator[Check]:
    """Yield the energy of the acceptance, of which nothing is expected."""
    energy = evidence.energy
    if energy is None:
        return
    rate = energy.images_per_joule
    words = replace(energy, images_per_joule=None).words
    words += f"; the run that learns: {rate:.4g} images/J" if rate else ""
    yield Check("energy", "", "skipped" if energy.joules is None else "pass", words, rate, "images/J")
