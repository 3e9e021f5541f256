"""Starting from given parameters: by name or by order, the classifier apart, everything else refused."""

import logging
import pickle
from itertools import product
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from configs.errors import UserError
from configs.load import ROOT, load_both
from configs.plan import plan_run
from configs.schema import Model
from logs.checkpoints import CheckpointFolder, SavedState
from tests.engines import cpu_engine, randomize
from tests.torchvision import MODULES, of_pytorch
from train.engine.build import build_model
from train.engine.init import initial_weights
from train.engine.parameters import load_parameters
from train.networks.arch import Network, build_network


def _table(num_classes: int) -> tuple[Network, dict[str, np.ndarray]]:
    """Give a table and its drawn weights."""
    table = build_network("resnet8", num_classes=num_classes, image_size=16)
    return table, initial_weights(table, Model(name="resnet8", num_classes=num_classes, image_size=16), seed=1)


@pytest.fixture(scope="module")
def trained() -> dict[str, np.ndarray]:
    """Return parameters and statistics of a network of ten classes, in the order of its layers."""

    class Held:
        def load_weights(self, _: object) -> None:
            pass

    table, drawn = _table(10)
    given = randomize(Held(), table, {name: each + 1 for name, each in drawn.items()})
    names = [name for layer in table.layers for name in given if name.removeprefix(layer.name) in _SUFFIXES]
    assert len(names) == len(given)
    return {name: given[name] for name in names}


_SUFFIXES = ("_weight", "_bias", "_gamma", "_beta", "_moving_mean", "_moving_var")


def _write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write arrays in the format that the ending of the path names."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file({name: np.ascontiguousarray(each) for name, each in arrays.items()}, path)
    elif path.suffix == ".ckpt":
        # Statistics are those of two ranks, of which an evaluation takes the mean.
        statistics = {name: each for name, each in arrays.items() if "_moving_" in name}
        held = {f"weights/{name}": each for name, each in arrays.items() if name not in statistics}
        held |= {f"statistics/{name}": np.stack([0.5 * each, 1.5 * each]) for name, each in statistics.items()}
        written = CheckpointFolder(path.parent).write(1, SavedState({}, held), keep=1)
        return written.rename(path)
    elif path.suffix == ".onnx":
        onnx = pytest.importorskip("onnx")
        constants = [onnx.numpy_helper.from_array(values, name) for name, values in arrays.items()]
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "own", [], [], constants)), path)
    elif path.suffix == ".params":
        mx = pytest.importorskip("mxnet")
        kinds = {name: "aux" if "_moving_" in name else "arg" for name in arrays}
        mx.nd.save(str(path), {f"{kinds[name]}:{name}": mx.nd.array(values) for name, values in arrays.items()})
    else:
        torch = pytest.importorskip("torch")
        # As of a network in DistributedDataParallel.
        torch.save({f"module.{name}": torch.tensor(values) for name, values in arrays.items()}, path)
    return path


def _load(path: Path, num_classes: int = 10) -> dict[str, np.ndarray]:
    table, drawn = _table(num_classes)
    return load_parameters(path, table, drawn)


