"""What all tests share: which of them run where and with which marks, and signals as on a terminal."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launch.setup.gpu import NEEDS, find_gpus

pytest_plugins = ["tests.absent_engine", "tests.limits", "tests.runs"]

# Where a container sets this, each process of the tests compiles all modules anew: 0.2 s of CPU for a program, 5 s for
# the tests (two-core machine, 2026-11).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

NUM_WORKERS = 3
"""Processes for all tests: two cores, and a third of the time tests wait for schedulers, limits and processes."""

NUM_QUICK_WORKERS = 2
"""Quick tests do not wait, and each process takes seconds to collect them."""

FEW_FILES = 15
"""So many files are tested in one process: a second one takes about five seconds to collect its tests."""

_NOT_QUICK = ("gpu", "ranks", "scheduler", "slow")
_LONGEST_FIRST = ("scheduler", "slow", "ranks")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run all tests, or a large folder of them, in two processes, unless the command line says how."""
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


def pytest_configure() -> None:
    """Undo what a shell or nohup does to a job in its background: ignore Ctrl-C and SIGHUP, for its children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Import MXNet as ranks do before a module of the tests imports it: a plain import takes 2.5 s more."""
    if find_spec("mxnet") is None:
        return
    if {"data", "train"} & set(module_path.parts) or "import mxnet" in module_path.read_text(encoding="utf-8"):
        from train.engine.mxnet.mxnet_import import import_mxnet

        import_mxnet()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not any(map(NEEDS["mxnet"].are_met_by, find_gpus())):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here that MXNet 1.9.1 has kernels for"))
    for item in items:
        if not any(item.get_closest_marker(name) for name in _NOT_QUICK):
            item.add_marker(pytest.mark.quick)
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)  # stable, so that the tests of a module stay together


def _turn(item: pytest.Item) -> int:
    """Return when a test's turn comes where two processes share the tests: long ones at the end would leave one idle.

    All tests of a group go to one process, from the place of the first on.
    """
    return next(
        (turn for turn, name in enumerate(_LONGEST_FIRST) if item.get_closest_marker(name)), len(_LONGEST_FIRST)
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-table", metavar="FILE", help="inject every fault in every phase, and write the outcomes")
    parser.addoption("--gpu-table", metavar="FILE", help="write what set-up and doctor say of each GPU and driver")
