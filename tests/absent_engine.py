"""Skips the tests that import an engine which this environment does not have: whole modules, or single tests.

Nothing has to be marked. A module of the program that imports an engine needlessly would be skipped too; the contracts
of `lint-imports` name the few modules that may.
"""

import re
from collections.abc import Generator
from importlib.util import find_spec

import pytest

_ENGINES = {"horovod": "mxnet", "mxnet": "mxnet", "torch": "torch"}
_ABSENT = {package: engine for package, engine in _ENGINES.items() if find_spec(package) is None}
"""Package -> the engine whose set-up installs it."""


def _reason(package: str) -> str:
    return f"{package} is not installed: ./run.sh setup --engine {_ABSENT[package]}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that imports an absent engine."""
    report = yield
    if report.failed and (found := re.search(r"No module named '(\w+)", str(report.longrepr))) and found[1] in _ABSENT:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {_reason(found[1])}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """Skip a test whose fixtures import an absent engine."""
    yield from _skipping()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip a test that imports an absent engine."""
    yield from _skipping()


def _skipping() -> Generator[None, None, None]:
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _ABSENT:
            pytest.skip(_reason(package))
        raise