@pytest.mark.parametrize("ending", [".npz", ".ckpt", ".onnx", ".safetensors", ".pt", ".params"])
def test_every_tensor_but_those_of_another_classifier_comes_from_the_file(
    ending: str, trained: dict[str, np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _write(tmp_path / f"ten{ending}", trained)
    whole = _load(path)
    assert whole.keys() == trained.keys()
    assert all(np.array_equal(whole[name], values) for name, values in trained.items())
    assert all(values.flags.writeable for values in whole.values())
    with caplog.at_level(logging.INFO):
        loaded = _load(path, num_classes=3)
    told = f"weights from {path}: {len(trained) - 2} of {len(trained)} tensors; the classifier has another shape"
    assert f"{told} and is re-initialised: classifier_bias, classifier_weight" in caplog.text
    _, drawn = _table(3)
    for name, values in loaded.items():
        np.testing.assert_array_equal(values, (drawn if name.startswith("classifier") else trained)[name], name)


def test_a_classifier_of_another_shape_is_drawn_as_a_whole(trained: dict[str, np.ndarray], tmp_path: Path) -> None:
    wider = trained | {"classifier_weight": np.zeros((10, 7), np.float32)}
    loaded = _load(_write(tmp_path / "wider.npz", wider))
    _, drawn = _table(10)
    for name in ("classifier_weight", "classifier_bias"):
        np.testing.assert_array_equal(loaded[name], drawn[name])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name_where_they_are_taken(
    value: float, trained: dict[str, np.ndarray], tmp_path: Path
) -> None:
    for name in ("stage1_block1_conv1_bn_moving_var", "classifier_bias"):
        spoilt = trained[name].copy()
        spoilt[-1] = value
        path = _write(tmp_path / f"{name}.npz", trained | {name: spoilt})
        with pytest.raises(UserError, match=rf"{name}\.npz: holds NaN or infinities: {name}; give"):
            _load(path)
    assert np.isfinite(_load(path, num_classes=3)["classifier_bias"]).all()  # which is drawn anew


def test_negative_variances_are_refused_by_name(trained: dict[str, np.ndarray], tmp_path: Path) -> None:
    name = "stage1_block1_conv1_bn_moving_var"
    path = _write(tmp_path / "v.npz", trained | {name: -trained[name]})
    with pytest.raises(UserError, match=rf"v\.npz: holds negative variances: {name}; write"):
        _load(path)


def test_foreign_names_are_taken_in_the_order_of_the_layers_and_other_shapes_are_refused(
    trained: dict[str, np.ndarray], tmp_path: Path
) -> None:
    foreign = {f"theirs{number}_{name.rpartition('_')[2]}": each for number, (name, each) in enumerate(trained.items())}
    loaded = _load(_write(tmp_path / "foreign.npz", foreign))
    assert all(np.array_equal(loaded[name], values) for name, values in trained.items())
    shuffled = dict(sorted(foreign.items(), key=lambda item: item[0].rpartition("_")[2]))
    with pytest.raises(UserError, match="not the parameters of resnet8: stem_weight missing"):
        _load(_write(tmp_path / "shuffled.npz", shuffled))
    grey = trained | {"stem_weight": trained["stem_weight"][:, :1]}
    with pytest.raises(UserError, match=r"resnet8: stem_weight \(16, 1, 3, 3\) \(wanted \(16, 3, 3, 3\)\)"):
        _load(_write(tmp_path / "grey.npz", grey))


def test_other_names_of_pytorch_are_taken_in_the_order_of_the_layers(
    trained: dict[str, np.ndarray], tmp_path: Path
) -> None:
    modules = {layer: f"features.{number}" for number, layer in enumerate(MODULES)}
    loaded = _load(_write(tmp_path / "a.npz", of_pytorch(trained, modules)))
    assert all(np.array_equal(loaded[name], values) for name, values in trained.items())


TEXTS = b"no such file", pickle.dumps({"a": 1}), b"PK\x03\x04 cut off"


@pytest.mark.parametrize(("ending", "content"), [(".npz", b""), *product((".npz", ".onnx", ".safetensors"), TEXTS)])
def test_another_file_is_refused_in_one_line_and_closed(ending: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"file\..*: is .*; (copy|export|give)") as refused:
        _load(path)
    assert str(path) not in [each.path for each in psutil.Process().open_files()]
    assert "\n" not in str(refused.value)


def test_damage_within_a_file_is_refused_in_one_line(trained: dict[str, np.ndarray], tmp_path: Path) -> None:
    packed, onnx = tmp_path / "packed.npz", pytest.importorskip("onnx")
    np.savez_compressed(packed, **trained)
    content = packed.read_bytes()
    packed.write_bytes(content[: len(content) // 2] + b"\xff" * 40 + content[len(content) // 2 + 40 :])
    short, model = tmp_path / "short.onnx", onnx.load(str(_write(tmp_path / "whole.onnx", trained)))
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    short.write_bytes(model.SerializeToString())
    for path in (packed, short):
        with pytest.raises(UserError, match=r"is damaged, .* \(.*\); copy or download it again, or write it anew$"):
            _load(path)


@pytest.mark.parametrize("kind", ["complex64", "datetime64[s]", "str"])
def test_arrays_of_other_than_real_numbers_are_no_weights(
    kind: str, trained: dict[str, np.ndarray], tmp_path: Path
) -> None:
    other = np.zeros(trained["stem_weight"].shape, kind)
    with pytest.raises(UserError, match="not the parameters of resnet8: stem_weight missing"):
        _load(_write(tmp_path / "other.npz", trained | {"stem_weight": other}))


def test_a_file_of_mxnets_that_is_cut_off_and_one_that_is_missing_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file.own"
    path.write_bytes(bytes.fromhex("1201000000000000") + b"cut off")
    with pytest.raises(UserError, match=r"file\.own: is damaged, cut short or of another format .*; copy or download"):
        _load(path)
    with pytest.raises(
        UserError, match=r"^model\.parameters: no file .*/missing\.npz; give a \.ckpt, .*\.params file; "
    ):
        _load(tmp_path / "missing.npz")
    with pytest.raises(UserError, match=r"no file .*/step-00000169\.ckpt; repeat the command if the run trains"):
        _load(tmp_path / "step-00000169.ckpt")


def _built(data: Path, *overrides: str) -> dict[str, np.ndarray]:
    """Return the weights of a network that a run would begin with."""
    given = ["model.name=resnet8", "model.image_size=16", f"cluster.paths.data={data}", *overrides]
    recipe, cluster = load_both("digits", "laptop", given)
    return build_model(cpu_engine(), recipe, cluster, plan_run(recipe, 1)).weights


@pytest.mark.medium
def test_a_run_reads_the_file_that_its_recipe_names_below_the_folder_of_data(
    trained: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "a.npz", trained)
    read = _built(tmp_path, "model.parameters=a.npz")
    assert all(np.array_equal(read[name], values) for name, values in trained.items())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"no file {ROOT}/runs/elsewhere/own/a\.npz"):
        _built(Path("runs/elsewhere"), "model.parameters=own/a.npz")
