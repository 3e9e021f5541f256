"""How the processes of pytest-xdist share the tests: in how many, in which order, and which tests stay together.

A test goes to the next process that is free, long ones first. The tests of a group, by the mark ``xdist_group`` of
their files, go to one process, because they share what took long to start. pytest-xdist's own ``loadgroup`` would add
the group to the tests' names, and then ``--last-failed`` without it finds none of them.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

NUM_WORKERS = 4
"""Two cores, and half of the time long tests wait: for schedulers, limits, other processes and the disk. Each process
takes a gigabyte of memory."""

NUM_QUICK_WORKERS = 2
"""Quick tests compute all the time, and a third process would take ten seconds of a core to collect its tests."""

FEW_FILES = 15
"""So many files are tested in one process: a second one takes about five seconds to collect its tests."""

_LONG_S = 1.0
"""What ``--durations`` may list of a test's set-up and clean-up."""

_LONGEST_FIRST = ("scheduler", "slow", "ranks", "medium")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run all tests, or a large folder of them, in several processes, unless the command line says how."""
    option = config.option
    if not hasattr(option, "numprocesses") or "PYTEST_XDIST_WORKER" in os.environ:
        return  # there is no xdist, or this is one of its workers
    one_only = option.tx or option.usepdb or option.collectonly or option.keyword or option.capture == "no"
    if option.numprocesses is None and not one_only and _num_files(config.args) > FEW_FILES:
        option.numprocesses = NUM_QUICK_WORKERS if option.markexpr == "quick" else NUM_WORKERS
    if option.numprocesses and option.dist == "no":
        option.dist = "loadgroup"


def _num_files(arguments: list[str]) -> int:
    """Count the test files in the folders among the arguments."""
    return sum(len(list(Path(word).rglob("test_*.py"))) for word in arguments)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first: at the end, they would leave all processes but one idle."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)  # stable, so that the tests of a module stay together


def _turn(item: pytest.Item) -> int:
    marks = {mark.name for mark in item.iter_markers()}
    return next((turn for turn, name in enumerate(_LONGEST_FIRST) if name in marks), len(_LONGEST_FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report what the terminal shows: to send that set-up and clean-up passed takes longer than most tests."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration > _LONG_S:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what hands the tests to the processes."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Sharing(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out a test at a time, or all tests of a group."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.partition("::")[0]) or nodeid

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """Forget what is done: the base class counts all of a process's tests anew after each."""
            super().mark_test_complete(node, item_index, duration)
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    return Sharing(config, log)


@cache
def group_of(file: Path) -> str | None:
    """Return the name in the ``xdist_group`` mark of a file's tests, if there is one."""
    found = re.search(r'^pytestmark = .*xdist_group\("(\w+)"\)', file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None
