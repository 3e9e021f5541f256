"""What each bench starts, and what it makes of the answers; the programs answer at once with numbers of the test's."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.errors import STOPPED_STATUS
from configs.load import load_both, load_cluster, load_run
from configs.networks import NETWORKS
from configs.programs import Program
from configs.registry import CAST_FLAGS
from logs.folder import RunFolder, Summary
from tests.train.bench.fake_jobs import BEGUN_S, Answer, FakeJobs, Started, write_run
from train.bench import bench_input
from train.bench.__main__ import BENCHES, read_command
from train.bench.bench_input import reading
from train.bench.bench_startup import critical_path
from train.bench.kernel_cases import EXECUTIONS, KERNEL_CASES
from train.bench.launching import Finished
from train.bench.measure import BenchRow, Report
from train.sim.collectives import allreduce
from train.sim.constants import load_calibration
from train.sim.hardware import machine_of_cluster

pytest.importorskip("horovod")  # an environment with another engine alone has other defaults


def _measure(words: str, jobs: FakeJobs, **others: Any) -> Report:
    command = read_command(words.split())
    measure: Callable[..., Report] = BENCHES[command.name].measure
    return measure(command.options, jobs, **others)


def _rows(report: Report) -> dict[tuple[str, str], BenchRow]:
    return {(row.alternative, row.figure): row for row in report.rows}


def _medians(report: Report, alternative: str) -> dict[str, float]:
    return {row.figure: row.median for row in report.rows if row.alternative == alternative}


def _counted(figure: str) -> Answer:
    """Return an answer with one figure of one sample: 2, 4, 6 and so on."""
    numbers = itertools.count(2, 2)
    return lambda _: {"one": [{figure: next(numbers)}]}


# allreduce


def _allreduce(started: Started) -> dict[str, Any]:
    return {str(size): [{"allreduce_ms": each} for each in (9.0, 1.0, 2.0)] for size in started.task["sizes"]}


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("--set cluster.engine.name=mxnet", ["2 ranks, flat, gloo", "2 ranks, flat, shared_memory",
                                             "4 ranks, flat, gloo", "4 ranks, flat, shared_memory"]),
        ("--ranks 3", ["3 ranks, flat, gloo", "3 ranks, flat, shared_memory"]),
        ("--ranks 2 --backends mpi gloo", ["2 ranks, flat, mpi", "2 ranks, flat, gloo"]),
        ("--cluster dgx-a100", ["16 ranks, torus, nccl"]),
        ("--cluster dgx-a100 --routes flat torus", ["16 ranks, flat, nccl", "16 ranks, torus, nccl"]),
    ],
)  # fmt: skip
def test_an_allreduce_goes_over_every_number_of_ranks_library_and_route(words: str, titles: list[str]) -> None:
    jobs = FakeJobs(answer=_allreduce)
    report = _measure(f"allreduce --sizes 4K --rounds 2 {words}", jobs)
    measured = [row for row in report.rows if row.figure == "allreduce_ms"]
    assert [row.alternative for row in measured] == [f"{title}, 4 KiB" for title in titles]
    assert {(row.n, row.median) for row in measured} == {(2, 2.0)}, "the median of a start's samples"
    assert len(jobs.started) == 2 * len(titles)
    assert jobs.started[0].place == jobs.started[-1].place, "the second round goes the other way round"
    ratios = [row for row in report.rows if row.figure.startswith("allreduce_ms / ")]
    assert {row.figure.partition(" / ")[2][:7] for row in ratios} <= {title[:7] for title in titles}


def test_a_size_has_a_unit_and_is_whole_numbers_and_ranks_spread_over_the_nodes() -> None:
    jobs = FakeJobs(answer=_allreduce)
    words = "--cluster dgx-a100 --set cluster.num_nodes=2 --ranks 12 --routes flat --rounds 1"
    report = _measure(f"allreduce {words} --sizes 4 7 4K 16m 1G 4097 100", jobs)
    (started,) = jobs.started
    assert started.task["sizes"] == [4, 4096, 16 << 20, 1 << 30, 100]
    assert {"cluster.num_nodes=2", "cluster.ranks_per_node=6", "cluster.communication.backend=nccl"} <= {*started.place}
    assert started.task["overrides"] == started.place
    sizes = {row.alternative.rpartition(", ")[2] for row in report.rows}
    assert sizes == {"4 bytes", "100 bytes", "4 KiB", "16 MiB", "1 GiB"}


@pytest.mark.parametrize("route", ["flat", "hierarchical", "torus"])
def test_a_route_is_predicted_as_the_simulators_algorithm(route: str) -> None:
    words = f"--cluster dgx-a100 --ranks 32 --routes {route} --set cluster.num_nodes=4 --sizes 64M --rounds 1"
    found = _medians(_measure(f"allreduce {words}", FakeJobs(answer=_allreduce)), f"32 ranks, {route}, nccl, 64 MiB")
    cluster = load_cluster("dgx-a100", ["cluster.num_nodes=4"])
    topology = machine_of_cluster(cluster).topology(load_calibration().constants.network_efficiency)
    expected_ms = 1e3 * allreduce({"flat": "auto"}.get(route, route), topology, 64 << 20)
    assert found["predicted_ms"] == 2 * found["predicted / measured"] == pytest.approx(expected_ms)
    assert found["bus_gb_per_s"] == pytest.approx(2 * 31 / 32 * (64 << 20) / 2e-3 / 1e9)


def test_sums_in_shared_memory_are_predicted_from_this_machines_description(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = {"flops": 1e10, "memory_bytes_per_s": 1e10, "link_bytes_per_s": 1e9, "cores": 2.0}
    rates |= {"sum_bytes_per_s": 8e9, "sum_bucket_s": 1e-4}
    (tmp_path / "machine.yaml").write_text("\n".join(f"{name}: {rate}" for name, rate in rates.items()))
    monkeypatch.setattr("train.bench.bench_allreduce.MACHINE", tmp_path / "machine.yaml")
    report = _measure("allreduce --ranks 2 --sizes 8000000 --rounds 1", FakeJobs(answer=_allreduce))
    found = {
        name.split(", ")[2]: row.median for (name, figure), row in _rows(report).items() if figure == "predicted_ms"
    }
    # Two ranks read and write four bytes for each byte of the buffer.
    assert found["shared_memory"] == pytest.approx(0.1 + 4.0)
    assert found["gloo"] > 8.0


# step


def _steps(started: Started) -> dict[str, Any]:
    evaluations = {"evaluation_ms": 8.0, "unfolded_evaluation_ms": 10.0}
    folding = {} if "model.name=resnet18" in started.task["overrides"] else evaluations
    return {"step": [{"step_ms": each, **folding} for each in (3.0, 4.0, 9.0)], "start": [{"first_step_ms": 7.0}]}


def test_a_start_of_a_case_has_the_medians_of_its_steps_and_folding_has_a_verdict() -> None:
    jobs = FakeJobs(answer=_steps)
    cases = "resnet50:64:16:2x1 resnet18:64:8 mnist_small_cnn:28:4:3x2:bfloat16 resnet18:64:8"
    report = _measure(f"step --rounds 5 --seconds 0.5 --cases {cases}", jobs)
    rows, title = _rows(report), "resnet50, 64 px, batch 16, 2 ranks of 1 thread"
    assert _medians(report, title) == {"first_step_ms": 7, "step_ms": 4, "evaluation_ms": 8,
                                       "unfolded_evaluation_ms": 10, "evaluation_ms / unfolded": 0.8}  # fmt: skip
    assert rows[title, "evaluation_ms / unfolded"].verdict == "faster"
    assert set(_medians(report, "resnet18, 64 px, batch 8, 2 ranks of 1 thread")) == {"first_step_ms", "step_ms"}
    assert set(_medians(report, "mnist_small_cnn, 28 px, batch 4, 3 ranks of 2 threads, bfloat16"))
    assert len(jobs.started) == 3 * 5, "a case that is given twice is measured once"
    place = ["cluster.ranks_per_node=3", "cluster.engine.threads=2", "cluster.engine.precision=bfloat16"]
    started = next(each for each in jobs.started if each.place)
    grey = next(each for each in jobs.started if each.place == place).task["overrides"]
    assert {"model.name=mnist_small_cnn", "model.image_size=28", "batch.global_size=12", "model.input_channels=1"} <= {
        *grey
    }
    assert started.task["seconds"] == 0.5


def test_the_fastest_form_of_each_precision_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(started: Started) -> dict[str, Any]:
        rate = {(): 20.0, ("1", "float32"): 30.0, ("1", "bfloat16"): 50.0}
        key = tuple(each.partition("=")[2] for each in started.place if "ranks_per" in each or "precision" in each)
        return {"step": [{"images_per_s": rate.get(key, 10.0)}], "start": [{}]}

    monkeypatch.setattr("logs.environment.cpu_flags", lambda: CAST_FLAGS | {"avx512_bf16"})
    monkeypatch.setattr("train.bench.forms.has_engine", lambda engine: engine == "mxnet")
    jobs = FakeJobs(answer=rates)
    report = _measure("step --advise --rounds 5 --cases resnet18:32:6", jobs)
    name = "one process, MXNet, NCHW, float32"
    assert _medians(report, name) == {"images_per_s": 30, "images_per_s / as given": 1.5}
    words = "--set cluster.ranks_per_node=1 --set cluster.engine.threads=2 --set cluster.engine.name=mxnet "
    for precision, factor in (("float32", "1.50"), ("bfloat16", "2.50")):
        told = f"--set cluster.engine.layout=NCHW --set cluster.engine.precision={precision}"
        assert f"fastest in {precision}, {factor} times as fast as given (faster): {words}{told}" in report.notes
    assert len(jobs.started) == 5 * (1 + 2 * 2)
    assert {each.after("--cluster") for each in jobs.started} == {"laptop"}
    assert all({"model.name=resnet18", "batch.global_size=12"} <= {*each.task["overrides"]} for each in jobs.started)
    with pytest.raises(ValueError, match=r"^--advise: got --cluster abci-v100, allowed: the CPU of one machine"):
        _measure("step --advise --cluster abci-v100", jobs)


def test_a_case_without_ranks_takes_those_of_the_cluster() -> None:
    jobs = FakeJobs(answer=_steps)
    report = _measure("step --rounds 1 --cluster abci-v100 --set cluster.num_nodes=4", jobs)
    titles = {row.alternative for row in report.rows}
    assert titles == {"resnet50, 224 px, batch 32, 16 ranks", "resnet50, 224 px, batch 128, 16 ranks"}
    assert {tuple(each.place) for each in jobs.started} == {("cluster.num_nodes=4",)}
    assert {each.after("--cluster") for each in jobs.started} == {"abci-v100"}
    sizes = [each for started in jobs.started for each in started.task["overrides"] if "global_size" in each]
    assert sizes == ["batch.global_size=512", "batch.global_size=2048"]


@pytest.mark.parametrize(
    ("cluster", "engine", "flags", "precisions", "alexnet"),
    [
        ("laptop", "mxnet", {"avx2"}, {"float32"}, "alexnet, 64 px, batch 16"),
        ("laptop", "mxnet", CAST_FLAGS, {"float32", "bfloat16"}, "alexnet, 64 px, batch 16"),
        ("laptop", "torch", {"avx2"}, {"float32", "bfloat16"}, "alexnet, 64 px, batch 16"),
        ("dgx-a100", "mxnet", CAST_FLAGS, {"float32", "float16"}, "alexnet, 224 px, batch 128"),
    ],
)
def test_all_cases_are_every_network_at_every_precision_of_the_device(
    cluster: str, engine: str, flags: set[str], precisions: set[str], alexnet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs.environment.cpu_flags", lambda: flags)
    words = f"--cases all all --cluster {cluster} --set cluster.engine.name={engine} --rounds 1"
    report = _measure(f"step {words}", FakeJobs(answer=_steps))
    titles = {row.alternative for row in report.rows}
    assert {(title.split(",")[0], title.rpartition(", ")[2]) for title in titles} == {
        (name, each) for name in NETWORKS for each in precisions
    }
    assert len(titles) == len(NETWORKS) * len(precisions)
    assert any(title.startswith(alexnet) for title in titles)
    assert any(title.startswith("mnist_small_cnn, 28 px") for title in titles)


# roofline


# epoch


def test_gaps_of_both_loops_stand_beside_each_other() -> None:
    gaps: dict[Any, float] = {Program.EPOCH_OURS: 3.0, Program.EPOCH_TEXTBOOK: 6.0}

    def answer(started: Started) -> Any:
        return {"gaps": [{"between_epochs_ms": gaps[started.program], "evaluation_s": 1.0}]} if started.task else {}

    jobs = FakeJobs(answer=answer)
    report = _measure("epoch --rounds 5 --epochs 6", jobs)
    rows = _rows(report)
    assert rows["ours", "between_epochs_ms / textbook"].median == 0.5
    assert rows["ours", "between_epochs_ms / textbook"].verdict == "faster"
    assert ("ours", "evaluation_s / textbook") not in rows
    assert rows["null network, tensors of ResNet-50", "python_step_ms"].warmup == 1
    ours, textbook = jobs.of(Program.EPOCH_OURS)[0], jobs.of(Program.EPOCH_TEXTBOOK)[0]
    assert {"run.epochs=6", "run.eval_every_epochs=2", "model.image_size=32"} <= {*ours.task["overrides"]}
    told = {name: textbook.task[name] for name in ("image_size", "batch_size", "epochs", "eval_every")}
    assert told == {"image_size": 32, "batch_size": 32, "epochs": 6, "eval_every": 2}
    assert textbook.place == ["cluster.communication.kind=horovod"]


# input


def test_training_runs_have_their_own_size_of_image_and_go_before_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []

    def answer(started: Started) -> Any:
        if started.program is Program.TRAIN_VERB:
            folder = Path(started.after("--run-dir"))
            recipe, _ = load_run(Path(started.command[started.command.index("train") + 1]))
            order.append(recipe.model.image_size)
            folder.mkdir()
            RunFolder(folder).write_summary(Summary("a", "success", images_per_s=8.0, input_wait_fraction=0.25))
        return {}

    def reader(name: str) -> Callable[..., Iterator[Any]]:
        def read(*_: object) -> Iterator[Any]:
            while True:
                order.append(name)
                yield np.zeros((16, 1))

        return read

    for name in ("dali", "mxnet", "pillow"):
        monkeypatch.setattr(f"train.bench.readers.read_by_{name}", reader(name))
    report = _measure("input --quick --image-size 96 --batches 2 --steps 5", FakeJobs(answer=answer))
    assert order[:2] == [64, 224]
    assert order[2:12] == ["dali"] * 10, "eight batches that may have been prepared, and two that count"
    found = _medians(report, "training, ResNet-50 at 224 px")
    assert found == {"images_per_s": 8, "input_wait_fraction": 0.25}
    assert ("Pillow", "images_per_core_s / ImageRecordIter") in _rows(report)


def test_batches_that_a_reader_has_prepared_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [100] * 8 + [1] * 3
    clock_s, cpu_s = iter([10.0, 12.0]), iter([1.0, 2.0])
    clocks = SimpleNamespace(perf_counter=lambda: next(clock_s), process_time=lambda: next(cpu_s))
    monkeypatch.setattr(bench_input, "time", clocks)
    figures = reading((np.zeros((count, 1)) for count in counts), 3)()
    assert figures == {"images_per_core_s": 3.0, "images_per_s": 1.5}


# peers


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    """Jobs with the peers' environment, on a CPU without bfloat16 and without our engine on PyTorch."""
    jobs = FakeJobs(peers=tmp_path / "peers", answer=_counted("images_per_s"))
    jobs.peers_python.parent.mkdir(parents=True)
    jobs.peers_python.touch()
    monkeypatch.setattr("logs.environment.cpu_flags", frozenset)
    monkeypatch.setattr("train.bench.bench_peers.find_spec", lambda package: package != "torch")
    monkeypatch.setattr("train.bench.forms.has_engine", lambda engine: engine == "mxnet")
    return jobs


