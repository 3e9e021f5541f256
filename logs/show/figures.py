"""The charts of a report, from the runs that it shows. A chart without data is left out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import median

from logs.read.lines import to_number
from logs.show.chart import Band, Bar, BarChart, Captioned, LineChart, Scale, Series, Stretch
from logs.show.reported_run import Point, ReportedRun
from logs.usage import Sample

_WIDE = 20.0
"""Ratio between runs from which on an axis is logarithmic: on a linear one, the smallest run would be a dot."""
_MOST_GPU_LINES = 20
_SHARES = ("computing", "communication", "input")
_RANKS_AT_AN_END = 8
"""Of more than twice as many ranks, only the slowest and the fastest so many are drawn."""
_MOST_OWN_CHARTS = 4
"""Of more runs, charts that each run has of its own are drawn for one run only."""


def figures(runs: Sequence[ReportedRun]) -> Iterator[Captioned]:
    """Yield every chart that the runs have data for; logs of other benchmarks than image classification have none.

    Lines come first and bars last: charts of lines are equally high and fill the rows of a page.
    """
    yield from course(runs)
    rates = {
        name: [*_warmup_begin(run, points), *points]
        for run, (name, points) in zip(runs, _curve(runs, "learning_rate").items(), strict=True)
    }
    yield from _with_data(
        [
            Captioned("Learning rate", _chart("Learning rate", "epochs", rates)),
            Captioned(
                "Throughput, images/s", _chart("Training images a second", "epochs", _curve(runs, "images_per_s"))
            ),
            Captioned("Evaluation time, s", _chart("Seconds of an evaluation", "epochs", _curve(runs, "evaluation_s"))),
        ]
    )
    yield from utilisation({run.name: run.samples for run in runs})
    yield from _with_data([Captioned("Where a step's time goes", _step_shares(runs))])
    for run, whose in _with_own_chart(runs, lambda run: _rank_excess(run)[1], "most uneven"):
        caption = f"Time of a step by rank: {whose}{'; ' if whose else ''}{_slowest(run)}"
        yield from _with_data([Captioned(caption, _rank_times(run))])
    lasts = _with_own_chart(runs, lambda run: max((each.end_s for each in run.startup.phases), default=0.0), "longest")
    for run, whose in lasts:
        yield from _with_data([Captioned(f"Start-up{': ' if whose else ''}{whose}", _startup(run))])


def course(runs: Sequence[ReportedRun]) -> Iterator[Captioned]:
    """Yield the charts of accuracy and loss, by epoch and by time, that the runs have data for."""
    seconds, targets = "seconds since run_start", _targets(runs)
    by_epoch, by_time = _resumes(runs, by_epoch=True), _resumes(runs, by_epoch=False)
    top1, losses = _curve(runs, "accuracy"), _curve(runs, "loss")
    validated = _curve(runs, "validation_loss")

    def fitted(title: str, x_name: str, curves: Mapping[str, list[Point]], bands: Sequence[Band]) -> LineChart:
        return _chart(title, x_name, curves, bands, is_fitted=True)

    trained = fitted("Loss", "epochs", losses, by_epoch)
    if len(runs) == 1 and validated[runs[0].name]:
        by_epochs = [Captioned("Loss by epoch", _both_losses(runs[0], trained))]
    else:
        by_epochs = [
            Captioned("Training loss by epoch", trained),
            Captioned("Validation loss by epoch", fitted("Loss", "epochs", validated, by_epoch)),
        ]
    yield from _with_data(
        [
            Captioned(
                "Accuracy by epoch", fitted("Top-1 accuracy", "epochs", top1, [*targets, *_references(runs), *by_epoch])
            ),
            Captioned("Accuracy by time", fitted("Top-1 accuracy", seconds, top1, [*targets, *by_time])),
            *by_epochs,
            Captioned("Training loss by time", fitted("Loss", seconds, losses, by_time)),
        ]
    )


def _curve(runs: Sequence[ReportedRun], name: str) -> dict[str, list[Point]]:
    return {run.name: run.curves.get(name, []) for run in runs}


def _warmup_begin(run: ReportedRun, rates: Sequence[Point]) -> list[Point]:
    """Return the learning rate at which a warm-up begins: the first row of the metrics is an interval later."""
    begin = to_number(run.settings.get("recipe.schedule.warmup_start_lr"))
    has_warmup = any(run.settings.get(f"recipe.schedule.warmup_{unit}") for unit in ("epochs", "steps"))
    return [(0, 0, begin)] if rates and has_warmup and begin is not None else []


def _both_losses(run: ReportedRun, trained: LineChart) -> LineChart:
    """Return the chart of a run's training loss with a line for the validation loss."""
    smoothing = to_number(run.settings.get("recipe.loss.label_smoothing"))
    # The loss of smoothed labels has a floor above 0, so that it stays above that of plain labels.
    name = f"training, with label smoothing {smoothing:g}" if smoothing else "training"
    points = [(to_number(epoch) or 0.0, value) for epoch, _, value in run.curves["validation_loss"]]
    series = [*(replace(each, name=name) for each in trained.series), Series("validation", 1, points)]
    return replace(trained, series=series, y_from_zero=_is_near_zero(series))


