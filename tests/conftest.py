"""What all tests share: which of them run, with which marks, and signals as on a terminal."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

from configs.load import ROOT
from configs.registry import has_engine
from launch.setup.gpu import NEEDS, search_gpus

pytest_plugins = ["tests.absent_engine", "tests.limits", "tests.programs", "tests.runs", "tests.sharing"]

# Where a container sets this, each process of the tests compiles all modules anew: 0.2 s of CPU for a program, 5 s for
# the tests (two-core machine, 2026-11). Hypothesis, whose 80 modules pytest rewrites as it does a test, comes after it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
_NOT_QUICK = {"gpu", "medium", "ranks", "scheduler", "slow"}


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a shell or nohup does to a job in its background: ignore Ctrl-C, SIGQUIT and SIGHUP, for children too.

    Properties have no deadline, as a busy machine can take a second for any example. In the quick loop, they are tried
    on fewer examples, and without the constants of this program's source, which Hypothesis collects for half a second
    in each process (two seconds in a new clone). OpenBLAS gets one thread, as two that wait for each other beside other
    processes were a sixth of the time of tests/logs.

    A sweep that predicts measures this machine first, which seems slow beside the other tests: what is measured here is
    not left to the user's next forecast.
    """
    from hypothesis import settings
    from hypothesis.internal.conjecture import providers

    settings.register_profile("usual", deadline=None)
    settings.register_profile("quick", parent=settings.get_profile("usual"), max_examples=25)
    settings.load_profile("usual")
    if config.option.markexpr == "quick":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        settings.load_profile("quick")
        providers._get_local_constants = lambda: providers._local_constants
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if not hasattr(config, "workerinput") and not DESCRIPTION.exists():
        config.add_cleanup(lambda: DESCRIPTION.unlink(missing_ok=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, nor look at these objects ever after: half a second a process.

    Later, it is collected after 20,000 new objects instead of 700, which was a fortieth of the quick tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Import MXNet as ranks do before a module of the tests imports it: a plain import takes 2.5 s more."""
    if find_spec("mxnet") is None:
        return
    if {"data", "train"} & set(module_path.parts) or "import mxnet" in module_path.read_text(encoding="utf-8"):
        from train.engine.mxnet.mxnet_import import import_mxnet

        import_mxnet()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = [{mark.name for mark in item.iter_markers()} for item in items]
    found = search_gpus()[0] if any("gpu" in each for each in names) else []
    able = {
        engine
        for engine, variants in NEEDS.items()
        if has_engine(engine) and any(needs.are_met_by(gpu) for needs in variants.values() for gpu in found)
    }
    for item, marks in zip(items, names, strict=True):
        if (mark := item.get_closest_marker("gpu")) and able.isdisjoint(mark.args):
            item.add_marker(pytest.mark.skip(reason=f"no GPU here that {' or '.join(mark.args)} has kernels for"))
        if _NOT_QUICK.isdisjoint(marks):
            item.add_marker(pytest.mark.quick)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-table", metavar="FILE", help="inject every fault in every phase, and write the outcomes")
    parser.addoption("--census-table", metavar="FILE", help="write what a step launches on a GPU under PyTorch")
    parser.addoption("--gpu-table", metavar="FILE", help="write what set-up and doctor say of each GPU and driver")