def _peers(started: Started) -> Any:
    """Answer with a rate that is highest in one form of each program: what its last try tells."""
    if not started.task:
        return {}
    told = str([started.place, started.task])
    fast = (
        "ranks_per_node=1",
        "layout=NCHW",
        "'is_channels_last': True",
        "'is_bfloat16': True",
        "gluon",
        "compiled': True",
    )
    return {"one": [{"images_per_s": 1.0 + sum(word in told for word in fast)}]}


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_every_peer_trains_the_same_network_on_the_same_images_in_its_fastest_form(
    optimizer: str, peers: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs.environment.cpu_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr("configs.compilers.compiler_shortage", lambda _: None)
    peers = replace(peers, answer=_peers)
    words = f"peers --rounds 1 --ranks 3 --batch 100 --steps 9 --image-size 32 --optimizer {optimizer}"
    report = _measure(words, peers)
    names = [
        "ours",
        "ours, one process, MXNet, NCHW, float32",
        "Horovod's MXNet example, one process, gluon",
        "PyTorch, one process, channels last, bfloat16, compiled",
    ]
    assert [row.alternative for row in report.rows if row.figure == "images_per_s"] == names
    compared = [row.alternative for row in report.rows if row.figure == f"images_per_s / {names[1]}"]
    assert compared == [names[0], *names[2:]]
    usual, ours, horovod, pytorch = peers.started[-4:]
    recipe = {"model.name=resnet50", "model.image_size=32", "batch.global_size=300", "data.train_samples=300"}
    engine = ["cluster.engine.name=mxnet", "cluster.engine.layout=NCHW", "cluster.engine.precision=float32"]
    for each, place in ((usual, (3, 1)), (ours, (1, 3))):
        assert each.place == [f"cluster.ranks_per_node={place[0]}", f"cluster.engine.threads={place[1]}", *engine]
        assert {*recipe, *each.place} <= {*each.task["overrides"]}
        assert any("lars" in words for words in each.task["overrides"]) is (optimizer == "lars")
    counted = {"warmup": 3, "steps": 9}
    assert {name: ours.task[name] for name in counted} == counted
    data = horovod.task["data"]
    shape = {"model": "resnet50_v1", "image_size": 32, "batch_size": 300, "mode": "gluon"}
    assert horovod.task == {"data": data, **shape, **counted}
    assert {"cluster.communication.kind=horovod", *ours.place[:2]} <= {*horovod.place}
    network = {"name": "resnet50", "num_classes": 1000, "image_size": 32, "input_channels": 3}
    rate = {"network": network, "data": data, "batch_size": 300, **counted}
    update = pytorch.task["rate"].pop("update")
    assert pytorch.task["rate"] == rate
    assert (update and update["trust"]["trust_coefficient"]) == (0.001 if optimizer == "lars" else None)
    assert pytorch.task["form"] == dict.fromkeys(("is_channels_last", "is_bfloat16", "is_compiled"), True)
    assert pytorch.place == ours.place[:2]
    # Every form is tried: places and MXNet's interfaces; places, orders and types of PyTorch, and the fastest compiled.
    tries = [len(peers.of(each)) - 1 for each in (Program.HOROVOD_EXAMPLE, Program.PYTORCH_PEER)]
    assert tries == [2 * 2, 2 * 2 * 2 + 1 + 2]
    short = [each.task["rate"]["batch_size"] for each in peers.of(Program.PYTORCH_PEER)[:5]]
    assert short == [100] * 4 + [300]


def test_a_precision_that_the_cpu_lacks_is_not_measured(peers: FakeJobs) -> None:
    _measure("peers --rounds 1", peers)
    assert not any(each.task["form"]["is_bfloat16"] for each in peers.of(Program.PYTORCH_PEER))
    with pytest.raises(ValueError, match=r"^--precision bfloat16: allowed: any, float32, because this CPU has no"):
        _measure("peers --precision bfloat16", peers)


@pytest.mark.parametrize("words", ["peers --rounds 1", "race --seeds 1"])
def test_pytorch_is_installed_where_that_is_asked_for_and_missing_otherwise(words: str, tmp_path: Path) -> None:
    jobs = FakeJobs(peers=tmp_path / "none", answer=_race)
    notes = _measure(words, jobs).notes
    assert "PyTorch is not measured: it is not installed; --install puts it into .venv-peers (1 GB)" in notes
    assert not any("pip" in each.command for each in jobs.started)
    _measure(f"{words} --install", jobs)
    assert any("pip" in each.command for each in jobs.started)


# race


def _race(started: Started) -> Any:
    """Answer as a run whose seed 2 misses the target, and as a peer that takes a second in a step and longer to start.

    Channels last start 3 s later, and one process takes 0.9 s in a step.
    """
    if started.program is Program.PYTORCH_PEER:
        steps, is_late = started.task["race"]["epoch_ends"][-1], started.task["form"]["is_channels_last"]
        warm_at = BEGUN_S + 4 + 3 * is_late
        step_s = 0.9 if "cluster.ranks_per_node=1" in started.place else 1.0
        moments = {"begun_at": warm_at - 1, "warm_at": warm_at, "ended_at": warm_at + step_s * (steps - 1)}
        is_missed = started.task["race"]["seed"] == 2
        return {"PyTorch": [{**moments, "epochs": 7, "steps": steps, "reached": 1 - is_missed}]}
    if "--run-dir" in started.command:
        is_missed = "run.seed=2" in started.place
        result = (
            {"status": "failed", "failure": "target top-1 0.97 not reached"} if is_missed else {"status": "success"}
        )
        at_s = {"run_start": 3.0, "run_stop": 9.0}
        write_run(Path(started.after("--run-dir")), at_s=at_s, epochs=6, **{"failure": None, **result})
        return Finished(started.command, int(is_missed), "", BEGUN_S, 10.0)
    return {"one": [{"images_per_s": 1.0}]}


def test_a_race_is_run_seed_by_seed_and_a_missed_target_is_an_answer(
    peers: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("configs.compilers.compiler_shortage", lambda _: ("no g++", "install it"))
    jobs = replace(peers, answer=_race)
    report = _measure("race --seeds 2", jobs)
    ours = {"to_target_s": 9, "startup_s": 3, "epochs": 6, "reached": 0.5}
    assert _medians(report, "ours") == ours
    name = "PyTorch, one process, channels first, float32"
    races = [each.task["race"] for each in jobs.of(Program.PYTORCH_PEER)]
    to_target_s = 4 + 0.9 * (races[-1]["epoch_ends"][-1] - 1)
    theirs = {"to_target_s": to_target_s, "startup_s": 3, "epochs": 7, "reached": 0.5,
              "to_target_s / ours": to_target_s / 9}  # fmt: skip
    assert _medians(report, name) == pytest.approx(theirs)
    missed = [f"{each}, seed 2: the target was not reached" for each in (name, "ours")]
    assert sorted(note for note in report.notes if note.endswith("not reached")) == sorted(missed)
    assert "torch.compile is not tried: this machine has no g++; install it" in report.notes
    # Four forms are tried, for a few steps and without an evaluation; then the fastest races.
    assert [(each["seed"], bool(each["eval_epochs"])) for each in races] == [(1, False)] * 4 + [(1, True), (2, True)]
    assert {each["epoch_ends"][-1] for each in races[:4]} == {48}


def test_a_race_in_a_precision_is_one_of_both_programs(peers: FakeJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("configs.compilers.compiler_shortage", lambda _: ("no g++", "install it"))
    monkeypatch.setattr("logs.environment.cpu_flags", lambda: frozenset({"avx512_bf16"}))
    jobs = replace(peers, answer=_race)
    _measure("race --seeds 1 --precision bfloat16", jobs)
    assert all(each.task["form"]["is_bfloat16"] for each in jobs.of(Program.PYTORCH_PEER))
    (own,) = [each for each in jobs.started if "--run-dir" in each.command]
    assert "cluster.engine.precision=bfloat16" in own.place


def test_a_run_that_breaks_fails_the_race(tmp_path: Path) -> None:
    def answer(started: Started) -> Any:
        if "--run-dir" in started.command:
            folder = Path(started.after("--run-dir"))
            write_run(
                folder, at_s={"run_start": 3.0, "run_stop": 9.0}, failure="rank 1 died", status="failed", epochs=1
            )
            return Finished(started.command, 1, "rank 1 died")
        return {}

    with pytest.raises(RuntimeError, match="exit status 1:\nrank 1 died"):
        _measure("race --seeds 1", FakeJobs(peers=tmp_path / "none", answer=answer))


def test_images_that_nobody_has_packed_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("configs.load.resolve_path", lambda _: tmp_path)
    (tmp_path / "fashion-mnist").mkdir()  # as a preparation leaves it that was interrupted
    with pytest.raises(ValueError, match=f"^{tmp_path / 'fashion-mnist'}: not packed yet; ./run.sh prepare"):
        _measure("race fashion-mnist", FakeJobs())


# startup


def test_the_critical_path_counts_another_thread_only_while_the_main_thread_waits_for_it() -> None:
    rows = [
        ("interpreter", "MainThread", 0.0, 1.0),
        ("communicator: import", "communicator", 1.0, 2.0),
        ("pipeline", "MainThread", 1.0, 3.0),
        ("communicator: init", "communicator", 2.0, 5.0),
        ("wait for communicator", "MainThread", 3.5, 5.5),
        ("loader", "other", 5.0, 9.0),
        ("warm-up", "MainThread", 6.0, 7.0),
    ]
    phases = [{"phase": name, "thread": thread, "begin_s": begin, "end_s": end} for name, thread, begin, end in rows]
    assert critical_path(phases, 8.0) == {
        "interpreter": 1.0,
        "communicator: import": 0.0,
        "pipeline": 2.0,
        "communicator: init": 1.5,
        "loader": 0.5,
        "warm-up": 1.0,
        "between phases": 2.0,
    }


_PHASES = (
    ("imports", "MainThread", 0.0, 0.5),
    ("communicator", "other", 0.25, 2.0),
    ("imports", "MainThread", 0.75, 1.0),
    ("wait for communicator", "MainThread", 1.25, 2.25),
)
_LEDGER = {
    "started_time": BEGUN_S + 0.5,
    "phases": [dict(zip(("phase", "thread", "begin_s", "end_s"), row, strict=True)) for row in _PHASES],
}


def _startup(started: Started) -> Any:
    if started.program is Program.STARTUP_TEXTBOOK:
        return {"ledger": [{**_LEDGER, "run_start_time": BEGUN_S + 7}]}
    if "--run-dir" in started.command:
        folder = Path(started.after("--run-dir"))
        write_run(folder, at_s={"run_start": 3.0, "eval_start": 5.5, "run_stop": 9.0})
        (folder / "startup.json").write_text(json.dumps(_LEDGER), encoding="utf-8")
    return {}


def test_a_start_has_its_phases_its_critical_path_and_a_verdict_on_the_goal() -> None:
    jobs = FakeJobs(answer=_startup)
    report = _measure("startup --rounds 5 --image-size 32 --batch-size 4", jobs)
    path = {"before the rank's process": 0.5, "imports": 0.75, "communicator": 0.75, "between phases": 1.0,
            "first step": 2.5}  # fmt: skip
    ours = {"command_to_first_step_s": 5.5, "command_to_run_start_s": 3.0, "rank_to_run_start_s": 2.5}
    phases = {"imports_s": 0.75, "communicator_s": 1.75, "wait for communicator_s": 1.0}
    ratios = {"command_to_run_start_s / textbook": 3 / 7, "rank_to_run_start_s / textbook": 2.5 / 6.5}
    critical = {f"critical path: {name}_s": seconds for name, seconds in path.items()}
    assert _medians(report, "ours") == pytest.approx({**ours, **phases, **critical, **ratios})
    textbook = {"command_to_run_start_s": 7.0, "rank_to_run_start_s": 6.5}
    assert _medians(report, "textbook") == pytest.approx({**textbook, **phases})
    assert _rows(report)["ours", "command_to_first_step_s"].verdict == "over 2 s"
    assert _rows(report)["ours", "imports_s"].verdict == ""
    assert any(note.endswith("critical path: first step 2.50 s, between phases 1.00 s, imports 0.75 s, communicator "
                             "0.75 s, before the rank's process 0.50 s") for note in report.notes)  # fmt: skip
    started = [each for each in jobs.started if "--run-dir" in each.command]
    assert len(started) == 1 + 5
    assert {"model.image_size=32", "batch.global_size=8", "data.eval_resize=null", "run.max_steps=1"} == {
        *started[0].place
    }
    readers = [each.task["readers"] for each in jobs.of(Program.STARTUP_TEXTBOOK)]
    assert readers[:4] == ["dali", "mxnet", "mxnet", "dali"]
    assert jobs.of(Program.STARTUP_TEXTBOOK)[0].environment == {"OMP_NUM_THREADS": "1"}


def test_nothing_stands_beside_a_start_on_another_cluster() -> None:
    jobs = FakeJobs(answer=_startup)
    report = _measure("startup --rounds 1 --cluster dgx-a100 --ranks 4 --set cluster.num_nodes=2", jobs)
    assert {row.alternative for row in report.rows} == {"ours"}
    assert report.notes[-1].startswith("the usual order is measured on the CPU of one machine only")
    place = next(each.place for each in jobs.started if "--run-dir" in each.command)
    assert {"batch.global_size=64", "cluster.num_nodes=2", "cluster.ranks_per_node=4"} <= {*place}


# gpu


class _Stopping(FakeJobs):
    """Also stops a run as soon as it is ready."""

    def stop_when(self, is_ready: Callable[[], bool], command: Any, log: Path, timeout_s: float) -> Finished:
        folder = log.parent / "run"
        folder.mkdir()
        log.write_text("RuntimeError: NCCL\nlast words\n", encoding="utf-8")
        assert not is_ready()
        for text, is_evaluated in (('{"kind": "interval", "step": 0}\n', False), ('{"kind": "evaluation"}\n', True)):
            (folder / "metrics.jsonl").write_text(2 * text, encoding="utf-8")
            assert is_ready() is is_evaluated
        self.started.append(Started(None, list(command), {}, [], timeout_s, {}))
        return Finished(command, STOPPED_STATUS if folder.parent.name == "stops" else 3, took_s=1.5)


def _gpu(started: Started) -> Any:
    task = started.task
    if task:
        return {
            Program.GPU_KERNELS: lambda: {
                f"{case}, {kind}": [{"loss_error": 0.015}] for case in task["cases"] for kind in task["kinds"]
            },
            Program.GPU_STEP: lambda: {"step": [{"step_ms": each} for each in (1.0, 2.0, 9.0)]},
            Program.GPU_PROFILE: lambda: {"a|kernel": [{"kernel_ms": 4.0}]},
            Program.ALLREDUCE_OURS: lambda: {str(size): [{"allreduce_ms": 5.0}] for size in task["sizes"]},
            Program.PEER_OURS: lambda: {"ours": [{"images_per_s": 70.0}]},
        }[started.program]()  # type: ignore[index]
    if started.program is Program.SIMULATE_VERB:
        return Finished(started.command, 0, '{"step_s": 0.25, "images_per_s": 512.0}')
    if "digits" in started.command:
        write_run(Path(started.after("--run-dir")), at_s={}, status="aborted", top1=0.11, target=0.97, run_s=2.0)
    if "--resume" in started.command:
        write_run(Path(started.after("--resume")), at_s={}, steps=12, resumed_from_step=3, run_s=4.0, rank_excess=None)
    return {}


def _kept(folder: Path) -> list[dict[str, Any]]:
    first, *lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert set(json.loads(first)) == {"machine", "versions"}
    return [json.loads(line) for line in lines]


def test_a_gpus_kernels_are_tried_in_every_case_and_execution_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    jobs = FakeJobs(answer=_gpu)
    report = _measure(f"gpu --folder {tmp_path} --only kernels", jobs)
    cases = [(how, name) for how in EXECUTIONS for name, case in KERNEL_CASES.items() if how in case.executions]
    kinds = ("float32", "TF32", "float16", "bfloat16")
    verdicts = {row.alternative: row.verdict for row in report.rows if row.figure == "loss_error"}
    assert list(verdicts) == [
        f"{name}, {kind}, {how}, against float32 on the CPU" for how, name in cases for kind in kinds
    ]
    assert list(verdicts.values()) == len(cases) * ["WRONG", "as expected", "as expected", "as expected"]
    assert {(*each.task["cases"], *each.task["place"]) for each in jobs.of(Program.GPU_KERNELS)} == {
        (name, "cluster.device=gpu", *EXECUTIONS[how]) for how, name in cases
    }, "a fault of the GPU ends one case only"


def test_a_gpu_is_asked_for_all_parts_the_most_wanted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.bench.bench_gpu.find_spec", lambda _: "DALI")
    jobs, folder = _Stopping(answer=_gpu), tmp_path / "new" / "stops"
    report = _measure(f"gpu --folder {folder} --gpu H100", jobs)
    steps = [row.alternative for row in report.rows if row.figure == "step_ms"]
    batches = [f"imagenet-b256, batch {size}" for size in (256, 32, 128)]
    by_type = [f"{batch}, {kind}" for kind in ("float16", "bfloat16", "TF32") for batch in batches]
    assert steps[:9] == by_type
    assert sorted(steps[9:27]) == sorted(f"{each}, {how}" for each in by_type for how in ("compiled", "graph"))
    assert steps[27:29] == [f"{batch}, float16, compiled, graph" for batch in batches[:2]]
    assert steps[29:] == [
        f"{batch}, float16, sums on one rank{how}"
        for batch in batches
        for how in ("", ", graph", ", sums between graphs")
    ]
    assert {(row.median, row.n, row.warmup) for row in report.rows if row.figure == "step_ms"} == {(2.0, 3, 1)}
    assert len([row for row in report.rows if row.figure == "allreduce_ms"]) == 3
    kernels = [row.alternative for row in report.rows if row.figure == "kernel_ms"]
    assert kernels == ["batch 256, float16: a|kernel", "batch 32, float16: a|kernel"]
    assert _medians(report, "a run to 1000 steps on synthetic images, stopped and resumed") == {
        "steps": 12, "resumed_from_step": 3, "run_s": 4, "command_s": 4, "stop_s": 1.5, "evaluations": 2,
    }  # fmt: skip
    learnt = {row.figure: (row.median, row.verdict) for row in report.rows if "the digits" in row.alternative}
    assert learnt == {"top1": (0.11, "WRONG"), "target": (0.97, "WRONG"), "run_s": (2.0, "WRONG")}
    assert len([row for row in report.rows if row.alternative.startswith("decoder ")]) == 3
    forecasts = [_medians(report, f"imagenet-b256, {each}") for each in ("predicted", "predicted after --calibrate")]
    assert forecasts == [{"step_s": 0.25, "images_per_s": 512}] * 2
    assert report.notes == (f"rows as they came: {folder}/rows.jsonl",)
    lines = _kept(folder)
    assert [each["alternative"] for each in lines] == [row.alternative for row in report.rows]
    parts = ["kernels", "digits", "steps", "compiled", "graph", "profile", "nccl", "run", "decoders", "simulator"]
    assert list(dict.fromkeys(each["part"] for each in lines)) == parts
    table = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    assert "| steps | imagenet-b256, batch 256, float16 | `step_ms` | 2 | 1 | 9 | 3 |" in table
    assert "| profile | batch 256, float16: a&#124;kernel | `kernel_ms` | 4 | 4 | 4 | 1 |" in table
    assert len(table) == 2 + len(lines) + 1
    first, second, *_, last = jobs.of(Program.GPU_STEP)
    on_gpu = {"cluster.device=gpu", "cluster.node.gpu=H100", "batch.global_size=256", "data.source=synthetic"}
    assert {*on_gpu, "cluster.engine.precision=float16", "cluster.communication.kind=none"} <= {
        *first.task["overrides"]
    }
    assert (first.task["seconds"], first.task["is_tf32"]) == (10.0, False)
    assert "batch.global_size=32" in second.task["overrides"]
    assert first.timeout_s is not None
    assert 200 < first.timeout_s <= 240
    assert {"cluster.communication.kind=torch_distributed", "cluster.communication.backend=nccl"} <= {*last.place}
    asked = [each.task["overrides"] for each in jobs.of(Program.GPU_STEP)]
    assert [sum(f"cluster.engine.cuda_graphs={how}" in each for each in asked) for how in ("step", "compute")] == [
        14,
        3,
    ]
    tf32 = [each.task["overrides"] for each in jobs.of(Program.GPU_STEP) if each.task["is_tf32"]]
    assert all("cluster.engine.precision=float32" in each for each in tf32)
    assert len(tf32) == 9
    learn = next(each for each in jobs.started if "--calibrate" in each.command)
    assert learn.after("--calibrate") == str(folder / "run")
    for started in jobs.started:
        if "overrides" in started.task:  # Settings that fit each other, for the launcher and for the rank.
            recipe, cluster = load_both(
                started.task.get("recipe", "imagenet-b256"), "laptop", started.task["overrides"]
            )
            assert (cluster.device, load_cluster("laptop", started.place).device) == ("gpu", "gpu")
            assert (cluster.engine.layout, recipe.mlperf.division) == ("NHWC", "open")


def test_a_part_that_fails_is_a_note_with_the_cause_on_disk_and_the_next_one_is_measured(tmp_path: Path) -> None:
    output = "No module named 'launch'\n" + "".join(f"line {number}\n" for number in range(20))

    def answer(started: Started) -> Any:
        return Finished(started.command, 1, output) if started.program is Program.GPU_STEP else _gpu(started)

    jobs = _Stopping(answer=answer)
    report = _measure(f"gpu --tiny --only graph run simulator --folder {tmp_path}", jobs)
    assert {row.alternative for row in report.rows} == {"imagenet-b256, predicted"}
    cause = "exit status 1: / No module named 'launch' / line 18 / line 19"
    stopped = "exit status 3: / RuntimeError: NCCL / last words"
    assert report.notes[1:] == (*[f"graph: {cause}"] * 4, f"run: {stopped}")
    assert [each["note"] for each in _kept(tmp_path) if "note" in each] == [*[cause] * 4, stopped]
    assert f"- run: {stopped}" in (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    tiny = {"model.name=resnet8", "cluster.device=cpu", "batch.global_size=8"}
    assert tiny <= {*jobs.of(Program.GPU_STEP)[0].task["overrides"]}
    assert "cluster.communication.backend=gloo" in jobs.started[4].command[-1] + str(jobs.started[4].command)


def test_no_measurement_of_a_part_begins_after_the_parts_minutes_and_the_next_part_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each part asks for its end; each measurement announces itself, and asks once for the seconds that it may take.
    moments = iter([1000.0, 1000.0, 1059.0, 1059.0, 1060.0, 2000.0, 2000.0, 2001.0, 2001.0, 2060.0, 2060.0, 2060.0])
    monkeypatch.setattr("train.bench.bench_gpu.time", SimpleNamespace(monotonic=lambda: next(moments)))
    jobs = FakeJobs(answer=_gpu)
    report = _measure(f"gpu --tiny --minutes 1 --only compiled steps --folder {tmp_path}", jobs)
    assert [each.timeout_s for each in jobs.started] == [1.0, 59.0]
    late = "not measured: the part's minutes were over"
    assert report.notes[1:] == (f"compiled: {late}", f"steps: {late}")


def test_without_dali_a_line_says_that_no_decoder_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.bench.bench_gpu.find_spec", lambda _: None)
    report = _measure(f"gpu --tiny --only decoders --folder {tmp_path}", FakeJobs(answer=_gpu))
    missing = "not tried, because NVIDIA DALI is not installed here"
    assert report.notes[1:] == (f"decoders: whole: {missing}", f"decoders: region: {missing}")
    assert report.rows == ()


def test_the_parts_are_listed_with_what_they_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_command(["gpu", "--list"])
    printed = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert [line.split()[0] for line in printed[:2]] == ["kernels", "digits"]
    assert all("?" in line for line in printed)
