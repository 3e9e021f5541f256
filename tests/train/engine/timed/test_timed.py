"""A rehearsed rank takes the time that it is told to take, and its counts and sums are right."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.blocks.rehearsal import SLOWER, Fault, Rehearsal, Waits
from configs.load import ROOT, load_both, load_cluster
from configs.optimizers import HyperParameters
from configs.plan import plan_run
from configs.registry import installed_engine
from configs.schema import Cluster, Recipe
from tests.engines import ALONE, BOTH, cpu_engine
from tests.programs import python
from train.comm.communicator import SingleProcess
from train.engine.build import build_model
from train.engine.init import initial_weights
from train.engine.protocol import Engine, open_engine
from train.engine.timed.device import Device, strike
from train.engine.timed.engine import TimedEngine
from train.engine.timed.score import InventedTop1
from train.networks.arch import Network, build_network

FORWARD_S, GAP_S = 0.03, 0.001
COPY_S, SWAP_S = 2.0, 5.0


def _table(recipe: Recipe) -> Network:
    model = recipe.model
    return build_network(model.name, num_classes=10, image_size=model.image_size, input_channels=model.input_channels)


def _rehearsed(faults: tuple[str, ...] = (), slow: Mapping[str, float] = {}) -> tuple[Recipe, Cluster, Engine]:
    recipe, cluster = load_both("digits", "laptop", ["cluster.ranks_per_node=1"])
    count = len(_table(recipe).parameters)
    waits = Waits(
        forward_s=FORWARD_S,
        gradients_s=tuple(GAP_S * (count - index) for index in range(count)),
        update_s=0.0,
        evaluation_s=0.0,
        copy_s=COPY_S,
        swap_s=SWAP_S,
        top1=(0.25, 0.5),
    )
    tree = cluster.model_dump(mode="json")
    rehearsal = Rehearsal(waits=waits, shrink=100, faults=faults, slow_ranks=dict(slow)).model_dump(mode="json")
    tree |= {"rehearsal": rehearsal, "engine": {**tree["engine"], "name": "timed"}}
    rehearsed = Cluster.model_validate(tree)
    return recipe, rehearsed, open_engine(rehearsed, ALONE)


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        pytest.param("horovod", "mxnet", marks=BOTH[0].marks),
        pytest.param("torch_distributed", "torch", marks=[*BOTH[1].marks, pytest.mark.medium]),
        ("shared_memory", installed_engine()),
    ],
)
def test_arrays_are_those_that_the_communicator_sums(kind: str, taken: str) -> None:
    waits = "cluster.rehearsal.waits={forward_s: 0, gradients_s: [], update_s: 0, evaluation_s: 0, top1: []}"
    cluster = load_cluster("laptop", ["cluster.engine.name=timed", f"cluster.communication.kind={kind}", waits])
    assert type(open_engine(cluster, ALONE).zeros((1,))).__module__.partition(".")[0] == taken


class _Time:
    """A time that only sleeping passes, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> _Time:
    passing = _Time()
    monkeypatch.setattr("train.engine.timed.device.time", passing)
    return passing


def test_work_begins_when_the_device_is_free_and_a_late_host_delays_nothing(passing: _Time) -> None:
    device = Device(1.0)
    begin = device.begin()
    device.work_until(begin, 0.25)
    passing.now += 0.125  # The host is late.
    device.work_until(begin, 0.5)
    assert passing.now == 0.5
    device.work(0.25)
    assert passing.now == 0.75
    passing.now = 2.0  # The device has long been free.
    device.work(0.25)
    assert passing.now == 2.25


def test_a_slow_rank_waits_longer_and_a_fault_makes_it_slower(passing: _Time) -> None:
    device = Device(3.0)
    device.work(1.0)
    assert passing.now == 3.0
    strike(Fault("slow", 1, 0), device)
    device.work(1.0)
    assert passing.now == 3.0 + 3.0 * SLOWER


