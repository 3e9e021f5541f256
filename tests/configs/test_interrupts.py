"""Ctrl-C in a program that waits for another one, which gets it too: the other ends first, and one line tells of it."""

import signal
import subprocess
import sys

import pytest

from configs.arguments import exit_status
from configs.interrupts import ended_with_parent, interrupt_left_to_child

SLOW_TO_END = "import os, signal, sys, time\n"
SLOW_TO_END += (
    "signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.5), print('tidied up', flush=True), sys.exit()))\n"
)
SLOW_TO_END += "os.kill(os.getppid(), signal.SIGINT)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"


@pytest.mark.ranks
@pytest.mark.parametrize(("says_so", "line"), [(True, ""), (False, "stopped by Ctrl-C\n")])
def test_a_program_that_was_started_ends_by_itself_and_ctrl_c_is_told_once(
    says_so: bool, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        with interrupt_left_to_child(says_so=says_so):
            return subprocess.run([sys.executable, "-c", SLOW_TO_END], check=False).returncode

    before = signal.getsignal(signal.SIGINT)
    assert exit_status(work) == 130
    assert capfd.readouterr() == ("tidied up\n", line)
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.ranks
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_program_that_was_started_ends_with_a_parent_that_alone_is_told_to_end(number: signal.Signals) -> None:
    def work() -> int:
        with interrupt_left_to_child(says_so=True):
            ended.append(subprocess.run([sys.executable, "-c", told], check=False).returncode)
        return 0

    told = f"import os, time\nos.kill(os.getppid(), {number:d})\ntime.sleep(60)"
    before, ended = signal.getsignal(number), list[int]()
    with pytest.raises(SystemExit) as end:
        work()
    assert (end.value.code, ended, signal.getsignal(number)) == (128 + number, [-number], before)


@pytest.mark.ranks
def test_a_program_that_was_started_ends_when_its_parent_is_killed() -> None:
    command = ended_with_parent(["sh", "-c", "echo; exec sleep 600"])
    parent = f"import subprocess; subprocess.run({command})"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as started:
        assert started.stdout
        assert started.stdout.readline()
        started.kill()
        assert started.stdout.read() == b"", "whoever held the pipe has ended"
