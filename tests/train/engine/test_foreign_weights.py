"""Weights of PyTorch's programs: whatever a checkpoint holds besides, its network is found, and no code in it runs."""

import argparse
import logging
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import UserError
from tests.engines import each_engine, small_network
from tests.torchvision import of_pytorch
from train.engine.parameters import load_parameters
from train.networks.arch import build_network

torch = pytest.importorskip("torch")
from safetensors.torch import save_file

from tests.torch_mobilenet import MobileNet
from tests.torch_resnets import ResNet

State = dict[str, Any]


def _load(path: Path) -> dict[str, np.ndarray]:
    table = build_network("resnet8", num_classes=10, image_size=16)
    drawn = {name: np.full(shape, 7, np.float32) for name, shape in table.tensor_shapes.items()}
    return load_parameters(path, table, drawn)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    draw, shapes = np.random.default_rng(5), build_network("resnet8", num_classes=10, image_size=16).tensor_shapes
    drawn = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return {name: abs(each) if name.endswith("_var") else each for name, each in drawn.items()}


@pytest.fixture(scope="module")
def state(weights: dict[str, np.ndarray]) -> State:
    """Return what ``state_dict`` of such a network returns."""
    return {name: torch.from_numpy(values) for name, values in of_pytorch(weights).items()}


def _behind(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def _other(state: State) -> State:
    return {name: tensor + 1 for name, tensor in state.items()}


class _Hyperparameters:
    """A class that the reader of a checkpoint does not have."""

    def __init__(self) -> None:
        self.schedule, self.where, self.seen = [1e-3, 1e-4], Path("/data"), {"train"}


def _optimizer(state: State) -> State:
    moments = {number: {"exp_avg": tensor * 0} for number, tensor in enumerate(state.values())}
    return {"state": moments, "param_groups": [{"lr": np.float64(0.1), "params": [*moments]}]}


WRAPPED: dict[str, Callable[[State], Any]] = {
    "alone.pth": lambda state: dict(reversed(state.items())),  # names count, not their order
    "of_parameters.pth": lambda state: {name: torch.nn.Parameter(each, False) for name, each in state.items()
                                        if each.is_floating_point()},
    "torchvision.pth": lambda state: {
        "model": state, "optimizer": _optimizer(state), "args": argparse.Namespace(lr=0.1, device=torch.device("cpu"))},
    "torchvision-average.pth": lambda state: {
        "model": _other(state), "model_ema": {"n_averaged": torch.tensor(3), **_behind("module.", state)}},
    "timm.pth.tar": lambda state: {
        "state_dict": _other(state), "state_dict_ema": state, "arch": "resnet8", "args": argparse.Namespace()},
    "example.pth.tar": lambda state: {
        "epoch": 3, "state_dict": _behind("module.", dict(sorted(state.items()))), "best_acc1": torch.ones(())},
    "lightning.ckpt": lambda state: {
        "state_dict": {**_behind("net._orig_mod.", state), "criterion.weight": torch.ones(10)},
        "hyper_parameters": {"all": _Hyperparameters(), "dtype": torch.float16},
        "loops": None, "callbacks": {"Checkpoint{}": {"best_model_path": Path("a")}}, "optimizer_states": [{}]},
    "compiled.pt": lambda state: {"model_state_dict": _behind("module._orig_mod.", state), "model": None},
}  # fmt: skip


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_checkpoint_of_another_program_gives_its_network(
    name: str, is_legacy: bool, state: State, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    torch.save(WRAPPED[name](state), tmp_path / name, _use_new_zipfile_serialization=not is_legacy)
    loaded = _load(tmp_path / name)
    assert loaded.keys() == weights.keys()
    for key, values in weights.items():
        np.testing.assert_array_equal(loaded[key], values, key)


def test_the_log_says_which_of_several_states_was_taken(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(WRAPPED["timm.pth.tar"](state), tmp_path / "a.tar")
    with caplog.at_level(logging.INFO):
        _load(tmp_path / "a.tar")
    assert (
        f"{tmp_path}/a.tar: the weights are those of state_dict_ema (found: state_dict_ema, state_dict)" in caplog.text
    )


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_numbers_of_other_types_and_orders_of_memory_are_the_same_numbers(
    kind: str, state: State, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    other = {name: each.to(getattr(torch, kind)) for name, each in state.items()}
    other = {k: each.to(memory_format=torch.channels_last) if each.ndim == 4 else each for k, each in other.items()}
    other["fc.weight"] = torch.stack([torch.zeros_like(other["fc.weight"]), other["fc.weight"]])[1]
    torch.save(other, tmp_path / "a.pth")
    save_file({name: each.contiguous() for name, each in other.items()}, tmp_path / "a.safetensors")
    for loaded in map(_load, (tmp_path / "a.pth", tmp_path / "a.safetensors")):
        for name, values in weights.items():
            rounded = torch.from_numpy(values).to(getattr(torch, kind)).float().numpy()
            np.testing.assert_array_equal(loaded[name], rounded, name)


class _Runs:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self._path)!r}, 'w')",)


@pytest.mark.parametrize("is_legacy", [False, True])
def test_code_in_a_file_is_not_run(is_legacy: bool, state: State, tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = {"model": state, "more": [_Runs(made), {_Runs(made): _Runs(made)}]}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=not is_legacy)
    _load(tmp_path / "a.pth")
    assert not made.exists()
    torch.load(tmp_path / "a.pth", weights_only=False)
    assert made.exists(), "whoever trusts the file runs it"


def _cut(path: Path, state: State, *, is_legacy: bool = False) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=not is_legacy)
    path.write_bytes(path.read_bytes()[:-1000])


