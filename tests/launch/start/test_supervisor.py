"""How long ranks, servers and launchers are waited for at each stage of an end, by a clock of the test."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.start import local
from launch.start.local import Outcome, run_ranks
from tests.programs import is_running

pytestmark = pytest.mark.medium

STUBBORN = "trap '' TERM USR1 INT; touch {folder}/$RANK; exec sleep 600"
"""Whoever is started ignores the signals, too."""

Sent = list[tuple[float, int]]
Clock = Callable[[Callable[[], bool]], Sent]


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the function that starts a clock of 0.5 s a look as soon as something is so.

    It returns the list to which each signal to a rank is added with its time.
    """

    def begin(is_so: Callable[[], bool]) -> Sent:
        now_s, has_begun, send = [0.0], [False], os.killpg
        sent: Sent = []

        def sleep(_seconds: float) -> None:
            time.sleep(0.005)
            has_begun[0] = is_so() or has_begun[0]
            now_s[0] += 0.5 * has_begun[0]

        def killpg(process: int, number: int) -> None:
            if not sent or sent[-1] != (now_s[0], number):
                sent.append((now_s[0], number))
            send(process, number)

        monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
        monkeypatch.setattr(os, "killpg", killpg)
        return sent

    return begin


def _has_ended(pid_file: Path) -> bool:
    """Return whether the process that wrote its number into a file has ended, and may have been waited for."""
    number = pid_file.read_text(encoding="utf-8").strip() if pid_file.exists() else ""
    return number != "" and not is_running(number)


def test_ranks_beside_one_that_failed_have_eight_seconds_and_five_after_sigterm(tmp_path: Path, clock: Clock) -> None:
    sent = clock(lambda: _has_ended(tmp_path / "pid"))
    fails = f"until [ -e {tmp_path}/0 ]; do sleep 0.01; done; echo $$ >{tmp_path}/pid; exit 3"
    command = ["bash", "-c", f"[ $RANK = 0 ] || {{ {fails}; }}; {STUBBORN.format(folder=tmp_path)}"]
    assert run_ranks(command, 2, {}, kind="shared_memory") == Outcome(3, ((1, 3),))
    (_, continued), (asked_s, asked), (killed_s, killed), *_ = sent
    assert (continued, asked, killed) == (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL)
    assert 8 < asked_s <= 9
    assert killed_s - asked_s == 5.5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_once_and_ranks_that_stay_are_killed_after_their_time(
    number: int, tmp_path: Path, clock: Clock
) -> None:
    is_signalled: list[bool] = []

    def signalled() -> bool:
        if not is_signalled and (tmp_path / "0").exists() and (tmp_path / "1").exists():
            is_signalled.append(True)
            os.kill(os.getpid(), number)
        return bool(is_signalled)

    sent = clock(signalled)
    command = ["bash", "-c", STUBBORN.format(folder=tmp_path)]
    assert run_ranks(command, 2, {}, kind="shared_memory") == Outcome(128 + number, interrupted_by=number)
    (passed_on_s, passed_on), (killed_s, killed), *_ = sent
    assert (passed_on, killed) == (number, signal.SIGKILL)
    assert killed_s - passed_on_s == 60.5


@pytest.mark.parametrize("is_pressed_again", [True, False])
def test_ctrl_c_is_a_stop_without_a_time_limit_until_a_second_one_or_the_end_of_a_rank(
    is_pressed_again: bool, tmp_path: Path, clock: Clock
) -> None:
    """Both ranks ignore the stop. After 100 s, Ctrl-C is pressed again, or rank 1 ends."""
    looks: list[None] = []

    def press() -> bool:
        if (tmp_path / "0").exists() and (tmp_path / "1").exists():
            looks.append(None)
        if len(looks) == 1 or (len(looks) == 200 and is_pressed_again):
            os.kill(os.getpid(), signal.SIGINT)
        if len(looks) == 200 and not is_pressed_again:
            (tmp_path / "end").touch()
        return bool(looks)

    sent = clock(press)
    ends = f"while [ $RANK = 1 -a ! -e {tmp_path}/end ]; do sleep 0.05; done; [ $RANK = 1 ] || exec"
    waits = STUBBORN.format(folder=tmp_path).replace("exec", ends)
    outcome = run_ranks(["bash", "-c", waits], 2, {}, kind="shared_memory")
    (told_s, told), (killed_s, killed), *_ = sent
    assert (told, killed) == (signal.SIGTERM, signal.SIGKILL)
    if is_pressed_again:
        assert outcome == Outcome(130, interrupted_by=signal.SIGINT)
        assert 99 <= killed_s - told_s <= 101
    else:
        assert outcome == Outcome(137, stopped_by=signal.SIGINT)
        assert killed_s - told_s >= 160