def _with_data(figures: Iterable[Captioned]) -> Iterator[Captioned]:
    """Yield the figures that have data; the caption names a logarithmic vertical axis, of which a page has no title.

    Of charts of the same values by epoch and by time, one is enough if no run has more than one value.
    """
    for figure in figures:
        lines = figure.chart if isinstance(figure.chart, LineChart) else None
        is_double = lines is not None and figure.caption.endswith("by time") and lines.single_values
        if figure.chart.has_data and not is_double:
            is_log = lines is not None and lines.y_scale != "linear"
            yield replace(figure, caption=f"{figure.caption} (logarithmic)") if is_log else figure


def _with_own_chart(
    runs: Sequence[ReportedRun], size: Callable[[ReportedRun], float], which: str
) -> list[tuple[ReportedRun, str]]:
    """Return the runs that get a chart of their own: all if they are few, otherwise the one with the largest size.

    With each comes whose chart it is, for the caption; nothing if there is one run.
    """
    if len(runs) <= _MOST_OWN_CHARTS:
        return [(run, run.name if len(runs) > 1 else "") for run in runs]
    largest = max(runs, key=size)
    return [(largest, f"{largest.name}, the {which} of {len(runs)}")]


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
        if caption.startswith("GPUs"):
            lines = _lines_by_gpu(samples) or lines
        series = [
            Series(name, number, [(each.time - rows[0][0].time, found) for each, found in rows])
            for number, (name, rows) in enumerate(lines.items())
            if any(found is not None for _, found in rows)
        ]
        yield from _with_data([Captioned(caption, LineChart(caption, "seconds since the run was launched", series))])


def _lines_by_gpu(samples: Mapping[str, Sequence[Sample]]) -> dict[str, list[tuple[Sample, float | None]]]:
    """Return the use of each GPU over time; empty if there are more GPUs than a chart can tell apart."""
    found = {}
    for name, rows in samples.items():
        for number in range(max((len(each.gpu_shares) for each in rows), default=0)):
            line = f"{name}, GPU {number}" if len(samples) > 1 else f"GPU {number}"
            found[line] = [(each, each.gpu_shares[number] if number < len(each.gpu_shares) else None) for each in rows]
    return found if len(found) <= _MOST_GPU_LINES else {}


def _chart(
    title: str,
    x_name: str,
    curves: Mapping[str, list[Point]],
    bands: Sequence[Band] = (),
    *,
    is_fitted: bool = False,
) -> LineChart:
    """Return a chart with a line for each run, by epoch or by time; an axis is logarithmic if the runs differ widely.

    Points whose place is no number are left out, and on a logarithmic axis those that are not above zero.

    Args:
        title: What the vertical axis shows.
        x_name: ``epochs``, or the seconds since a moment.
        curves: The points of each run.
        bands: Marked ranges of an axis.
        is_fitted: Whether a vertical axis from 0 is cut where it would hide the course of the values. A rate or a time
            is not to look more uneven than it is; an accuracy or a loss is.
    """
    series = []
    for number, (run, rows) in enumerate(curves.items()):
        points = [(to_number(epoch if x_name == "epochs" else second), to_number(y)) for epoch, second, y in rows]
        kept = [(x, y) for x, y in points if x is not None]
        if any(y is not None for _, y in kept):
            series.append(Series(run, number, kept))
    x_scale = _scale([max(x for x, _ in each.points) for each in series])
    heights = [[abs(y) for _, y in each.points if y] for each in series]
    y_scale = _scale([median(ys) for ys in heights if ys]) if not bands else "linear"

    def is_shown(x: float, y: float | None) -> bool:
        return (x_scale == "linear" or x > 0) and (y_scale == "linear" or (y or 0) > 0)

    shown = [replace(each, points=[point for point in each.points if is_shown(*point)]) for each in series]
    name = x_name if x_scale == "linear" else f"{x_name}, logarithmic"
    return LineChart(title, name, shown, bands, x_scale, y_scale, y_from_zero=not is_fitted or _is_near_zero(shown))


def _is_near_zero(series: Sequence[Series]) -> bool:
    """Return whether an axis from 0 leaves at least half of its height to the values, so that their course is seen."""
    ys = [y for each in series for _, y in each.points if y is not None]
    return not ys or min(ys) < max(ys) / 2


def _scale(sizes: Sequence[float]) -> Scale:
    """Return the scale of an axis on which each series reaches the size given: logarithmic if they differ widely."""
    return "log10" if len(sizes) > 1 and min(sizes) > 0 and max(sizes) > _WIDE * min(sizes) else "linear"


