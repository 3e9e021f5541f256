"""The charts of a report, from the runs that it shows. A chart without data is left out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from logs.read.lines import to_number
from logs.show.chart import Band, Bar, BarChart, Captioned, LineChart, Scale, Series, Stretch
from logs.show.reported_run import ReportedRun
from logs.usage import Sample

_Sample = tuple[Any, Any, Any]
"""(epoch, seconds since run_start, value), as a log has them: anything may be missing or of a wrong type."""

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
    by_epoch = [
        Captioned("Learning rate", _chart("Learning rate", "epochs", runs, _learning_rate)),
        Captioned("Throughput, images/s", _chart("Training images a second", "epochs", runs, _throughput)),
        Captioned("Evaluation time, s", _chart("Seconds of an evaluation", "epochs", runs, _evaluation_s)),
    ]
    yield from _with_data(by_epoch)
    yield from utilisation({run.name: run.samples for run in runs})
    yield from _with_data([Captioned("Where a step's time goes", _step_shares(runs))])
    for run in _with_own_chart(runs, lambda run: _rank_excess(run)[1]):
        whose = f"{run.name}{_one_of(runs, 'most uneven')}; " if len(runs) > 1 else ""
        yield from _with_data([Captioned(f"Time of a step by rank: {whose}{_slowest(run)}", _rank_times(run))])
    for run in _with_own_chart(runs, lambda run: max((each.end_s for each in run.startup.phases), default=0.0)):
        whose = f": {run.name}{_one_of(runs, 'longest')}" if len(runs) > 1 else ""
        yield from _with_data([Captioned(f"Start-up{whose}", _startup(run))])


def course(runs: Sequence[ReportedRun]) -> Iterator[Captioned]:
    """Yield the charts of accuracy and loss, by epoch and by time, that the runs have data for."""
    targets = _targets(runs)
    seconds, loss = "seconds since run_start", _metric("loss")
    by_epoch, by_time = _resumes(runs, "epochs"), _resumes(runs, seconds)
    top1 = partial(_chart, "Top-1 accuracy", runs=runs, samples=_accuracy, is_fitted=True)
    losses = partial(_chart, "Loss", runs=runs, is_fitted=True)
    found = [
        Captioned("Accuracy by epoch", top1("epochs", bands=[*targets, *_references(runs), *by_epoch])),
        Captioned("Accuracy by time", top1(seconds, bands=[*targets, *by_time])),
    ]
    trained = losses("epochs", samples=loss, bands=by_epoch)
    if len(runs) == 1 and _validation_loss(runs[0]):
        found.append(Captioned("Loss by epoch", _both_losses(runs[0], trained)))
    else:
        found.append(Captioned("Training loss by epoch", trained))
        found.append(Captioned("Validation loss by epoch", losses("epochs", samples=_validation_loss, bands=by_epoch)))
    found.append(Captioned("Training loss by time", losses(seconds, samples=loss, bands=by_time)))
    yield from _with_data(found)


def _both_losses(run: ReportedRun, trained: LineChart) -> LineChart:
    """Return the chart of a run's training loss with a line for the validation loss."""
    smoothing = to_number(run.settings.get("recipe.loss.label_smoothing"))
    # The loss of smoothed labels has a floor above 0, so that it stays above that of plain labels.
    name = f"training, with label smoothing {smoothing:g}" if smoothing else "training"
    validated = Series("validation", 1, [(to_number(epoch) or 0.0, value) for epoch, _, value in _validation_loss(run)])
    series = [*(replace(each, name=name) for each in trained.series), validated]
    return replace(trained, series=series, y_from_zero=_is_near_zero(series))


def _with_data(figures: Sequence[Captioned]) -> Iterator[Captioned]:
    """Yield the figures that have data; the caption names a logarithmic vertical axis, of which a page has no title.

    Of charts of the same values by epoch and by time, one is enough if no run has more than one value.
    """
    for figure in figures:
        if figure.caption.endswith("by time") and isinstance(figure.chart, LineChart) and figure.chart.single_values:
            continue
        is_log = isinstance(figure.chart, LineChart) and figure.chart.y_scale != "linear"
        if figure.chart.has_data:
            yield replace(figure, caption=f"{figure.caption} (logarithmic)") if is_log else figure


def _with_own_chart(runs: Sequence[ReportedRun], size: Callable[[ReportedRun], float]) -> Sequence[ReportedRun]:
    """Return the runs that get a chart of their own: all if they are few, otherwise the one with the largest size."""
    return runs if len(runs) <= _MOST_OWN_CHARTS else [max(runs, key=size)]


def _one_of(runs: Sequence[ReportedRun], which: str) -> str:
    return f", the {which} of {len(runs)}" if len(runs) > _MOST_OWN_CHARTS else ""


