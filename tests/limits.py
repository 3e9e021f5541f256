"""A time limit on every test, which ends the processes that the test started as well.

pytest-timeout by itself interrupts only the test: the ranks would run on, and ``with subprocess.Popen(...)`` would wait
for them for ever.
"""

import faulthandler
import os
import re
import signal
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

QUICK_S = 2.0
"""CPU time of a quick test, at most; five times that of the longest, as some machines are slow or busy."""

_OWNER = "PYTEST_OWNER"
"""Environment variable with the process ID of this pytest, since several may run the same test on one machine."""

_AGAIN_S = 30.0
"""After this time the limit strikes again, because cleaning up may hang too."""

_HOPELESS_S = 60.0
"""So long after the limit pytest ends itself: a main thread that hangs in C code never handles the signal."""

_arm_key = pytest.StashKey[Callable[[], None]]()
_struck_key = pytest.StashKey[float]()
_stderr_key = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    os.environ[_OWNER] = str(os.getpid())
    config.stash[_stderr_key] = os.dup(2)  # pytest points 2 elsewhere while a test runs


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Replace pytest-timeout's timer by one that kills the test's processes before it interrupts the test."""
    plugin: Any = item.config.pluginmanager.getplugin("timeout")

    def strike(_number: int, _frame: object) -> None:
        item.stash[_struck_key] = settings.timeout
        end_processes(os.environ.get("PYTEST_CURRENT_TEST", ""))
        plugin.timeout_sigalrm(item, settings)

    def arm() -> None:
        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN_S)
        faulthandler.dump_traceback_later(
            settings.timeout + _HOPELESS_S, exit=True, file=item.config.stash[_stderr_key]
        )

    def cancel() -> None:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # pytest-timeout calls it
    item.stash[_arm_key] = arm
    arm()
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Warn of a test that counts as quick and is not, by the time of processors, which other work does not lengthen."""
    before = os.times()
    result = yield
    spent_s = sum(os.times()[:4]) - sum(before[:4])
    if item.get_closest_marker("quick") and spent_s > QUICK_S:
        words = f"{item.nodeid} takes {spent_s:.1f} s of CPU time: mark it `ranks` if it starts programs, else `medium`"
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # an error raised here would end the whole session
            item.warn(pytest.PytestWarning(words))
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start the clock anew, since pytest-timeout stops it when a test has failed."""
    if arm := item.stash.get(_arm_key, None):
        arm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the processes that a failed test has left, so that they do not disturb the tests after it.

    A test fails at its limit also if the program under test caught the error of the limit, as that of a rank.
    Processes of a failed set-up stay: a scheduler's daemons may be among them, which other tests of the module need.
    """
    report = yield
    if call.when == "call" and report.passed and (limit_s := item.stash.get(_struck_key, None)):
        report.outcome, report.longrepr = "failed", f"took longer than {limit_s:g} s, and went on after the limit"
    if report.failed and call.when == "call" and not item.config.option.usepdb:
        end_processes(f"{item.nodeid} ({call.when})")
    return report


def end_processes(current_test: str) -> None:
    """Kill all processes, in whatever session, that this pytest started while PYTEST_CURRENT_TEST was this."""
    kill_processes_with({_OWNER: str(os.getpid()), "PYTEST_CURRENT_TEST": current_test})


def kill_processes_with(variables: Mapping[str, str]) -> None:
    """Kill all processes that were given these environment variables, and those that they start meanwhile."""
    while victims := [pid for pid in processes_with(variables) if pid != os.getpid()]:
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_like(pattern: str) -> list[int]:
    """List the other processes of whose command line a part matches a regular expression; a zombie has none any more.

    As ``pgrep -f``, which a bare machine does not have and which takes ten times longer.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().removesuffix(b"\0").replace(b"\0", b" ").decode(errors="replace")
            if re.search(pattern, words) and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return sorted(found)


def processes_with(variables: Mapping[str, str]) -> list[int]:
    """List the processes that were given all these environment variables; a zombie has none any more."""
    wanted, found = {f"{name}={value}".encode() for name, value in variables.items()}, []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found
