"""Skips tests that need a GPU where MXNet can use none."""

from __future__ import annotations

import pytest

from launch.setup.gpu import find_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not any(gpu.is_supported for gpu in find_gpus()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU here that MXNet 1.9.1 has kernels for"))
