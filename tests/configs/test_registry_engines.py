"""An engine that the environment lacks is refused in one line that says what to do."""

from __future__ import annotations

import pytest

from configs import registry
from configs.errors import ConfigError
from configs.networks import IMAGE_SIZES
from configs.registry import ENGINES, installed_engine, require_engine


def _only(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: object() if name in packages else None)


def test_the_first_installed_engine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for packages, name in ((("mxnet", "torch"), "mxnet"), (("torch",), "torch"), ((), "mxnet")):
        _only(monkeypatch, *packages)
        assert installed_engine() == name


def test_an_engine_that_is_not_installed_is_refused_with_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, "torch")
    require_engine("torch")
    with pytest.raises(ConfigError) as refused:
        require_engine("mxnet")
    assert str(refused.value) == (
        "engine.name: got 'mxnet', allowed: torch in this environment; ./run.sh setup --engine mxnet adds MXNet, "
        "or train by --set cluster.engine.name=torch"
    )
    _only(monkeypatch)
    with pytest.raises(ConfigError, match="allowed: none in this environment"):
        require_engine(next(iter(ENGINES)))


def test_each_engine_computes_in_these_types_and_layouts() -> None:
    told = {
        name: (entry.precisions, entry.cpu_precisions, entry.layouts, entry.cpu_layouts)
        for name, entry in ENGINES.items() if entry.computes
    }  # fmt: skip
    both = ("NCHW", "NHWC")
    assert told["mxnet"] == (("float32", "float16"), ("float32",), both, ("NCHW",))
    assert told["torch"] == (("float32", "float16", "bfloat16"), ("float32", "bfloat16"), both, both)


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_residual_networks_take_images_of_8_to_1024_pixels(depth: int) -> None:
    assert IMAGE_SIZES[f"resnet{depth}"] == (8, 1024)
