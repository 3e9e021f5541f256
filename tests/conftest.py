"""What all tests share: no test for a GPU where MXNet can use none; Ctrl-C as on a terminal."""

from __future__ import annotations

import signal

import pytest

from launch.setup.gpu import find_gpus


def pytest_configure() -> None:
    """Undo what a shell does to a job in its background: ignore Ctrl-C, for its children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not any(gpu.is_supported for gpu in find_gpus()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here that MXNet 1.9.1 has kernels for"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-table", metavar="FILE", help="inject every fault in every phase, and write the outcomes")
