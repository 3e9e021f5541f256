"""What a bench makes of what its programs tell, computed by hand: medians, rates, ratios, choices and verdicts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_both, load_cluster
from configs.registry import CAST_FLAGS
from tests.train.bench.answering import BEGUN_S, Answering, Started, write_run
from train.bench.__main__ import read_command
from train.bench.bench_gpu import KERNEL_CASES
from train.bench.measure import BenchRow, Report

pytest.importorskip("horovod")  # an environment with another engine alone has other defaults


def _measure(words: str, jobs: Answering) -> Report:
    return read_command(words.split())[0].measure(jobs)


def _rows(report: Report, alternative: str) -> dict[str, BenchRow]:
    return {row.figure: row for row in report.rows if row.alternative == alternative}


def _medians(report: Report, alternative: str) -> dict[str, float]:
    return {figure: row.median for figure, row in _rows(report, alternative).items()}


# allreduce


def _allreduce(started: Started) -> Mapping[str, Any]:
    return {str(size): [{"allreduce_ms": each} for each in (9.0, 1.0, 2.0)] for size in started.task["sizes"]}


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("--set cluster.engine.name=mxnet", ["2 ranks, flat, gloo", "2 ranks, flat, shared_memory",
                                             "4 ranks, flat, gloo", "4 ranks, flat, shared_memory"]),
        ("--ranks 2 --backends mpi gloo", ["2 ranks, flat, mpi", "2 ranks, flat, gloo"]),
        ("--cluster dgx-a100 --routes flat torus", ["16 ranks, flat, nccl", "16 ranks, torus, nccl"]),
    ],
)  # fmt: skip
def test_an_allreduce_goes_over_every_number_of_ranks_library_and_route_in_turn(words: str, titles: list[str]) -> None:
    jobs = Answering(answer=_allreduce)
    report = _measure(f"allreduce --sizes 4096 --rounds 2 {words}", jobs)
    measured = [row for row in report.rows if row.figure == "4,096 bytes: allreduce_ms"]
    assert [row.alternative for row in measured] == titles
    assert {(row.n, row.median) for row in measured} == {(2, 2.0)}, "the median of a start's samples"
    places = [each.sets for each in jobs.started]
    assert places == [*places[: len(titles)], *places[len(titles) - 1 :: -1]], "the second round goes the other way"


def test_a_size_is_whole_numbers_and_ranks_spread_over_the_nodes() -> None:
    jobs = Answering(answer=_allreduce)
    words = "--cluster dgx-a100 --set cluster.num_nodes=2 --ranks 12 --routes flat --rounds 1"
    report = _measure(f"allreduce {words} --sizes 4 7 4096 16777216 4097", jobs)
    (started,) = jobs.started
    assert started.task["sizes"] == [4, 4096, 16 << 20]
    (bus_gb_per_s,) = [row.median for row in report.rows if row.figure == "16,777,216 bytes: bus_gb_per_s"]
    assert bus_gb_per_s == pytest.approx(2 * 11 / 12 * (16 << 20) / 2e-3 / 1e9), "what a rank of 12 sends in a ring"
    names = dict.fromkeys(row.figure.partition(": ")[0] for row in report.rows)
    assert list(names) == ["4 bytes", "4,096 bytes", "16,777,216 bytes"]
    assert started.task["overrides"] == started.sets
    assert {"cluster.num_nodes=2", "cluster.ranks_per_node=6", "cluster.communication.backend=nccl"} <= {*started.sets}


# step


def _steps(started: Started) -> Mapping[str, Any]:
    assert started.task["has_parts"]
    return {"steps": [{"step_ms": each} for each in (3.0, 4.0, 9.0)], "start": [{"first_step_ms": 7.0}]}


def test_a_start_of_a_case_has_the_medians_of_its_steps_and_each_case_is_measured_once() -> None:
    jobs = Answering(answer=_steps)
    cases = "resnet50:64:16:2x1 resnet18:64:8 mnist_small_cnn:28:4:3x2 resnet18:64:8"
    report = _measure(f"step --rounds 5 --seconds 0.5 --cases {cases}", jobs)
    for title in ("resnet50, 64 px, batch 16, 2 ranks of 1 thread", "resnet18, 64 px, batch 8, 2 ranks of 1 thread",
                  "mnist_small_cnn, 28 px, batch 4, 3 ranks of 2 threads"):  # fmt: skip
        assert _medians(report, title) == {"first_step_ms": 7, "step_ms": 4}
    assert len(jobs.started) == 3 * 5, "a case that is given twice is measured once"
    small = next(each.task["overrides"] for each in jobs.started if "cluster.ranks_per_node=3" in each.sets)
    assert {"batch.global_size=12", "cluster.engine.threads=2"} <= {*small}


def test_the_fastest_form_of_each_precision_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(started: Started) -> Mapping[str, Any]:
        rate = {(): 20.0, ("1", "float32"): 30.0, ("1", "bfloat16"): 50.0}
        key = tuple(each.partition("=")[2] for each in started.sets if "ranks_per" in each or "precision" in each)
        return {"steps": [{"images_per_s": rate.get(key, 10.0)}], "start": [{}]}

    monkeypatch.setattr("logs.environment.cpu_flags", lambda: CAST_FLAGS | {"avx512_bf16"})
    monkeypatch.setattr("train.bench.bench_peers.has_engine", lambda engine: engine == "mxnet")
    jobs = Answering(answer=rates)
    report = _measure("step --advise --rounds 5 --cases resnet18:32:6", jobs)
    assert _medians(report, "one process, MXNet, NCHW, float32") == {"images_per_s": 30, "images_per_s / as given": 1.5}
    words = "--set cluster.ranks_per_node=1 --set cluster.engine.threads=2 --set cluster.engine.name=mxnet "
    for precision, factor in (("float32", "1.50"), ("bfloat16", "2.50")):
        told = f"--set cluster.engine.layout=NCHW --set cluster.engine.precision={precision}"
        assert f"fastest in {precision}, {factor} times as fast as given (faster): {words}{told}" in report.notes
    assert all({"model.name=resnet18", "batch.global_size=12"} <= {*each.task["overrides"]} for each in jobs.started)


# peers and race


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Jobs on a CPU with bfloat16 and without a compiler, beside PyTorch and Horovod, and our engine on MXNet."""
    monkeypatch.setattr("train.bench.bench_peers.find_spec", lambda _: True)
    monkeypatch.setattr("logs.environment.cpu_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr("configs.compilers.compiler_shortage", lambda _: ("no g++", "install it"))
    monkeypatch.setattr("train.bench.bench_peers.has_engine", lambda engine: engine == "mxnet")
    return Answering()


def _rate(started: Started) -> Mapping[str, Any]:
    """Answer with a rate that is highest in one form of each program."""
    told = str([started.sets, started.task])
    fast = ("ranks_per_node=1", "layout=NCHW", "'is_channels_last': True", "'is_bfloat16': True")
    rate = 1.0 + sum(word in told for word in fast)
    if started.name != "pytorch":
        return {"one": [{"images_per_s": rate}]} if started.name else {}
    race, ranks = started.task["race"], 1 if fast[0] in told else 3
    counted = race["epoch_ends"][-1] - race["warmup"]
    moments = {"begun_at": 0.0, "warm_at": 5.0, "ended_at": 5 + ranks * race["batch_size"] * counted / rate}
    return {"PyTorch": [{**moments, "epochs": 1, "steps": race["epoch_ends"][-1], "reached": 0.0}]}


@pytest.mark.medium
def test_every_peer_trains_the_same_images_in_its_fastest_form(peers: Answering) -> None:
    report = _measure("peers --rounds 1 --ranks 3 --batch 100 --steps 9 --image-size 32", replace(peers, answer=_rate))
    names = ["ours", "ours, one process, MXNet, NCHW, float32", "Horovod's MXNet example, one process",
             "PyTorch, one process, channels last, bfloat16"]  # fmt: skip
    assert [row.alternative for row in report.rows if row.figure == "images_per_s"] == names
    ratios = {row.alternative: row.median for row in report.rows if row.figure == f"images_per_s / {names[1]}"}
    expected = {names[0]: 2 / 3, names[2]: 2 / 3, names[3]: 4 / 3}
    assert ratios == pytest.approx(expected), "each divided by our fastest form"
    usual, ours, horovod, pytorch = peers.started[-4:]
    recipe = {"model.name=resnet50", "model.image_size=32", "batch.global_size=300", "data.train_samples=300"}
    assert all(recipe <= {*each.task["overrides"]} for each in (usual, ours))
    for started, ranks, threads in ((usual, 3, 1), (ours, 1, 3), (pytorch, 1, 3)):
        assert {f"cluster.ranks_per_node={ranks}", f"cluster.engine.threads={threads}"} <= {*started.sets}
    assert {(each.task["warmup"], each.task["steps"]) for each in (ours, horovod)} == {(3, 9)}
    race = pytorch.task["race"]
    assert (race["warmup"], race["epoch_ends"][-1], race["eval_epochs"]) == (3, 3 + 9, [])
    assert race["batch_size"] == horovod.task["batch_size"] == 300
    # Every form is tried: places; places, orders and types of PyTorch.
    tries = [sum(each.name == name for each in peers.started) - 1 for name in ("horovod", "pytorch")]
    assert tries == [2, 2 * 2 * 2]


def test_a_precision_that_the_cpu_lacks_is_refused(peers: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.environment.cpu_flags", frozenset)
    with pytest.raises(ValueError, match=r"^--precision bfloat16: allowed: any, float32, because this CPU"):
        _measure("peers --precision bfloat16", peers)
    _measure("peers --rounds 1 --ranks 3 --batch 4 --model mnist_small_cnn", replace(peers, answer=_rate))
    assert not any(each.task["form"]["is_bfloat16"] for each in peers.started if each.name == "pytorch")


def _race(started: Started) -> Any:
    """Answer as a run whose seed 2 misses the target, and as a peer that takes a second in a step and longer to start.

    Channels last start 3 s later, and one process takes 0.9 s in a step.
    """
    if started.name == "pytorch":
        steps, is_late = started.task["race"]["epoch_ends"][-1], started.task["form"]["is_channels_last"]
        warm_at = BEGUN_S + 4 + 3 * is_late
        step_s = 0.9 if "cluster.ranks_per_node=1" in started.sets else 1.0
        moments = {"begun_at": warm_at - 1, "warm_at": warm_at, "ended_at": warm_at + step_s * (steps - 1)}
        reached = float(started.task["race"]["seed"] != 2)
        return {"PyTorch": [{**moments, "epochs": 7, "steps": steps, "reached": reached}]}
    if "--run-dir" not in started.words:
        return {}
    is_missed = "run.seed=2" in started.sets
    result = {"status": "failed", "failure": "target top-1 0.97 not reached"} if is_missed else {"status": "success"}
    moments = {"run_start": 3.0, "run_stop": 9.0}
    write_run(Path(started.after("--run-dir")), at_s=moments, epochs=6, **{"failure": None, **result})
    return int(is_missed), ""


@pytest.mark.medium
def test_a_race_is_run_seed_by_seed_and_a_missed_target_is_an_answer(peers: Answering) -> None:
    report = _measure("race --seeds 2 --precision bfloat16", replace(peers, answer=_race))
    assert _medians(report, "ours") == {"to_target_s": 9, "startup_s": 3, "epochs": 6, "reached": 0.5}
    name = "PyTorch, one process, channels first, bfloat16"
    races = [each.task["race"] for each in peers.started if each.name == "pytorch"]
    to_target_s = 4 + 0.9 * (races[-1]["epoch_ends"][-1] - 1)
    theirs = {"to_target_s": to_target_s, "startup_s": 3, "epochs": 7, "reached": 0.5,
              "to_target_s / ours": to_target_s / 9}  # fmt: skip
    assert _medians(report, name) == pytest.approx(theirs)
    assert "torch.compile is not tried: this machine has no g++; install it" in report.notes
    # Four forms are tried, for a few steps and without an evaluation; then the fastest races.
    assert [(each["seed"], bool(each["eval_epochs"])) for each in races] == [(1, False)] * 4 + [(1, True), (2, True)]
    own = [each for each in peers.started if "--run-dir" in each.words]
    assert all("cluster.engine.precision=bfloat16" in each.sets for each in own)


def test_a_run_that_breaks_fails_the_race_and_without_pytorch_ours_runs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(started: Started) -> Any:
        if "--run-dir" not in started.words:
            return {}
        write_run(Path(started.after("--run-dir")), at_s={}, failure="rank 1 died", status="failed", epochs=1)
        return 1, "rank 1 died"

    monkeypatch.setattr("train.bench.bench_peers.find_spec", lambda _: None)
    jobs = Answering(answer=broken)
    with pytest.raises(RuntimeError, match="exit status 1:\nrank 1 died"):
        _measure("race --seeds 1", jobs)
    report = _measure("race --seeds 1", replace(jobs, answer=_race))
    assert {row.alternative for row in report.rows} == {"ours"}
    assert any("./run.sh setup --engine torch" in note for note in report.notes)


# startup

_PHASES = (
    ("imports", "MainThread", 0.0, 0.5),
    ("communicator", "other", 0.25, 2.0),
    ("imports", "MainThread", 0.75, 1.0),
    ("wait for communicator", "MainThread", 1.25, 2.25),
)


def _ledger(rows: tuple[tuple[str, str, float, float], ...]) -> list[dict[str, Any]]:
    return [dict(zip(("phase", "thread", "begin_s", "end_s"), row, strict=True)) for row in rows]


def test_a_start_has_its_phases() -> None:
    ledger = {"started_time": BEGUN_S + 0.5, "phases": _ledger(_PHASES)}

    def answer(started: Started) -> Mapping[str, Any]:
        if "--run-dir" in started.words:
            folder = Path(started.after("--run-dir"))
            write_run(folder, at_s={"run_start": 3.0, "eval_start": 5.5, "run_stop": 9.0})
            (folder / "startup.json").write_text(json.dumps(ledger), encoding="utf-8")
        return {}

    jobs = Answering(answer=answer)
    report = _measure("startup --rounds 5 --image-size 32 --batch-size 4", jobs)
    ours = {"command_to_first_step_s": 5.5, "command_to_run_start_s": 3.0, "rank_to_run_start_s": 2.5}
    phases = {"imports_s": 0.75, "communicator_s": 1.75, "wait for communicator_s": 1.0}
    assert _medians(report, "ours") == pytest.approx({**ours, **phases})
    started = [each for each in jobs.started if "--run-dir" in each.words]
    assert len(started) == 1 + 5
    assert {"model.image_size=32", "batch.global_size=8", "run.max_steps=1"} <= {*started[0].sets}


# gpu


def _gpu(started: Started) -> Any:
    if started.name == "steps.allreduce":
        return {str(size): [{"allreduce_ms": 5.0}] for size in started.task["sizes"]}
    samples = {"gpu.kernels": [{"loss_error": 0.015}], "steps": [{"step_ms": each} for each in (1.0, 2.0, 9.0)]}
    return dict.fromkeys(started.task["cases"], samples[started.name])


def _tasks(jobs: Answering) -> list[Mapping[str, Any]]:
    """Return the tasks of all ranks: those that a rank takes in turn, and those of the others."""
    return [task for each in jobs.started for task in each.task.get("cases", {"": each.task}).values()]


def test_a_gpus_kernels_are_judged_case_by_case(tmp_path: Path) -> None:
    jobs = Answering(answer=_gpu)
    report = _measure(f"gpu --folder {tmp_path} --only kernels", jobs)
    verdicts = {"float32": "WRONG", "float16": "as expected", "bfloat16": "as expected"}
    assert {row.alternative.rpartition(", ")[2]: row.verdict for row in report.rows} == verdicts, "an error of 0.015"
    tried = {(task["case"], task["kind"], *task["place"]) for task in _tasks(jobs)}
    assert {each[:2] for each in tried} == {(name, kind) for name, case in KERNEL_CASES.items() for kind in case.kinds}
    assert len(report.rows) == len(tried)


@pytest.mark.medium
def test_a_gpus_steps_have_settings_that_fit_each_other(tmp_path: Path) -> None:
    jobs = Answering(answer=_gpu)
    report = _measure(f"gpu --folder {tmp_path} --gpu H100 --only steps compiled graph nccl", jobs)
    steps = [row for row in report.rows if row.figure == "step_ms"]
    # Three batches in three types eager, compiled, as a graph and as both; sums in three ways.
    assert len({row.alternative for row in steps}) == len(steps) == 4 * 9 + 3 * 3
    assert {(row.median, row.n) for row in steps} == {(2.0, 3)}
    assert sum(row.figure == "allreduce_ms" for row in report.rows) == 3
    tasks = _tasks(jobs)
    assert tasks[0]["seconds"] == 10.0
    for task in tasks:
        recipe, cluster = load_both(task.get("recipe", "imagenet-b256"), "laptop", task["overrides"])
        assert cluster.device == "gpu"
        assert (cluster.engine.layout, recipe.data.source) == ("NHWC", "synthetic") or "sizes" in task
    assert {load_cluster("laptop", started.sets).device for started in jobs.started} == {"gpu"}
    precisions = [each for task in tasks for each in task["overrides"] if "precision" in each]
    assert precisions.count("cluster.engine.precision=float32") == 4 * 3


@pytest.mark.medium
def test_what_a_gpu_trains_and_reads_has_settings_that_fit_each_other(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    jobs = Answering(answer=lambda started: (0, "") if "prepare" in started.words else (1, "no GPU"))
    _measure(f"gpu --folder {tmp_path} --only verdict digits profile levers decoding jpegs", jobs)
    tried = [(task["recipe"], task["overrides"]) for task in _tasks(jobs) if "overrides" in task]
    runs = [started for started in jobs.started if "--run-dir" in started.words]
    tried += [(started.words[started.words.index("--run-dir") - 1], started.sets) for started in runs]
    assert {recipe for recipe, _ in tried} == {"imagenet-b256", "imagenet-smoke", "digits"}
    for recipe, overrides in tried:
        _, cluster = load_both(recipe, "laptop", overrides)
        assert (cluster.device, cluster.engine.precision, cluster.engine.layout) == ("gpu", "float16", "NHWC")


def test_a_part_that_fails_is_a_note_with_the_cause_on_disk_and_the_next_one_is_measured(tmp_path: Path) -> None:
    output = "No module named 'launch'\n" + "".join(f"line {number}\n" for number in range(20))
    jobs = Answering(answer=lambda started: (1, output) if started.name == "steps" else _gpu(started))
    report = _measure(f"gpu --tiny --only steps kernels --folder {tmp_path}", jobs)
    assert {row.figure for row in report.rows} == {"loss_error"}
    cause = "exit status 1: / No module named 'launch' / line 18 / line 19"
    first, second = report.notes[1:]
    assert first.startswith("steps: imagenet-b256, batch 8, float32: ")
    assert second.startswith("steps: imagenet-b256, batch 8, bfloat16: ")
    lines = map(json.loads, (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert [f"steps: {each['note']}" for each in lines if "note" in each] == [first, second]
    assert first.endswith(cause)
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert f"- {first}" in table
    assert sum(line.startswith("| kernels |") for line in table) == len(report.rows)


def test_no_measurement_of_a_part_begins_after_the_parts_minutes(tmp_path: Path) -> None:
    jobs = Answering(answer=_gpu)
    report = _measure(f"gpu --tiny --minutes 0 --only steps kernels --folder {tmp_path}", jobs)
    assert (jobs.started, report.rows) == ([], [])
    assert {note.partition(":")[0] for note in report.notes[1:]} == {"steps", "kernels"}
