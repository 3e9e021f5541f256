"""The bar charts of a report: where the time of a step goes, the phases of the start-up, the time of each rank."""

from collections.abc import Sequence
from statistics import median

from logs.read.lines import to_number
from logs.show.chart import Bar, BarChart, Captioned, Stretch
from logs.show.reported_run import ReportedRun

_SHARES = ("computing", "waiting for communication", "waiting for input")
_SHARE_NAMES = ("computing", "communication", "input")
_RANKS_AT_AN_END = 8
"""Of more than twice as many ranks, only the slowest and the fastest so many are drawn."""


def step_shares(runs: Sequence[ReportedRun]) -> Captioned:
    """Return a chart with a bar for each run: computing, communication that is not hidden, waiting for input."""
    chart = BarChart("Shares of a step's time", "% of the time", _shares(runs), _SHARE_NAMES)
    return Captioned("Where a step's time goes", chart)


def startup(run: ReportedRun, words: str) -> Captioned:
    """Return the chart of a run's start-up; ``words`` end its caption."""
    threads = list(dict.fromkeys(str(phase["thread"]) for phase in run.startup))
    phases = BarChart("Start-up phases", "seconds since the process began", _startup(run, threads), threads)
    return Captioned(f"Start-up{words}", phases)


def rank_times(run: ReportedRun, words: str) -> Captioned:
    """Return the chart of a run's ranks; its caption names the slowest rank, after ``words``."""
    chart = BarChart("Time of a step by rank", "ms of a median step", _ranks(run), _SHARE_NAMES)
    return Captioned(f"Time of a step by rank: {words}{_slowest(run)}", chart)


def _shares(runs: Sequence[ReportedRun]) -> list[Bar]:
    """Return a bar for each run: the share of a step that computes, communicates unhidden, and waits for input."""
    bars = []
    for run in runs:
        source = run.summary if run.summary.get("input_wait_fraction") is not None else {}
        source = source or (run.intervals[-1] if run.intervals else {})
        waiting, exposed = (to_number(source.get(key)) for key in ("input_wait_fraction", "comm_exposed_fraction"))
        if waiting is None or exposed is None:
            continue
        shares = (max(1 - waiting - exposed, 0.0), exposed, waiting)
        words = [f"{run.name}: {share:.1%} {_SHARES[number]}" for number, share in enumerate(shares)]
        bars.append(Bar(run.name, _end_to_end([100 * share for share in shares], words)))
    return bars


def _end_to_end(lengths: Sequence[float], words: Sequence[str]) -> list[Stretch]:
    """Return stretches of these lengths, each beginning where the one before ends."""
    stretches, begin = [], 0.0
    for number, (length, text) in enumerate(zip(lengths, words, strict=True)):
        stretches.append(Stretch(begin, begin + length, number, text))
        begin += length
    return stretches


def startup_s(run: ReportedRun) -> float:
    """Return the seconds of a run's start-up; 0 if the run has no ledger."""
    return max((float(phase["end_s"]) for phase in run.startup), default=0.0)


def _startup(run: ReportedRun, threads: Sequence[str]) -> list[Bar]:
    """Return a bar for each phase of the start-up, with a colour for each thread."""
    bars = []
    for phase in run.startup:
        begin, end, thread = float(phase["begin_s"]), float(phase["end_s"]), str(phase["thread"])
        words = f"{phase['phase']} ({thread}): {end - begin:.2f} s from {begin:.2f} s"
        bars.append(Bar(str(phase["phase"]), [Stretch(begin, end, threads.index(thread), words)]))
    return bars


def _ranks(run: ReportedRun) -> list[Bar]:
    """Return a bar for each rank, the slowest rank first: where the time of a step goes."""
    rows = sorted(run.ranks, key=lambda row: -float(row["compute_median_s"]))
    if len(rows) > 2 * _RANKS_AT_AN_END:
        rows = [*rows[:_RANKS_AT_AN_END], *rows[-_RANKS_AT_AN_END:]]
    bars = []
    for row in rows:
        times = [1e3 * float(row[key]) for key in ("compute_median_s", "comm_wait_median_s", "input_wait_median_s")]
        words = [f"rank {row['rank']}: {time:.1f} ms {_SHARES[number]}" for number, time in enumerate(times)]
        words[0] += f", 95th percentile {1e3 * float(row['compute_p95_s']):.1f} ms"
        bars.append(Bar(f"rank {row['rank']}", _end_to_end(times, words)))
    return bars if len(bars) > 1 else []


def _slowest(run: ReportedRun) -> str:
    """Return a sentence that names the rank whose computing takes longest."""
    slowest, excess = rank_excess(run)
    if not slowest:
        return "nothing was measured"
    ranks = len(run.ranks)
    shown = f"; the {_RANKS_AT_AN_END} slowest and fastest of {ranks}" if ranks > 2 * _RANKS_AT_AN_END else ""
    return f"rank {slowest} computes longest, {excess:.1%} above the median{shown}"


def rank_excess(run: ReportedRun) -> tuple[str, float]:
    """Return the slowest rank and by what share it computes longer than the median; an empty name without times."""
    times = {str(row["rank"]): float(row["compute_median_s"]) for row in run.ranks}
    usual = median(times.values()) if times else 0.0
    if not usual:
        return "", 0.0
    slowest = max(times, key=lambda rank: times[rank])
    return slowest, times[slowest] / usual - 1