def test_noise_makes_waits_differ_around_the_time_that_they_take(passing: _Time) -> None:
    device, ends = Device(1.0, noise=0.1), [0.0]
    for _ in range(1000):
        device.work(1.0)
        ends.append(passing.now)
    waits = np.diff(ends)
    assert np.median(waits) == pytest.approx(1, abs=0.25), "of a rank that differs by 5 % (deviation) for good"
    assert np.diff(np.quantile(waits, [0.16, 0.84])) == pytest.approx(0.2, abs=0.05)
    assert 3 < (waits > np.median(waits) + 0.6).sum() < 60, "one of 50 is late"


def test_images_take_the_time_of_a_copy_and_a_swap_that_of_the_slower_link(passing: _Time) -> None:
    engine = _rehearsed(slow={"0:copy": 3, "0:link": 2, "1:link": 7})[2]
    for shape, taken_s in (((2, 1), 3 * COPY_S), ((2,), 0.0)):
        begin = passing.now
        engine.from_host(np.zeros(shape, np.float32))
        engine.wait_all()
        assert passing.now - begin == taken_s, "images have two axes"
    for partner, factor in ((1, 7), (2, 2), (None, 0)):
        begin = passing.now
        engine.swap(None, partner)  # type: ignore[attr-defined]
        engine.wait_all()
        assert passing.now - begin == pytest.approx(factor * SWAP_S)


