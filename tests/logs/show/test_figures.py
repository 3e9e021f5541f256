"""The numbers in a report's charts, from runs whose numbers are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from logs.read.record import Evaluation, Pause, RunRecord
from logs.show.chart import BarChart, Chart, LineChart
from logs.show.figures import figures, utilisation
from logs.show.reported_run import ReportedRun, gather_run
from logs.usage import Sample
from tests.logs import samples


def _charts(*runs: ReportedRun) -> dict[str, Chart]:
    return {figure.caption: figure.chart for figure in figures(runs)}


def _points(chart: Chart, series: int = 0) -> list[tuple[float, float]]:
    assert isinstance(chart, LineChart)
    return chart.series[series].drawable


def _bars(chart: Chart) -> dict[str, list[tuple[float, float]]]:
    assert isinstance(chart, BarChart)
    return {bar.label: [(stretch.begin, stretch.end) for stretch in bar.stretches] for bar in chart.bars}


def _near(*pairs: tuple[float, float]) -> list[object]:
    return [pytest.approx(pair) for pair in pairs]


def test_lines_are_placed_by_images_seen_and_by_seconds_since_the_start(tmp_path: Path) -> None:
    charts = _charts(gather_run(samples.run_folder(tmp_path / "run")))
    # After epoch 1 of 1198 images 18 steps of 64 are over, 10 s after run_start; an evaluation of 1 s follows epoch 4.
    loss = _points(charts["Loss by epoch"])
    assert loss[0] == pytest.approx((18 * 64 / 1198, 2.3))
    assert loss[-1] == pytest.approx((149 * 64 / 1198, 2.3 / 8))
    times = [second for second, _ in _points(charts["Training loss by time"])]
    assert times == pytest.approx([10, 20, 30, 40, 51, 61, 71, 81])
    assert _points(charts["Accuracy by epoch"]) == _near((4, 0.485), (8, 0.97))
    assert _points(charts["Accuracy by time"]) == _near((41, 0.485), (82, 0.97))
    assert [lr for _, lr in _points(charts["Learning rate"])] == pytest.approx(
        [0.1 * (1 - n / 20) for n in range(1, 9)]
    )
    assert _points(charts["Throughput, images/s"])[0][1] == pytest.approx(1198 / 10 + 3)
    assert _points(charts["Evaluation time, s"]) == _near((4, 1), (8, 1))


def test_without_metrics_the_throughput_is_that_of_the_epochs_of_the_log(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run", epoch_s=5.0)
    (folder / "metrics.jsonl").unlink()
    rates = _points(_charts(gather_run(folder))["Throughput, images/s"])
    assert rates == _near(*((epoch, 1198 / 5) for epoch in range(1, 9)))
    lines = (folder / "result_0.txt").read_text().splitlines(keepends=True)
    (folder / "result_0.txt").write_text("".join(line for line in lines if '"epoch_st' not in line))
    # Blocks of four epochs, 20 s of which are training.
    blocks = _points(_charts(gather_run(folder))["Throughput, images/s"])
    assert blocks == _near((4, 1198 * 4 / 20), (8, 1198 * 4 / 20))


@pytest.mark.medium
def test_bars_are_stretches_end_to_end_in_percent_and_milliseconds(tmp_path: Path) -> None:
    charts = _charts(gather_run(samples.run_folder(tmp_path / "run")))
    (shares,) = _bars(charts["Where a step's time goes"]).values()
    assert shares == _near((0, 71), (71, 92), (92, 100))
    ranks = _bars(charts["Time of a step by rank"])
    assert list(ranks) == ["rank 1", "rank 0"], "the slowest first"
    assert ranks["rank 1"] == _near((0, 440), (440, 460), (460, 461))
    assert ranks["rank 0"] == _near((0, 400), (400, 460), (460, 461))
    many = samples.run_folder(tmp_path / "many")
    samples.write_ranks(many, [1.0 + 0.001 * rank for rank in range(2048)])
    caption = "Time of a step by rank, the 8 slowest and fastest of 2048"
    ends = [f"rank {rank}" for rank in (*range(2047, 2039, -1), *range(7, -1, -1))]
    assert list(_bars(_charts(gather_run(many))[caption])) == ends
    start_up = _bars(charts["Start-up phases"])
    assert start_up["communicator"] == [(0.5, 3.2)]
    chart = charts["Start-up phases"]
    assert isinstance(chart, BarChart)
    colours = {bar.label: bar.stretches[0].number for bar in chart.bars}
    assert colours["communicator"] != colours["interpreter"] == colours["data set"], "a colour a thread"


def test_a_target_is_marked_once_for_all_runs(tmp_path: Path) -> None:
    runs = [gather_run(samples.run_folder(tmp_path / str(seed), seed, "mlperf-b3264", epochs=36)) for seed in (1, 2)]
    chart = _charts(*runs)["Accuracy by epoch"]
    assert isinstance(chart, LineChart)
    assert chart.targets == [0.759]
    assert [series.name for series in chart.series] == ["1", "2"]


def test_ranks_are_told_from_servers_and_gpus_have_their_mean() -> None:
    rows = [
        Sample(float(at), 1.5, 2.0, 1, gpu_share=share, gpu_memory_bytes=1, server_busy_cores=0.5)
        for at, share in enumerate((0.5, 0.9))
    ]
    lines = {
        figure.caption: [y for _, y in figure.chart.series[0].points]
        for figure in utilisation({"run": rows})
        if isinstance(figure.chart, LineChart)
    }
    assert lines["GPUs busy, share"] == [0.5, 0.9]
    assert lines["Cores busy with the ranks"] == [1.0, 1.0]
    assert lines["Cores busy with parameter servers"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("waiting", "exposed", "ends"),
    [(0.75, 0.5, [0.0, 50.0, 125.0]), (0.25, None, None), (None, 0.5, None)],
)
def test_shares_of_a_step_are_never_negative_and_none_is_made_up(
    tmp_path: Path, waiting: float | None, exposed: float | None, ends: list[float] | None
) -> None:
    run = gather_run(samples.run_folder(tmp_path / "run"))
    summary = {"input_wait_fraction": waiting, "comm_exposed_fraction": exposed}
    charts = _charts(replace(run, summary=summary, intervals=[]))
    found = [[end for _, end in bar] for bar in _bars(charts["Where a step's time goes"]).values()] if ends else []
    assert found == ([ends] if ends else [])
    assert ("Where a step's time goes" in charts) == bool(ends)


def test_a_resumed_run_has_no_pause() -> None:
    begin_s = samples.BEGIN_S
    record = RunRecord(
        Path("a"), began_s=begin_s, global_batch_size=64, train_samples=1198,
        pauses=(Pause(begin_s + 41, begin_s + 1041),),
        evaluations=(Evaluation(4, 41.0, 0.5, 1.0), Evaluation(8, 82.0, 0.9, 1.0)),
    )  # fmt: skip
    intervals = [{"step": step, "time": begin_s + at, "loss": 2.0} for step, at in ((18, 10), (75, 1045), (93, 1051))]
    charts = _charts(ReportedRun("a", Path("a"), None, record, intervals=intervals))
    assert [at for at, _ in _points(charts["Training loss by time"])] == pytest.approx([10, 45, 51])


def _validated(*rows: tuple[int, float | None], name: str = "run") -> ReportedRun:
    record = RunRecord(Path("a"), began_s=100.0, global_batch_size=10, train_samples=100)
    losses = [{"step": 10 * epoch - 1, "epoch": epoch, "loss": 3.0 / epoch, "time": 100.0 + epoch} for epoch in (1, 2)]
    evaluated = [{"epoch": epoch, "eval_loss": loss, "time": 100.5 + epoch} for epoch, loss in rows]
    return ReportedRun(name, Path("a"), None, record, intervals=losses, evaluations=evaluated)


def test_the_validation_loss_of_one_run_is_beside_its_training_loss_and_of_several_in_a_chart_of_its_own() -> None:
    run = _validated((1, 2.5), (2, None), (3, 2.0))
    chart = _charts(run)["Loss by epoch"]
    assert isinstance(chart, LineChart)
    assert [series.name for series in chart.series] == ["training", "validation"]
    assert (_points(chart), _points(chart, 1)) == ([(1, 3.0), (2, 1.5)], [(1, 2.5), (3, 2.0)])
    several = _charts(run, _validated((1, 1.0), (2, 0.5), name="other"))
    assert _points(several["Validation loss by epoch"], 1) == [(1, 1.0), (2, 0.5)]
    assert _points(several["Training loss by epoch"]) == [(1, 3.0), (2, 1.5)]
    assert "Loss by epoch" not in several
    assert _points(_charts(_validated())["Loss by epoch"]), "an older run has no validation loss"
    assert run.curves["validation_loss"] == [(1, 1.5, 2.5), (3, 3.5, 2.0)]