def samples_of(run: ReportedRun) -> dict[str, list[_Sample]]:
    """Return the curves of a run: name -> (epoch, seconds since run_start, value) of each point."""
    if not run.record.is_of_images:
        return {}
    return {
        "accuracy": _accuracy(run),
        "loss": _metric("loss")(run),
        "validation_loss": _validation_loss(run),
        "learning_rate": _metric("lr")(run),
        "images_per_s": _throughput(run),
        "evaluation_s": _evaluation_s(run),
    }


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
        chart = LineChart(caption, "seconds since the run was launched", series)
        if chart.has_data:
            yield Captioned(caption, chart)


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
    runs: Sequence[ReportedRun],
    samples: Callable[[ReportedRun], list[_Sample]],
    bands: Sequence[Band] = (),
    *,
    is_fitted: bool = False,
) -> LineChart:
    """Return a chart with a line for each run, by epoch or by time; an axis is logarithmic if the runs differ widely.

    Points whose place is no number are left out, and on a logarithmic axis those that are not above zero.

    Args:
        title: What the vertical axis shows.
        x_name: ``epochs``, or the seconds since a moment.
        runs: The runs.
        samples: Returns the points of a run.
        bands: Marked ranges of an axis.
        is_fitted: Whether a vertical axis from 0 is cut where it would hide the course of the values. A rate or a time
            is not to look more uneven than it is; an accuracy or a loss is.
    """
    series = []
    for number, run in enumerate(runs):
        rows = samples(run) if run.record.is_of_images else []
        points = [(to_number(epoch if x_name == "epochs" else second), to_number(y)) for epoch, second, y in rows]
        kept = [(x, y) for x, y in points if x is not None]
        if any(y is not None for _, y in kept):
            series.append(Series(run.name, number, kept))
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


def _accuracy(run: ReportedRun) -> list[_Sample]:
    return [(each.epoch, each.at_s, each.accuracy) for each in run.record.evaluations]


def _evaluation_s(run: ReportedRun) -> list[_Sample]:
    return [(each.epoch, each.at_s, each.seconds) for each in run.record.evaluations if each.seconds is not None]


def _metric(key: str) -> Callable[[ReportedRun], list[_Sample]]:
    """Return a function that reads ``key`` from the rows of the metrics.

    A row is placed by the images seen, because the row's epoch is a whole number and stands still within an epoch.
    """

    def samples(run: ReportedRun) -> list[_Sample]:
        record = run.record
        found: list[_Sample] = []
        for row in run.intervals:
            step, when = to_number(row.get("step")), to_number(row.get("time"))
            epoch = row.get("epoch") if step is None else record.epochs_of(step + 1) or row.get("epoch")
            found.append((epoch, None if when is None else record.since_start(when), row.get(key)))
        return found

    return samples


def _learning_rate(run: ReportedRun) -> list[_Sample]:
    """Return the learning rate, with the value at which a warm-up begins: the first row is an interval later."""
    found = _metric("lr")(run)
    begin = to_number(run.settings.get("recipe.schedule.warmup_start_lr"))
    has_warmup = any(run.settings.get(f"recipe.schedule.warmup_{unit}") for unit in ("epochs", "steps"))
    return [(0, 0, begin), *found] if found and has_warmup and begin is not None else found


def _validation_loss(run: ReportedRun) -> list[_Sample]:
    """Return the mean loss of the evaluation images; older runs have none."""
    rows = [row for row in run.evaluations if to_number(row.get("eval_loss")) is not None]
    times = [to_number(row.get("time")) for row in rows]
    return [
        (row.get("epoch"), None if when is None else run.record.since_start(when), to_number(row["eval_loss"]))
        for row, when in zip(rows, times, strict=True)
    ]


def _throughput(run: ReportedRun) -> list[_Sample]:
    """Return images/s from the metrics, else from the log's epochs, else as the log itself states them."""
    record = run.record
    if run.intervals:
        return _metric("images_per_s")(run)
    spans = [span for span in record.epoch_spans if span.end_s > span.begin_s]
    if spans and (images := record.images_per_epoch):
        rates = [images * span.epochs / (span.end_s - span.begin_s) for span in spans]
        return [(span.first_epoch + span.epochs - 1, span.end_s, rate) for span, rate in zip(spans, rates, strict=True)]
    return [(epoch, None, rate) for epoch, rate in record.throughputs] if record.is_of_images else []


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


def _resumes(runs: Sequence[ReportedRun], x_name: str) -> list[Band]:
    """Return a mark at each place where a run was resumed, by epochs or by seconds without the pauses."""
    marks = []
    for run in runs:
        for pause in run.record.pauses:
            if x_name == "epochs":
                at = None if pause.step is None else run.record.epochs_of(pause.step)
            else:
                at = run.record.since_start(pause.begin_s)
            if at:
                marks.append(Band("x", at, at, "resumed" if len(runs) == 1 else f"resumed: {run.name}"))
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
    ends = list(accumulate(lengths, initial=0.0))
    return Bar(
        label, [Stretch(*pair, n, text) for n, (pair, text) in enumerate(zip(pairwise(ends), words, strict=True))]
    )


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