def test_waits_have_ended_when_they_should_however_late_the_host_wakes_up(
    passing: _Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _rehearsed()[2]
    monkeypatch.setattr("train.engine.timed.engine.time", passing)
    engine.from_host(np.zeros((2, 1), np.float32))
    monkeypatch.setattr(passing, "sleep", lambda seconds: setattr(passing, "now", passing.now + seconds + 1))
    assert engine.finish() == COPY_S < passing.now
    assert engine.finish() == passing.now, "nothing has been queued since"


@pytest.mark.medium
def test_a_step_takes_its_time_and_gradients_arrive_last_layer_first_with_the_plans_real_sizes() -> None:
    recipe, cluster, engine = _rehearsed()
    model = build_model(engine, recipe, cluster, plan_run(recipe, 1))
    laptop = load_both("digits", "laptop", ["cluster.ranks_per_node=1"])[1]
    real = build_model(open_engine(laptop, ALONE), recipe, laptop, plan_run(recipe, 1))
    assert model.buckets == real.buckets
    assert [each.shape for each in model.network.gradients] != [each.shape for each in real.network.gradients]
    network, arrived = model.network, []
    begin = time.monotonic()
    loss = engine.to_number(network.forward(None, None))
    engine.wait_all()
    assert time.monotonic() - begin >= FORWARD_S
    network.backward(lambda index: arrived.append((index, time.monotonic())))
    count = len(network.parameters)
    assert [index for index, _ in arrived] == list(reversed(range(count)))
    assert arrived[-1][1] - begin >= FORWARD_S + count * GAP_S
    assert loss == recipe.batch.global_size
    model.optimizer.update(HyperParameters(0.1, 0.9, 0.0))
    for gradient in network.gradients:
        assert not engine.to_host(gradient).any()


def test_a_sum_that_misses_a_rank_is_found() -> None:
    recipe, cluster, engine = _rehearsed()
    model = build_model(engine, recipe, cluster, plan_run(recipe, 1))
    model.network.forward(None, None)
    model.network.backward()
    for gradient in model.network.gradients:
        engine.overwrite(gradient, engine.flag(gradient, is_set=False))
    with pytest.raises(RuntimeError, match="the sum of ones over 1 ranks is 0"):
        model.optimizer.update(HyperParameters(0.1, 0.9, 0.0))


def test_weights_are_the_beginnings_of_the_seeded_ones_whatever_file_the_recipe_names() -> None:
    recipe, cluster, engine = _rehearsed()
    named = recipe.model_copy(update={"model": recipe.model.model_copy(update={"parameters": "missing.npz"})})
    model = build_model(engine, named, cluster, plan_run(recipe, 1))
    whole = initial_weights(_table(recipe), recipe.model, recipe.run.seed)
    for name, kept in model.network.read_weights().items():
        np.testing.assert_array_equal(kept, whole[name].reshape(-1)[: len(kept)])
        assert len(kept) == model.weights[name].size == max(1, whole[name].size // 100)


def test_a_fault_strikes_its_rank_in_its_step_only() -> None:
    recipe, cluster, engine = _rehearsed(faults=("error@3:0", "kill@3:1"))
    model = build_model(engine, recipe, cluster, plan_run(recipe, 1))
    for step in range(3):
        model.network.forward(None, None)
        model.network.backward()
        model.optimizer.update(HyperParameters(0.1, 0.9, 0.0, step))
    with pytest.raises(RuntimeError, match="rehearsed error in step 3 of rank 0"):
        model.network.forward(None, None)


_LINKED = """
import socket
from configs.blocks.rehearsal import Fault
from train.engine.timed.device import Device, strike
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far = listener.accept()[0]
strike(Fault("link", 1, 0), Device(1.0))
assert far.recv(1) == b""
try:
    near.send(b"x")
except BrokenPipeError:
    print("broken")
socket.create_connection(listener.getsockname()), listener.accept()
print("listens")
"""


@pytest.mark.medium
def test_a_broken_link_is_seen_on_both_ends() -> None:
    """In a process of its own, because the fault breaks the connections of other tests, too."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python("-c", _LINKED, env=environment)
    assert done.stdout == "broken\nlistens\n", done.stderr


@pytest.mark.parametrize(
    ("kind", "status"), [("kill", -signal.SIGKILL), ("notice", -signal.SIGTERM), ("disk", -signal.SIGXFSZ)]
)
def test_a_process_that_is_struck_ends_by_the_faults_own_signal(kind: str, status: int, tmp_path: Path) -> None:
    if not (child := os.fork()):
        for each in (signal.SIGTERM, signal.SIGXFSZ):  # Python reports a full disk as an error instead.
            signal.signal(each, signal.SIG_DFL)
        strike(Fault(kind, 1, 0), Device(1.0))
        (tmp_path / "file").write_text("x")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status


def _right(top1: Sequence[float], epoch: int, *batches: int) -> int:
    """Return how many images of an evaluation after an epoch are judged right."""
    engine = cpu_engine()
    metric, logits = InventedTop1(engine, top1), engine.from_host(np.array([epoch], np.float32))
    for num_valid in batches:
        metric.add(logits, logits, num_valid)
    found: int = metric.score(SingleProcess()).row["correct"]
    return found


def test_the_accuracy_of_many_ranks_is_never_above_the_invented_one_of_the_epoch_or_of_the_last() -> None:
    assert [_right((0.25, 0.5), epoch, 100) for epoch in (1, 2, 3, 9)] == [25, 50, 50, 50]
    count = 64 * _right([0.5004] * 9, 9, 6, 5)  # of so many ranks
    assert 0.5004 * 64 * 11 - 64 < count <= 0.5004 * 64 * 11


def test_evaluation_and_update_take_their_times_and_half_gradients_have_their_types(passing: _Time) -> None:
    recipe, cluster, _ = _rehearsed()
    assert cluster.rehearsal is not None
    waits = cluster.rehearsal.waits.model_copy(update={"update_s": 0.25, "evaluation_s": 2.0})
    settings = cluster.engine.model_copy(update={"precision": "bfloat16"})
    rehearsal = cluster.rehearsal.model_copy(update={"waits": waits})
    cluster = cluster.model_copy(update={"rehearsal": rehearsal, "engine": settings})
    table, engine = _table(recipe), TimedEngine(cpu_engine(), cluster, replace(ALONE, world_size=4))
    network: Any = engine.build_network(table, recipe, accumulate=False)
    optimizer: Any = engine.fused_optimizer(recipe.optimizer, network)()
    kinds = {each.kind: engine.to_host(gradient).dtype.name
             for each, gradient in zip(network.parameters, network.gradients, strict=True)}  # fmt: skip
    assert kinds == {"weight": "float16", "gamma": "float32", "beta": "float32", "bias": "float16"}
    assert engine.to_number(network.forward(None, None)) == recipe.batch.global_size / 4
    network.backward()
    assert passing.now == 0
    engine.wait_all()
    assert passing.now == pytest.approx(waits.forward_s + max(waits.gradients_s))
    marked = network.gradients[-1]
    assert engine.to_number(engine.first_element(marked)) == 1, "before the first step, the last gradient"
    network.zero_gradients()
    engine.overwrite(marked, engine.flag(marked, is_set=True) * 4)
    passing.now = 8.0
    optimizer.update(HyperParameters(0.1, 0.9, 0.0, step=24))
    assert (passing.now, network.step) == (8, 25), "the update is only queued"
    engine.wait_all()
    assert passing.now == 8.25
    predict = network.inference()
    assert (passing.now, engine.to_number(predict(None))) == (10.25, 1), "19 steps are an epoch"
    # One and a half epochs are rounded up: the evaluation after a part of an epoch counts as that of the whole.
    for step, epoch in ((28, 1), (29, 2), (38, 2)):
        network.step = step
        assert engine.to_number(network.inference()(None)) == epoch
    optimizer.reset()
    assert network.step == 0
    network.backward()
    optimizer.update(HyperParameters(0.0, 0.9, 0.0, step=0))
    assert engine.to_number(engine.first_element(network.gradients[0])) == 0, "a trial is not summed over the ranks"
    norms = sum(layer.kind.name == "bn" for layer in table.layers)
    assert len(network.statistics) == len(network.read_statistics()) == 2 * norms
    assert len(optimizer.momenta) == recipe.optimizer.num_moments * len(table.parameters)


@pytest.mark.parametrize(
    ("speed", "slow", "ranks", "together"),
    [(1.0, 1.0, 16, 1), (2.0, 1.0, 16, 2), (4.0, 6.0, 16, 3), (1.0, 1.0, 64, 3)],
    ids=["real", "faster", "slow rank", "crowded"],
)
def test_gradients_wait_for_each_other_for_a_millisecond_of_a_rehearsal_and_ranks_have_their_speed(
    passing: _Time, monkeypatch: pytest.MonkeyPatch, speed: float, slow: float, ranks: int, together: int
) -> None:
    """Up to four ranks share a core; if sixteen do, gradients wait four times as long."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    recipe, cluster, _ = _rehearsed()
    assert cluster.rehearsal is not None
    count = len(_table(recipe).parameters)
    # A gradient every 1.5 ms: in 1 ms comes no other one, in 2 ms one more, in 4 ms two more.
    ends = tuple(0.0015 * (count - index) for index in range(count))
    waits = cluster.rehearsal.waits.model_copy(update={"gradients_s": ends})
    changes = {"waits": waits, "speed": speed, "slow_ranks": {"0": slow}}
    rehearsal = cluster.rehearsal.model_copy(update=changes)
    rehearsed = cluster.model_copy(update={"rehearsal": rehearsal, "ranks_per_node": ranks})
    network = open_engine(rehearsed, ALONE).build_network(_table(recipe), recipe, accumulate=False)
    moments: list[float] = []
    network.backward(lambda _: moments.append(passing.now))
    assert passing.now == pytest.approx(0.0015 * count * slow / speed)
    groups = [moments.count(moment) for moment in sorted(set(moments))]
    assert groups[1:] == [together] * (len(groups) - 1)
    assert sum(groups) == count
