"""Rates of this machine: measured, read from a file, and made into a machine and its constants."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_both, load_cluster
from train.sim.conditions import conditions
from train.sim.constants import Constants
from train.sim.fit import this_machine
from train.sim.fit.this_machine import cpu_constants, load_description, machine_of_description, measure_machine
from train.sim.forecast import Forecast, forecast

RATES = (
    "{flops: 1e10, memory_bytes_per_s: 1e10, link_bytes_per_s: 1e9, cores: 2, sum_bytes_per_s: 8e9, sum_bucket_s: 2e-4}"
)


def test_a_description_that_is_missing_or_broken_says_how_to_measure_it(tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    with pytest.raises(UserError, match="--calibrate-here"):
        load_description(path)
    path.write_text("flops: 1e10\n")
    with pytest.raises(UserError, match="memory_bytes_per_s"):
        load_description(path)
    path.write_text(RATES.replace("1e9", "0"))
    with pytest.raises(UserError, match="must all be there and above 0"):
        load_description(path)
    path.write_text(RATES)
    machine = machine_of_description(load_description(path), load_cluster("laptop"))
    assert (machine.ranks, machine.bytes_per_number, machine.peak) == (2, 4, 1e10)


@pytest.mark.parametrize(("share", "words"), [(0.9, ""), (0.89, "other work had 11% of the cores")])
def test_rates_measured_beside_other_work_carry_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float, words: str
) -> None:
    path = tmp_path / "here.yaml"
    path.write_text(RATES.replace("}", f", core_share: {share}}}"))
    assert load_description(path)["core_share"] == share
    told = capsys.readouterr().err
    assert words in told if words else not told


def test_input_and_negotiation_cost_compute_only_where_cores_do_not_outnumber_ranks() -> None:
    few, many = (cpu_constants(Constants(), {"cores": cores}, 2, 224) for cores in (2.0, 4.0))
    assert few.cycle_cpu_s > 0
    assert few.decode_s == pytest.approx(1.65e-3, rel=0.05)
    assert many.cycle_cpu_s == many.decode_s == 0


def _forecast(tmp_path: Path, *overrides: str, rates: str = RATES) -> Forecast:
    path = tmp_path / "here.yaml"
    path.write_text(rates)
    return forecast(*conditions(*load_both("digits", "laptop", overrides), description=path, steps=tmp_path / "none"))


def test_ranks_that_share_memory_negotiate_nothing_and_ranks_over_horovod_do(tmp_path: Path) -> None:
    shared, horovod = (_forecast(tmp_path, *each) for each in ((), ("cluster.communication.kind=horovod",)))
    assert shared.scenario.software.algorithm == "shared-memory"
    assert shared.step.overhead_s == 0 < horovod.step.overhead_s
    assert shared.images_per_s > horovod.images_per_s
    # Neither rank has a core for its thread, so no sum is hidden: 4 bytes at 8e9 bytes/s for each byte, and 0.2 ms.
    size_bytes = sum(one.size_bytes for one in shared.step.reductions)
    expected_s = 4 * size_bytes / 8e9 + 2e-4 * len(shared.step.reductions)
    assert shared.step.contention_s + shared.step.exposed_s == pytest.approx(expected_s, rel=0.05)


def test_twice_as_many_ranks_as_cores_compute_half_as_fast_each(tmp_path: Path) -> None:
    two, four = (_forecast(tmp_path, f"cluster.ranks_per_node={ranks}") for ranks in (2, 4))
    assert four.scenario.batch == two.scenario.batch / 2
    assert four.step.update_s == pytest.approx(2 * two.step.update_s)
    assert four.images_per_s < two.images_per_s


@pytest.mark.parametrize(
    ("ranks", "cores", "forward_ms", "backward_ms", "update_ms"),
    [(1, 2, 42.4568, 83.6875, 0.885541), (2, 2, 22.2884, 43.3237, 0.885541), (4, 2, 24.4084, 46.2837, 1.771081),
     (4, 8, 12.2042, 23.1419, 0.885541)],
)  # fmt: skip
def test_the_rates_of_a_machine_make_its_step(
    tmp_path: Path, ranks: int, cores: int, forward_ms: float, backward_ms: float, update_ms: float
) -> None:
    """The times of the layers are those of the last look; the update moves 26 bytes for each of 272,474 parameters."""
    kind = "none" if ranks == 1 else "shared_memory"
    words = (f"cluster.ranks_per_node={ranks}", f"cluster.communication.kind={kind}")
    found = _forecast(tmp_path, *words, rates=RATES.replace("cores: 2", f"cores: {cores}"))
    step = found.step
    times_ms = [1e3 * each for each in (step.forward_s, step.backward_s, step.update_s)]
    assert times_ms == pytest.approx([forward_ms, backward_ms, update_ms], rel=1e-5)
    taken = max(1, ranks / cores)
    assert step.update_s == pytest.approx(taken * 26 * 272_474 / (0.8 * 1e10))
    assert found.interval.basis == "unseen"


def test_a_link_of_the_cluster_file_takes_the_place_of_the_measured_one(tmp_path: Path) -> None:
    words = ("cluster.communication.kind=horovod", "cluster.communication.link_bytes_per_s=123e6")
    assert _forecast(tmp_path, *words).scenario.machine.link_bytes_per_s == 123e6


def test_servers_take_the_place_of_an_allreduce(tmp_path: Path) -> None:
    servers = ("cluster.communication.kind=parameter_server", "cluster.communication.servers=2")
    assert _forecast(tmp_path, *servers).scenario.software.algorithm == "ps:2"


def test_more_nodes_have_the_cards_of_the_cluster_file_or_one_as_fast_as_the_link() -> None:
    rates = {"flops": 1e10, "memory_bytes_per_s": 2e10, "link_bytes_per_s": 3e9, "cores": 2.0}
    rates |= {"sum_bytes_per_s": 8e9, "sum_bucket_s": 2e-4}
    sets = ["cluster.num_nodes=3", "cluster.launcher=mpirun", "cluster.communication.backend=mpi"]
    sets += ["cluster.communication.kind=horovod"]
    bare = machine_of_description(rates, load_cluster("laptop", sets))
    assert (bare.ranks, bare.nodes, bare.nics, bare.nic_bytes_per_s) == (6, 3, 1, 3e9)
    assert (bare.sums, bare.accelerator.name, bare.accelerator.memory) == (None, "this machine", 2e10)
    cards = ["cluster.node.nics=2", "cluster.node.nic_bytes_per_s=5e9", "cluster.node.cpu=EPYC 7763"]
    found = machine_of_description(rates, load_cluster("laptop", [*sets, *cards]))
    assert (found.nics, found.nic_bytes_per_s, found.accelerator.name) == (2, 5e9, "EPYC 7763")
    assert (found.link_bytes_per_s, found.accelerator.link_kind, found.accelerator.chip) == (3e9, "memory", "cpu")
    shared = machine_of_description(rates, load_cluster("laptop")).sums
    assert shared is not None
    assert (shared.bytes_per_s, shared.bucket_s, shared.cores) == (8e9, 2e-4, 2.0)


def test_the_slower_of_two_processes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        {"flops": 2.0, "memory_bytes_per_s": 3.0, "sum_bytes_per_s": 5.0, "sum_bucket_s": 0.1, "core_share": 1.0},
        {"flops": 1.0, "memory_bytes_per_s": 4.0, "sum_bytes_per_s": 4.0, "sum_bucket_s": 0.3, "core_share": 0.5},
    ]
    monkeypatch.setattr(this_machine, "_measure_processes", lambda: found)
    monkeypatch.setattr(this_machine, "_loopback", lambda: 7.0)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert measure_machine() == {
        "flops": 1.0, "memory_bytes_per_s": 3.0, "sum_bytes_per_s": 4.0, "sum_bucket_s": 0.3, "core_share": 0.5,
        "link_bytes_per_s": 7.0, "cores": 6.0,
    }  # fmt: skip


def test_rates_of_a_process_are_operations_and_bytes_over_their_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times, given = iter([0.5, 0.25]), list[Any]()

    def median_s(action: Any) -> float:
        action()
        return next(times)

    def sums(rank: int, peer: Any, memory: int) -> dict[str, float]:
        given.extend([rank, peer, memory])
        return {"sum_bucket_s": 0.125}

    walls, own = iter([10.0, 14.0]), iter([1.0, 4.0])
    clock = SimpleNamespace(perf_counter=lambda: next(walls), process_time=lambda: next(own))
    for name, value in (("time", clock), ("_median_s", median_s), ("measure_sums", sums), ("_COPY_BYTES", 4096)):
        monkeypatch.setattr(this_machine, name, value)
    monkeypatch.setattr(this_machine, "socket", SimpleNamespace(socket=lambda fileno: f"socket {fileno}"))
    assert this_machine.measure_process(1, 5, 9) == {
        "flops": 2 * 512**3 / 0.5, "memory_bytes_per_s": 2 * 4096 / 0.25, "sum_bucket_s": 0.125, "core_share": 0.75,
    }  # fmt: skip
    assert given == [1, "socket 5", 9]


def test_an_action_is_repeated_for_a_second_and_its_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read before each round, and before and after the action, which takes 0.1, 0.5 and 0.3 s.
    moments = iter([0.0, 0.0, 0.0, 0.1, 0.2, 0.2, 0.7, 0.9, 0.9, 1.2, 1.2])
    monkeypatch.setattr(this_machine, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    done: list[int] = []
    assert this_machine._median_s(lambda: done.append(1)) == pytest.approx(0.3)
    assert len(done) == 3


def test_a_local_connection_is_timed_until_every_byte_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.0])
    monkeypatch.setattr(this_machine, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(this_machine, "_MESSAGE_BYTES", 1 << 16)
    assert this_machine._loopback() == 50 * (1 << 16) / 2


_PROCESS = """#!/bin/sh
echo
read line
test "$3" -lt {processes} || exit 1
test "$1" = -c -a -S "/proc/$$/fd/$4" -a -f "/proc/$$/fd/$5" || exit 1
printf '{{"rank": %s, "threads": [%s, %s, %s]}}' "$3" "$OMP_NUM_THREADS" "$OPENBLAS_NUM_THREADS" "$MKL_NUM_THREADS"
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that is started in place of Python."""
    program = tmp_path / "python"
    monkeypatch.setattr(this_machine, "sys", SimpleNamespace(executable=str(program)))
    program.touch(0o755)
    return program


def test_two_processes_of_one_thread_each_measure_at_once(program: Path) -> None:
    program.write_text(_PROCESS.format(processes=2), encoding="ascii")
    files = _open_files()
    assert this_machine._measure_processes() == [{"rank": rank, "threads": [1, 1, 1]} for rank in (0, 1)]
    assert _open_files() == files


def test_one_of_two_processes_that_fails_is_an_error(program: Path) -> None:
    program.write_text(_PROCESS.format(processes=1), encoding="ascii")
    with pytest.raises(UserError, match="--calibrate-here: a measuring process failed; its message is above"):
        this_machine._measure_processes()


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.ranks
def test_this_machine_is_measured_in_rates_above_zero() -> None:
    files = _open_files()
    found = measure_machine()
    assert _open_files() == files
    assert 0 < found["core_share"] <= 1.01
    assert found.keys() == {
        "core_share",
        "cores",
        "flops",
        "link_bytes_per_s",
        "memory_bytes_per_s",
        "sum_bucket_s",
        "sum_bytes_per_s",
    }
    assert found["flops"] > 1e8
    assert all(1e8 < found[f"{way}_bytes_per_s"] < 1e12 for way in ("memory", "link", "sum"))
    # A sum reads and writes memory as a copy does, with more arithmetic, and from another process's pages.
    assert 1 / 10 < found["sum_bytes_per_s"] / found["memory_bytes_per_s"] < 10
    assert 1e-6 < found["sum_bucket_s"] < 0.1
