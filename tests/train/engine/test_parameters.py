"""Starting from given parameters: by name, the classifier apart, everything else refused."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from configs.errors import UserError
from configs.load import ROOT, load_both
from configs.schema import EngineSettings, Loss, Model
from tests.engines import cpu_engine
from train.engine import build
from train.engine.init import initial_weights
from train.engine.mxnet.network import TrainedNetwork
from train.engine.parameters import load_parameters
from train.networks.arch import Network, build_network


def _model(num_classes: int) -> tuple[Model, Network]:
    model = Model(name="resnet8", num_classes=num_classes, image_size=16)
    return model, build_network("resnet8", num_classes=num_classes, image_size=16)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Write parameters and statistics of a network of ten classes as MXNet does."""
    model, table = _model(10)
    weights = initial_weights(table, model, seed=5)
    arrays: dict[str, Any] = {f"arg:{name}": mx.nd.array(weight) for name, weight in weights.items()}
    random = np.random.default_rng(0)
    for layer in table.layers:
        if layer.kind == "bn":
            for moment in ("mean", "var"):
                arrays[f"aux:{layer.name}_moving_{moment}"] = mx.nd.array(random.random(layer.out_channels) + 0.5)
    mx.nd.save(str(tmp_path / "ten.params"), arrays)
    return tmp_path / "ten.params", arrays


def test_all_but_another_classifier_comes_from_the_file(
    trained: tuple[Path, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    path, arrays = trained
    model, table = _model(3)
    drawn = initial_weights(table, model, seed=1)
    with caplog.at_level(logging.INFO):
        weights = load_parameters(path, table, drawn, cpu_engine().read_parameters)
    assert "; newly initialised: classifier_bias, classifier_weight" in caplog.text
    network = TrainedNetwork(
        table, model=model, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False
    )
    network.load_weights(weights)
    for name, held in network.read_weights().items():
        expected = drawn[name] if name.startswith("classifier") else arrays[f"arg:{name}"].asnumpy()
        np.testing.assert_array_equal(held, expected, err_msg=name)
    means = [array.asnumpy() for array in network.statistics]
    given = [array.asnumpy() for name, array in arrays.items() if name.startswith("aux:")]
    assert sorted(map(tuple, means)) == sorted(map(tuple, given))


def test_the_same_classes_take_the_classifier_too(trained: tuple[Path, dict[str, Any]]) -> None:
    path, arrays = trained
    model, table = _model(10)
    weights = load_parameters(path, table, initial_weights(table, model, seed=1), cpu_engine().read_parameters)
    np.testing.assert_array_equal(weights["classifier_weight"], arrays["arg:classifier_weight"].asnumpy())


def _missing(path: Path) -> None:
    path.unlink()


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _nameless(path: Path) -> None:
    mx.nd.save(str(path), [mx.nd.ones((2,))])


def _other_network(path: Path) -> None:
    mx.nd.save(str(path), {"stem_weight": mx.nd.ones((16, 1, 3, 3))})


def _another_order(path: Path) -> None:
    held = mx.nd.load(str(path))
    names = sorted(held, key=lambda name: name.partition(":")[2].rpartition("_")[2])
    mx.nd.save(str(path), {f"arg:theirs{number}_{name.rpartition('_')[2]}": held[name] for number, name in
                           enumerate(names)})  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_missing, "model.parameters: no file"),
        (_torn, "is no file of MXNet parameters"),
        (_nameless, "holds arrays without names"),
        (_another_order, "not the parameters of resnet8: stem_weight missing"),
        (
            _other_network,
            r"of resnet8: stem_weight \(16, 1, 3, 3\) \(wanted \(16, 3, 3, 3\)\), .* more",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    trained: tuple[Path, dict[str, Any]], spoil: Callable[[Path], None], message: str
) -> None:
    spoil(trained[0])
    model, table = _model(10)
    with pytest.raises(UserError, match=message) as caught:
        load_parameters(trained[0], table, initial_weights(table, model, seed=1), cpu_engine().read_parameters)
    assert "\n" not in str(caught.value)


def test_a_relative_folder_of_parameters_is_below_the_program_wherever_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.chdir(tmp_path)

    def load(path: Path, *_: object) -> dict[str, Any]:
        asked.append(path)
        return {}

    monkeypatch.setattr(build, "load_parameters", load)
    recipe, cluster = load_both("digits", "laptop", ["model.parameters=own/a.params", "cluster.paths.data=runs/data"])
    build._first_weights(cpu_engine(), recipe, cluster, build_network("resnet8", num_classes=10, image_size=32))
    assert asked == [ROOT / "runs/data/own/a.params"]


def test_of_an_error_of_many_lines_the_last_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: str) -> None:
        raise mx.base.MXNetError("Traceback:\n  [bt] (0) libmxnet.so\nMXNetError: invalid\n")

    monkeypatch.setattr(mx.nd, "load", load)
    with pytest.raises(UserError) as caught:
        cpu_engine().read_parameters(tmp_path / "a.params")
    told = f"{tmp_path / 'a.params'}: is no file of MXNet parameters (MXNetError: invalid); export it again"
    assert str(caught.value) == told


@pytest.mark.parametrize(("lost", "end"), [(5, "missing (wanted (16,)); only"), (6, " and 1 more; only")])
def test_no_more_than_five_tensors_that_do_not_fit_are_named(tmp_path: Path, lost: int, end: str) -> None:
    model, table = _model(10)
    drawn = initial_weights(table, model, seed=1)
    np.savez(tmp_path / "a.npz", **dict(list(drawn.items())[lost:]), **_statistics(table))
    with pytest.raises(UserError) as refused:
        load_parameters(tmp_path / "a.npz", table, drawn, cpu_engine().read_parameters)
    assert f"{end} the classifier may differ" in str(refused.value)
    assert str(refused.value).count("missing") == 5


def test_foreign_names_are_taken_in_the_order_of_the_layers_and_the_log_counts_what_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model, table), (ten, of_ten) = _model(3), _model(10)
    given = initial_weights(of_ten, ten, seed=5) | _statistics(of_ten)
    ordered: dict[str, np.ndarray] = {}
    for layer in of_ten.layers:
        ordered |= {
            name: given[name]
            for name in given
            if name.rpartition("_moving")[0] == layer.name or name.rpartition("_")[0] == layer.name
        }
    foreign = {f"theirs{number}_{name.rpartition('_')[2]}": each for number, (name, each) in enumerate(ordered.items())}
    np.savez(tmp_path / "a.npz", **foreign)
    with caplog.at_level(logging.INFO):
        loaded = load_parameters(
            tmp_path / "a.npz", table, initial_weights(table, model, seed=1), cpu_engine().read_parameters
        )
    assert f": {len(given) - 2} of {len(given)} tensors; newly initialised: classifier_" in caplog.text
    assert all(np.array_equal(loaded[name], given[name]) for name in given if not name.startswith("classifier"))


def _statistics(table: Network) -> dict[str, np.ndarray]:
    norms = [layer for layer in table.layers if layer.kind == "bn"]
    return {
        f"{each.name}_moving_{moment}": np.ones(each.out_channels, np.float32)
        for each in norms
        for moment in ("mean", "var")
    }