def _short_of_numbers(path: Path, state: State, num_bytes: int = 8) -> None:
    """Write a file whose tensors reach beyond their numbers; where there are none, NumPy would read what lies there."""
    torch.save(state, path.with_suffix(".whole"))
    with zipfile.ZipFile(path.with_suffix(".whole")) as whole, zipfile.ZipFile(path, "w") as short:
        for name in whole.namelist():
            short.writestr(name, whole.read(name)[: num_bytes if "/data/" in name else None])


def _big_endian(path: Path, state: State) -> None:
    torch.save(state, path.with_suffix(".little"))
    with zipfile.ZipFile(path.with_suffix(".little")) as little, zipfile.ZipFile(path, "w") as big:
        for name in little.namelist():
            big.writestr(name, b"big" if name.endswith("/byteorder") else little.read(name))


_WHOLE, _AGAIN, _SAVE = "whole model (torch.nn.modules.linear.Linear)", "copy or download", "save model.state_dict()"
REFUSED: dict[str, tuple[str, str, Callable[[Path, State], object]]] = {
    "module.pth": (_WHOLE, _SAVE, lambda path, _: torch.save(torch.nn.Linear(2, 2), path)),
    "held.pth": (_WHOLE, _SAVE, lambda path, _: torch.save({"model": torch.nn.Linear(2, 2)}, path)),
    "script.pt": ("TorchScript", _SAVE, lambda path, _: torch.jit.script(torch.nn.Linear(2, 2)).save(path)),
    "cut.pth": ("cut short", _AGAIN, _cut),
    "cut-legacy.pth": ("cut short", _AGAIN, lambda path, state: _cut(path, state, is_legacy=True)),
    "short.pth": ("damaged", _AGAIN, _short_of_numbers),
    "hollow.pth": ("damaged", _AGAIN, lambda path, state: _short_of_numbers(
        path, {name: each for name, each in state.items() if each.ndim}, 0)),
    "endian.pth": ("big-endian", _SAVE, _big_endian),
    "negated.pth": ("conv1.weight missing", "classifier", lambda path, state: torch.save(
        state | {"conv1.weight": torch._neg_view(state["conv1.weight"])}, path)),
    "float8.pth": ("8-bit floats: conv1.weight;", "quantised", lambda path, state: torch.save(
        state | {"conv1.weight": state["conv1.weight"].to(torch.float8_e4m3fn)}, path)),
    "float8.safetensors": ("8-bit floats: conv1.weight;", "quantised", lambda path, state: save_file(
        state | {"conv1.weight": state["conv1.weight"].to(torch.float8_e4m3fn)}, path)),
    "int8.safetensors": ("whole numbers", "quantised", lambda path, state: save_file(
        state | {"fc.bias": state["fc.bias"].to(torch.int8)}, path)),
    "number.pth": ("no named tensors", _SAVE, lambda path, _: torch.save({"epoch": 3}, path)),
    "page.pth": ("text", _AGAIN, lambda path, _: path.write_text("<!DOCTYPE html>\n<html>404</html>\n")),
    "empty.safetensors": ("empty", _AGAIN, lambda path, _: path.touch()),
    "keras.h5": ("no file of weights", "give a .ckpt", lambda path, _: path.write_bytes(b"\x89HDF\r\n\x1a\n\0\0")),
    "zipped.keras": ("no item named 'data.pkl'", _AGAIN, lambda path, _: shutil.make_archive(
        str(path), "zip", Path(__file__).parent, Path(__file__).name) and path.with_suffix(".keras.zip").rename(path)),
    "two.pth": ("several networks (student., teacher.)", "one of them", lambda path, state: torch.save(
        _behind("student.", state) | _behind("teacher.", state), path)),
    "coloured.pth": ("[31mweight (2,)", "classifier", lambda path, _: torch.save(
        {"\x1b[31mweight": torch.ones(2)}, path)),
    "deeper.pth": ("layer1.1.conv1.weight (16, 16, 3, 3)", "classifier", lambda path, state: torch.save(
        state | {"layer1.1.conv1.weight": torch.ones(16, 16, 3, 3)}, path)),
    "wider.pth": ("conv1.weight (64, 3, 7, 7) (wanted (16, 3, 3, 3))", "classifier", lambda path, state: torch.save(
        state | {"conv1.weight": torch.ones(64, 3, 7, 7)}, path)),
    "other.pth": ("layer2.0.bn1.running_var missing", "classifier", lambda path, state: torch.save(
        {name: each for name, each in state.items() if name != "layer2.0.bn1.running_var"}, path)),
}  # fmt: skip
"""Name of a file -> what it is, what to do, and how it comes about."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_taken_is_told_in_one_line_with_the_remedy(name: str, state: State, tmp_path: Path) -> None:
    what, remedy, write = REFUSED[name]
    write(tmp_path / name, state)
    with pytest.raises(UserError) as caught:
        _load(tmp_path / name)
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / name}: ")
    assert what in told
    assert remedy in told
    assert not any(word in told for word in ("\x1b", "\n", "weights_only"))


def test_a_backbone_without_a_classifier_begins_with_a_drawn_one(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = {name: each for name, each in state.items() if not name.startswith("fc.")}
    torch.save({"state_dict": _behind("backbone.", backbone) | {"head.fc.weight": torch.ones(3)}}, tmp_path / "a.pth")
    with caplog.at_level(logging.INFO):
        loaded = _load(tmp_path / "a.pth")
    np.testing.assert_array_equal(loaded["stem_weight"], state["conv1.weight"].numpy())
    assert (loaded["classifier_weight"] == 7).all()
    assert "the classifier is not in it" in caplog.text


@pytest.mark.medium
@each_engine
@pytest.mark.parametrize(
    ("network_name", "is_d"),
    [
        ("resnet50", True), ("resnext50_32x4d", False), ("mobilenet_v2", False),
    ],
)  # fmt: skip
def test_the_loaded_network_computes_what_the_module_computes(
    name: str, network_name: str, is_d: bool, tmp_path: Path
) -> None:
    words = ["model.residual={stem: deep, shortcut: pooled}"] if is_d else []
    engine, _, network = small_network(name, f"model.name={network_name}", "model.image_size=64", *words)
    torch.manual_seed(6)
    module = MobileNet() if network_name == "mobilenet_v2" else ResNet(network_name, is_d=is_d)
    torch.save({"model": _behind("module.", module.state_dict())}, tmp_path / "a.pth")
    network.load_weights(load_parameters(tmp_path / "a.pth", network.network, {}))
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected = module(images).numpy()
    logits = engine.to_host(network.inference()(engine.from_host(images.numpy())))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * expected.std())
    assert np.abs(expected[0] - expected[1]).max() > 0.01 * expected.std(), "a hundred times what is forgiven"