def _references(runs: Sequence[ReportedRun]) -> list[Band]:
    """Return where the official reference converges: a range for each batch size, or for several that overlap."""
    compared = [run.comparison for run in runs if run.record.is_of_images and run.record.division != "open"]
    found = {comparison.reference for comparison in compared if comparison.reference}
    groups: list[tuple[float, float, list[int]]] = []
    for each in sorted(found, key=lambda each: each.least):
        low, high, batches = each.least, each.mean + 2 * each.deviation, [each.batch_size]
        if groups and low <= groups[-1][1]:
            low, highest, others = groups.pop()
            high, batches = max(high, highest), sorted([*others, *batches])
        groups.append((low, high, batches))
    ends = [(low, high, dict.fromkeys((batches[0], batches[-1]))) for low, high, batches in groups]
    return [Band("x", low, high, f"reference at batch {'-'.join(map(str, batches))}") for low, high, batches in ends]


def _targets(runs: Sequence[ReportedRun]) -> list[Band]:
    targets = sorted({run.target for run in runs if run.target is not None and run.record.is_of_images})
    return [Band("y", target, target, f"target {target:g}") for target in targets]


def _resumes(runs: Sequence[ReportedRun], *, by_epoch: bool) -> list[Band]:
    """Return a mark at each place where a run was resumed, by epochs or by seconds without the pauses."""
    marks = []
    for run in runs:
        name = "resumed" if len(runs) == 1 else f"resumed: {run.name}"
        for pause in run.record.pauses:
            steps = run.record.epochs_of(pause.step) if pause.step is not None else None
            if at := steps if by_epoch else run.record.since_start(pause.begin_s):
                marks.append(Band("x", at, at, name))
    return marks


def _step_shares(runs: Sequence[ReportedRun]) -> BarChart:
    """Return a bar for each run: the share of a step that computes, communicates unhidden, and waits for input."""
    bars = []
    for run in runs:
        last = run.intervals[-1] if run.intervals else {}
        source = run.summary if run.summary.get("input_wait_fraction") is not None else last
        waiting, exposed = (to_number(source.get(key)) for key in ("input_wait_fraction", "comm_exposed_fraction"))
        if waiting is not None and exposed is not None:
            shares = (max(1 - waiting - exposed, 0.0), exposed, waiting)
            words = [f"{run.name}: {share:.1%} {name}" for share, name in zip(shares, _SHARES, strict=True)]
            bars.append(_end_to_end(run.name, [100 * share for share in shares], words))
    return BarChart("Shares of a step's time", "% of the time", bars, _SHARES)


def _end_to_end(label: str, lengths: Sequence[float], words: Sequence[str]) -> Bar:
    """Return a bar of stretches of these lengths, each beginning where the one before ends."""
    ends = pairwise(accumulate(lengths, initial=0.0))
    return Bar(label, [Stretch(*pair, n, text) for n, (pair, text) in enumerate(zip(ends, words, strict=True))])


def _startup(run: ReportedRun) -> BarChart:
    """Return a bar for each phase of the start-up, with a colour for each thread."""
    threads = list(dict.fromkeys(phase.thread for phase in run.startup.phases))
    bars = []
    for each in run.startup.phases:
        words = f"{each.phase} ({each.thread}): {each.end_s - each.begin_s:.2f} s from {each.begin_s:.2f} s"
        bars.append(Bar(each.phase, [Stretch(each.begin_s, each.end_s, threads.index(each.thread), words)]))
    return BarChart("Start-up phases", "seconds since the process began", bars, threads)


def _rank_times(run: ReportedRun) -> BarChart:
    """Return a bar for each rank, the slowest rank first: where the time of a step goes."""
    rows = sorted(run.ranks, key=lambda row: -row.compute_median_s)
    if len(rows) > 2 * _RANKS_AT_AN_END:
        rows = [*rows[:_RANKS_AT_AN_END], *rows[-_RANKS_AT_AN_END:]]
    bars = []
    for row in rows:
        times = [1e3 * time_s for time_s in (row.compute_median_s, row.comm_wait_median_s, row.input_wait_median_s)]
        words = [f"rank {row.rank}: {time:.1f} ms {name}" for time, name in zip(times, _SHARES, strict=True)]
        words[0] += f", 95th percentile {1e3 * row.compute_p95_s:.1f} ms"
        bars.append(_end_to_end(f"rank {row.rank}", times, words))
    return BarChart("Time of a step by rank", "ms of a median step", bars if len(bars) > 1 else [], _SHARES)


def _slowest(run: ReportedRun) -> str:
    """Return a sentence that names the rank whose computing takes longest."""
    slowest, excess = _rank_excess(run)
    if not slowest:
        return "nothing was measured"
    ranks = len(run.ranks)
    shown = f"; the {_RANKS_AT_AN_END} slowest and fastest of {ranks}" if ranks > 2 * _RANKS_AT_AN_END else ""
    return f"rank {slowest} computes longest, {excess:.1%} above the median{shown}"


def _rank_excess(run: ReportedRun) -> tuple[str, float]:
    """Return the slowest rank and by what share it computes longer than the median; an empty name without times."""
    usual = median(row.compute_median_s for row in run.ranks) if run.ranks else 0.0
    if not usual:
        return "", 0.0
    slowest = max(run.ranks, key=lambda row: row.compute_median_s)
    return str(slowest.rank), slowest.compute_median_s / usual - 1