@pytest.mark.parametrize("interrupts", [False, True], ids=["a rank failed", "Ctrl-C twice"])
def test_a_rank_that_cannot_be_killed_is_left_behind_after_fifteen_seconds_and_named(
    interrupts: bool, tmp_path: Path, clock: Clock,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The kernel takes SIGKILL for a frozen process, or one that waits for a file server, and does nothing."""
    presses: list[None] = []

    def begun() -> bool:
        if interrupts and len(presses) < 2 and (tmp_path / "0").exists() and (tmp_path / "1").exists():
            presses.append(None)
            os.kill(os.getpid(), signal.SIGINT)
        return bool(presses) if interrupts else _has_ended(tmp_path / "pid")

    sent, send = clock(begun), os.killpg
    stuck: list[int] = []

    def killpg(process: int, number: int) -> None:
        stuck.append(process)
        send(process, 0 if number == signal.SIGKILL and process == stuck[0] else number)

    monkeypatch.setattr(os, "killpg", killpg)
    dies = "true" if interrupts else f"[ $RANK = 0 ] || {{ echo $$ >{tmp_path}/pid; exit 3; }}"
    waits = f"until [ $RANK = 0 -o -e {tmp_path}/0 ]; do sleep 0.01; done"
    command = ["bash", "-c", f"{waits}; {dies}; {STUBBORN.format(folder=tmp_path)}"]
    expected = Outcome(130, interrupted_by=signal.SIGINT) if interrupts else Outcome(3, ((1, 3),))
    assert run_ranks(command, 2, {}, kind="shared_memory") == expected
    told = capsys.readouterr().err
    assert told.startswith(f"warning: rank 0 (process {stuck[0]}) cannot be killed, and is left behind: it is frozen, ")
    assert told.count("\n") == 1
    kills_s = [seconds for seconds, number in sent if number == 0]
    assert kills_s[-1] - kills_s[0] == 15.5
    send(stuck[0], signal.SIGKILL)


def test_ranks_that_lost_a_server_are_told_at_once_and_have_the_time_of_a_failure(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = clock(lambda: _has_ended(tmp_path / "pid"))
    server = f"until [ -e {tmp_path}/0 ]; do sleep 0.01; done; echo $$ >{tmp_path}/pid; exit 4"
    script = f"[ $DMLC_ROLE = scheduler ] && exec sleep 60; {server}"
    monkeypatch.setattr(local, "command_of", lambda _program: ["bash", "-c", script])
    command = ["bash", "-c", STUBBORN.format(folder=tmp_path)]
    assert run_ranks(command, 1, {}, kind="parameter_server", servers=1) == Outcome(4, lost_server=4)
    (told_s, told), (killed_s, killed), *_ = sent
    assert (told, killed) == (signal.SIGTERM, signal.SIGKILL)
    assert (told_s <= 1, killed_s - told_s) == (True, 8.5)


def test_a_rank_has_the_variables_and_open_files_of_its_start_and_a_session_of_its_own(tmp_path: Path) -> None:
    asks = "stat -Lc %F /proc/self/fd/$RANK_STORE_FD; echo $$; cut -d' ' -f6 /proc/$$/stat"
    script = f"{asks}; echo $RANK $MASTER_ADDR $A $B $OMP_PROC_BIND"
    command = ["bash", "-c", f"({script}) >{tmp_path}/$RANK 2>&1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A", "of all")
        patch.setenv("B", "left")
        patch.setenv("OMP_PROC_BIND", "to the same core")
        assert run_ranks(command, 2, {"A": "own"}, kind="torch_distributed") == Outcome(0)
    for rank, file in enumerate(("socket", "directory")):
        lines = (tmp_path / str(rank)).read_text(encoding="utf-8").splitlines()
        kind, process, session, told = (line.strip() for line in lines)
        assert (kind, told) == (file, f"{rank} 127.0.0.1 own left")
        assert session == process
