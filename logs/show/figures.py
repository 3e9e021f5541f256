"""The charts of a report, from the runs that it shows. A chart without data is left out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from logs.read.lines import to_number
from logs.show.chart import Bar, BarChart, Captioned, Chart, LineChart, Series, Stretch
from logs.show.reported_run import Point, ReportedRun
from logs.usage import Sample

_SHARES = ("computing", "communication", "input")
_RANKS_AT_AN_END = 8
"""Of more than twice as many ranks, only the slowest and the fastest so many are drawn."""
_MOST_OWN_CHARTS = 4
"""Of more runs, charts that each run has of its own are not drawn."""


def figures(runs: Sequence[ReportedRun]) -> Iterator[Captioned]:
    """Yield every chart in which there is a line or a bar to draw; logs of other benchmarks than images have none.

    Lines come first and bars last: charts of lines are equally high and fill the rows of a page.
    """
    yield from course(runs)
    curves = {
        ("Learning rate", "Learning rate"): "learning_rate",
        ("Throughput, images/s", "Training images a second"): "images_per_s",
        ("Evaluation time, s", "Seconds of an evaluation"): "evaluation_s",
    }
    for (caption, title), name in curves.items():
        yield from _drawn(caption, _chart(title, "epochs", _curve(runs, name)))
    yield from utilisation({run.name: run.samples for run in runs})
    yield from _drawn("Where a step's time goes", _step_shares(runs))
    for draw in (_rank_times, _startup) if len(runs) <= _MOST_OWN_CHARTS else ():
        for run, chart in ((run, draw(run)) for run in runs):
            yield from _drawn(f"{chart.title}: {run.name}" if len(runs) > 1 else chart.title, chart)


def course(runs: Sequence[ReportedRun]) -> Iterator[Captioned]:
    """Yield the charts of accuracy and loss, by epoch and by time, that the runs have data for."""
    seconds = "seconds since run_start"
    targets = sorted({run.target for run in runs if run.target is not None and run.record.is_of_images})
    reached, losses, validated = (_curve(runs, name) for name in ("accuracy", "loss", "validation_loss"))
    by_epochs = {"Training loss by epoch": losses, "Validation loss by epoch": validated}
    if len(runs) == 1:
        by_epochs = {"Loss by epoch": {"training": losses[runs[0].name], "validation": validated[runs[0].name]}}
    metric = " or ".join(sorted({run.metric for run in runs if run.record.is_of_images}))
    yield from _drawn("Accuracy by epoch", _chart(metric, "epochs", reached, targets, is_fitted=True))
    yield from _drawn("Accuracy by time", _chart(metric, seconds, reached, targets, is_fitted=True))
    for caption, curves in by_epochs.items():
        yield from _drawn(caption, _chart("Loss", "epochs", curves, is_fitted=True))
    yield from _drawn("Training loss by time", _chart("Loss", seconds, losses, is_fitted=True))


def _curve(runs: Sequence[ReportedRun], name: str) -> dict[str, list[Point]]:
    return {run.name: run.curves.get(name, []) for run in runs}


def _drawn(caption: str, chart: Chart) -> Iterator[Captioned]:
    """Yield a chart with its caption, if there is a line or a bar to draw."""
    if chart.has_data:
        yield Captioned(caption, chart)


def utilisation(samples: Mapping[str, Sequence[Sample]]) -> Iterator[Captioned]:
    """Yield the charts of cores, memory and GPUs over time, with a line for each named run; without data none."""
    kinds: dict[str, Callable[[Sample], float | None]] = {
        "Cores busy with the ranks": lambda each: each.rank_busy_cores,
        "Cores busy with parameter servers": lambda each: each.server_busy_cores or None,
        "Cores busy on the machine": lambda each: each.machine_busy_cores,
        "Memory of the run, MB": lambda each: each.memory_bytes / 1e6,
        "GPUs busy, share": lambda each: each.gpu_share,
        "Memory in use on the GPUs, GB": lambda each: each.gpu_memory_bytes and each.gpu_memory_bytes / 1e9,
    }
    for caption, value in kinds.items():
        lines = {name: [(each, value(each)) for each in rows] for name, rows in samples.items()}
        series = [
            Series(name, number, [(each.time - rows[0][0].time, found) for each, found in rows])
            for number, (name, rows) in enumerate(lines.items())
            if any(found is not None for _, found in rows)
        ]
        yield from _drawn(caption, LineChart(caption, "seconds since the run was launched", series))


def _chart(
    title: str,
    x_name: str,
    curves: Mapping[str, list[Point]],
    targets: Sequence[float] = (),
    *,
    is_fitted: bool = False,
) -> LineChart:
    """Return a chart with a line for each run, by epoch or by time. Points whose place is no number are left out.

    Args:
        title: What the vertical axis shows.
        x_name: ``epochs``, or the seconds since a moment.
        curves: The points of each run.
        targets: Values to mark on the vertical axis.
        is_fitted: Whether a vertical axis from 0 is cut where it would hide the course of the values. A rate or a time
            is not to look more uneven than it is; an accuracy or a loss is.
    """
    series = []
    for number, (run, rows) in enumerate(curves.items()):
        points = [(to_number(epoch if x_name == "epochs" else second), to_number(y)) for epoch, second, y in rows]
        kept = [(x, y) for x, y in points if x is not None]
        if any(y is not None for _, y in kept):
            series.append(Series(run, number, kept))
    return LineChart(title, x_name, series, targets, y_from_zero=not is_fitted)


def _step_shares(runs: Sequence[ReportedRun]) -> BarChart:
    """Return a bar for each run: the share of a step that computes, communicates unhidden, and waits for input."""
    bars = []
    for run in runs:
        last = run.intervals[-1] if run.intervals else {}
        source = run.summary if run.summary.get("input_wait_fraction") is not None else last
        waiting, exposed = (to_number(source.get(key)) for key in ("input_wait_fraction", "comm_exposed_fraction"))
        if waiting is not None and exposed is not None:
            shares = (max(1 - waiting - exposed, 0.0), exposed, waiting)
            bars.append(_end_to_end(run.name, [100 * share for share in shares]))
    return BarChart("Shares of a step's time", "% of the time", bars, _SHARES)


def _end_to_end(label: str, lengths: Sequence[float]) -> Bar:
    """Return a bar of stretches of these lengths, each beginning where the one before ends."""
    ends = pairwise(accumulate(lengths, initial=0.0))
    return Bar(label, [Stretch(*pair, number) for number, pair in enumerate(ends)])


def _startup(run: ReportedRun) -> BarChart:
    """Return a bar for each phase of the start-up, with a colour for each thread."""
    threads = list(dict.fromkeys(phase.thread for phase in run.startup.phases))
    bars = [
        Bar(each.phase, [Stretch(each.begin_s, each.end_s, threads.index(each.thread))]) for each in run.startup.phases
    ]
    return BarChart("Start-up phases", "seconds since the process began", bars, threads)


def _rank_times(run: ReportedRun) -> BarChart:
    """Return a bar for each rank, the slowest rank first: where the time of a step goes."""
    rows, title = sorted(run.ranks, key=lambda row: -row.compute_median_s), "Time of a step by rank"
    if len(rows) > 2 * _RANKS_AT_AN_END:
        title += f", the {_RANKS_AT_AN_END} slowest and fastest of {len(rows)}"
        rows = [*rows[:_RANKS_AT_AN_END], *rows[-_RANKS_AT_AN_END:]]
    bars = []
    for row in rows:
        times = [1e3 * time_s for time_s in (row.compute_median_s, row.comm_wait_median_s, row.input_wait_median_s)]
        bars.append(_end_to_end(f"rank {row.rank}", times))
    return BarChart(title, "ms of a median step", bars if len(bars) > 1 else [], _SHARES)
