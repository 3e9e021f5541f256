"""How long ranks, servers and launchers are waited for at each stage of an end, by a clock of the test."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.start import launcher_signals, local, outlived
from launch.start.local import Outcome
from launch.start.rendezvous import RankStart


class _Process:
    """A rank or a server of which only the status counts."""

    def __init__(self, status: int | None = None) -> None:
        self.pid, self.returncode = 0, status

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        assert self.returncode is not None
        return self.returncode


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Let time pass in steps of 0.5 s, and return the list to which each signal to the ranks is added with its time."""
    clock, found = [0.0], []

    def sleep(_seconds: float) -> None:
        clock[0] += 0.5

    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(local, "_send", lambda _processes, number: found.append((clock[0], number)))
    return found


def _wait(
    sent: list[tuple[float, int]], ranks: list[Any], dies_by: int, received: int | None = None, *,
    servers: tuple[Any, ...] = (), grace_s: float = 8.0,
) -> Outcome:  # fmt: skip
    """Supervise ranks of which those that still run die by a signal of this number."""

    def ended() -> int | None:
        if any(number == dies_by for _, number in sent):
            for rank in ranks:
                rank.returncode = -dies_by if rank.returncode is None else rank.returncode
        return received

    return local._Supervisor(ranks, ended, servers, grace_s).wait()


def test_ranks_beside_one_that_failed_have_eight_seconds_and_five_after_sigterm(sent: list[tuple[float, int]]) -> None:
    outcome = _wait(sent, [_Process(), _Process(3)], signal.SIGKILL, grace_s=local.GRACE_S)
    assert outcome == Outcome(3, ((1, 3),))
    assert sent[:2] == [(8.5, signal.SIGTERM), (14.0, signal.SIGKILL)]


@pytest.mark.parametrize(
    ("received", "patience_s"), [(signal.SIGTERM, 60.0), (signal.SIGUSR1, 60.0), (signal.SIGINT, 2.0)]
)
def test_a_signal_is_passed_on_once_and_ranks_that_stay_are_killed_after_their_time(
    received: int, patience_s: float, sent: list[tuple[float, int]]
) -> None:
    _wait(sent, [_Process(), _Process()], signal.SIGKILL, received, grace_s=2.0)
    assert sent[:2] == [(0.0, received), (patience_s + 0.5, signal.SIGKILL)]


def test_ranks_that_lost_a_server_are_told_at_once_and_have_the_time_of_a_failure(
    sent: list[tuple[float, int]],
) -> None:
    outcome = _wait(sent, [_Process()], signal.SIGKILL, servers=(_Process(0), _Process(4), _Process(5)), grace_s=2.0)
    assert outcome == Outcome(4, lost_server=4)
    assert sent[:2] == [(0.0, signal.SIGTERM), (2.5, signal.SIGKILL)]


def test_what_ranks_have_started_is_killed_with_them_whatever_ends_the_wait(sent: list[tuple[float, int]]) -> None:
    assert _wait(sent, [_Process(0)], signal.SIGKILL) == Outcome(0)
    assert sent == [(0.0, signal.SIGKILL)]

    def interrupt() -> int | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local._Supervisor([_Process()], interrupt, (), 8.0).wait()  # type: ignore[list-item]
    assert sent == [(0.0, signal.SIGKILL)] * 2


@pytest.mark.parametrize(
    ("statuses", "status"),
    [((3, -9), 137), ((-9, 3), 137), ((75, 1), 1), ((75, 75), 75), ((0, 75), 75), ((255, -15), 255)],
)
def test_the_status_of_ranks_is_the_largest_of_those_that_failed(statuses: tuple[int, int], status: int) -> None:
    ranks: list[Any] = [_Process(each) for each in statuses]
    outcome = local._Supervisor(ranks, lambda: None, (), 8.0)._outcome()
    shell = [128 - each if each < 0 else each for each in statuses]
    assert outcome == Outcome(status, tuple((rank, each) for rank, each in enumerate(shell) if each))


@pytest.mark.parametrize(
    ("statuses", "number", "outcome"),
    [
        ((75, -15), signal.SIGTERM, Outcome(75, stopped_by=signal.SIGTERM)),
        ((0, 0), signal.SIGUSR1, Outcome(0, stopped_by=signal.SIGUSR1)),
        ((75, -9), signal.SIGTERM, Outcome(143, interrupted_by=signal.SIGTERM)),
        ((75, -15), signal.SIGUSR1, Outcome(138, interrupted_by=signal.SIGUSR1)),
        ((0, 75), signal.SIGINT, Outcome(130, interrupted_by=signal.SIGINT)),
    ],
)
def test_a_stop_is_one_if_every_rank_kept_its_state_or_had_not_begun(
    statuses: tuple[int, int], number: int, outcome: Outcome
) -> None:
    ranks: list[Any] = [_Process(each) for each in statuses]
    assert local._Supervisor(ranks, lambda: number, (), 8.0)._outcome() == outcome


def test_a_launcher_that_lingers_has_the_time_of_the_local_one_and_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outlived.LINGER_S == local.GRACE_S + local.KILL_S == 13
    clock_s, kills = [0.0], []
    (tmp_path / "failure_3.json").write_text('{"rank": 3, "status": 1}', encoding="utf-8")
    monkeypatch.setattr(outlived, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))

    def kill() -> bool:
        kills.append(clock_s[0])
        return len(kills) > 1

    watch = outlived.OutlivedLauncher(tmp_path, kill)
    for clock_s[0] in (5.0, 10.0, 18.0, 18.5):
        watch.look()
    assert kills == []
    assert capsys.readouterr().err == ""
    for clock_s[0] in (19.5, 21.0):
        watch.look()
    assert kills == [19.5, 21.0]
    assert capsys.readouterr().err == "the launcher still ran 13 s after a rank had failed, and was killed\n"


def test_only_a_closed_terminal_takes_the_output_away(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[None] = []
    monkeypatch.setattr(launcher_signals, "_leave_terminal", lambda: left.append(None))
    with launcher_signals.forwarded_signals() as last_signal:
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert last_signal() == number
        assert left == []
        os.kill(os.getpid(), signal.SIGHUP)
    assert left == [None]


def test_a_rank_has_the_variables_and_open_files_of_its_start_and_a_session_of_its_own(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    start = RankStart({"RANK": "3", "A": "of the start"}, (writing,))
    script = f'echo "$RANK $A $B" >&{writing}; ps -o sid= -p $$ | tr -d " " >{tmp_path}/session'
    with local._started(["bash", "-c", script], {**os.environ, "A": "of all", "B": "left"}, start) as process:
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as output:
            assert output.read() == "3 of the start left\n"
        assert process.wait() == 0
    assert int((tmp_path / "session").read_text(encoding="utf-8")) == process.pid
