"""An engine that the environment lacks is refused in one line that says what to do."""

import pytest

from configs import registry
from configs.errors import ConfigError
from configs.load import ROOT, load_cluster
from configs.registry import (
    ENGINES,
    gradient_precision,
    installed_engine,
    possible_precisions,
    require_engine,
)


def _only(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: object() if name in packages else None)


def test_the_first_installed_engine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for packages, name in ((("mxnet", "torch"), "mxnet"), (("torch",), "torch"), ((), "mxnet")):
        _only(monkeypatch, *packages)
        assert installed_engine() == name


def test_a_shipped_cluster_of_gpus_is_the_same_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a forecast for it is."""
    for path in (ROOT / "configs" / "clusters").glob("*.yaml"):
        found = []
        for packages in (("mxnet", "torch"), ("torch",)):
            _only(monkeypatch, *packages)
            found.append(load_cluster(path.stem))
        assert found[0].device == "cpu" or found[0] == found[1], path


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


@pytest.mark.parametrize("missing", [None, "avx512f", "avx512bw", "avx512dq", "avx512vl"])
def test_mxnet_has_bfloat16_on_cpus_with_all_of_avx512(missing: str | None) -> None:
    flags = {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"} - {missing}
    assert possible_precisions("mxnet", flags) == (("float32",) if missing else ("float32", "bfloat16"))
    assert possible_precisions("torch", flags) == ("float32", "bfloat16")


def test_only_the_bfloat16_of_mxnet_leaves_gradients_float32() -> None:
    pairs = [("mxnet", "bfloat16"), ("mxnet", "float16"), ("mxnet", "float32"), ("torch", "bfloat16")]
    assert [gradient_precision(*each) for each in pairs] == ["float32", "float16", "float32", "bfloat16"]


def test_waits_stand_in_for_every_engine_and_are_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, "mxnet")
    with pytest.raises(ConfigError, match=r"allowed: mxnet in this environment; .*adds PyTorch, or train by .*=mxnet$"):
        require_engine("torch")
    for package in ("mxnet", "torch"):  # whose arrays they reduce
        _only(monkeypatch, package)
        require_engine("timed")
