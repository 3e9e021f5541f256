"""PyTorch trains the same network, and one command measures every alternative that is installed."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from configs.load import ROOT
from configs.networks import IMAGE_SIZES
from configs.programs import Program, command_of
from configs.registry import CAST_FLAGS
from configs.schema import EngineSettings, Loss, Model
from logs.environment import cpu_flags
from train.bench import bench_peers, bench_race
from train.bench.__main__ import main
from train.bench.launching import run_ranks
from train.bench.samples import read_samples
from train.engine.init import initial_weights
from train.engine.mxnet.network import TrainedNetwork
from train.networks.arch import build_network

_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
_FAMILIES = (
    "resnet8",
    "resnet18",
    "resnet50",
    "alexnet",
    "googlenet",
    "densenet121",
    "mnist_small_cnn",
    "mnist_large_cnn",
)
needs_torch = pytest.mark.skipif(
    not _PYTHON.exists(), reason="no PyTorch in .venv-peers: ./run.sh bench peers --install"
)
_OTHERS = ["ours, PyTorch", "ours, PyTorch, bfloat16"] if find_spec("mxnet") and find_spec("torch") else []
_CASTS = ["ours, bfloat16"] if cpu_flags() >= CAST_FLAGS else []
OWN = {"ours", *_CASTS, *_OTHERS}
_TINY = ["--model", "mnist_small_cnn", "--batch", "2", "--rounds", "1", "--steps", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "alexnett"], "--model alexnett: no such network; did you mean 'alexnet'?"),
        (["--model", "alexnet", "--image-size", "32"], "model.image_size: got 32, allowed: "),
        (["--batch", "0"], "--batch 0: allowed: a whole number above 0"),
        (["--ranks", "-1"], "--ranks -1: allowed: a whole number above 0"),
        (["--rounds", "0"], "--rounds 0: allowed: a whole number above 0"),
    ],
)
def test_wrong_options_are_one_line_before_anything_is_installed_or_run(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_peers, "install_peers", pytest.fail)
    assert main(["bench", "peers", "--install", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("model", "channels", "classes"), [("mnist_small_cnn", 1, 10), ("resnet18", 3, 1000)])
def test_pytorch_gets_the_images_and_the_batch_of_ours(
    model: str, channels: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[set[str], list[str]]] = []
    monkeypatch.setattr(bench_peers, "run_ranks", lambda words, overrides: started.append((set(words), overrides)))
    monkeypatch.setattr(bench_peers, "_only_sample", lambda _: {})
    contest = bench_peers._Contest(model, 28, batch=4, ranks=2, steps=8)
    contest.pytorch("--channels-last")
    contest.pytorch_data_parallel()  # one process with the images and the threads of both ranks
    (ddp, two), (data_parallel, one) = started
    shared = {f"--model={model}", f"--channels={channels}", f"--classes={classes}", "--warmup=3", "--steps=8"}
    assert {*shared, "--batch-size=4", "--channels-last"} <= ddp
    assert {*shared, "--batch-size=8", "--threads", "2"} <= data_parallel
    assert (two, one) == (["cluster.ranks_per_node=2"], ["cluster.ranks_per_node=1"])
    own = {f"model.input_channels={channels}", f"model.num_classes={classes}", "batch.global_size=8"}
    assert own <= set(contest._overrides)


class _Installed(Exception):
    """Ends a bench that begins to install."""


@pytest.mark.parametrize(("bench", "words"), [(bench_peers, _TINY), (bench_race, ["digits"])])
def test_pytorch_is_installed_where_that_is_asked_for(
    bench: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install() -> None:
        raise _Installed

    monkeypatch.setattr(bench_peers, "_FOLDER", tmp_path / "none")
    monkeypatch.setattr(bench, "install_peers", install)
    monkeypatch.setattr(bench, "pack_dataset", lambda *_: None)
    with pytest.raises(_Installed):
        main([bench.__name__.rpartition("_")[2], *words, "--install"])


def test_what_the_peers_need_is_installed_into_an_environment_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(bench_peers, "_FOLDER", tmp_path / "peers")
    monkeypatch.setattr(bench_peers, "run", started.append)
    bench_peers.install_peers()
    (venv, pip) = started
    assert venv == [sys.executable, "-m", "venv", str(tmp_path / "peers")]
    assert pip[:4] == [str(tmp_path / "peers" / "bin" / "python"), "-m", "pip", "install"]
    assert (ROOT / pip[pip.index("-r") + 1]).is_file()


@pytest.mark.slow
@pytest.mark.ranks
def test_without_pytorch_ours_is_measured_and_a_note_says_how_to_install_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_peers, "_FOLDER", tmp_path / "none")
    monkeypatch.setattr(bench_peers, "_FEWEST_IMAGES", 16)  # to pack 256 takes longer than to measure
    report = _report(tmp_path, "--ranks", "1")
    assert _rates(report).keys() == OWN
    assert min(_rates(report).values()) > 0
    assert "PyTorch is not measured: it is not installed; --install puts it into .venv-peers (1 GB)" in report["notes"]
    assert "Horovod's example is not measured: MXNet's model zoo has no mnist_small_cnn" in report["notes"]


@pytest.mark.ranks
@pytest.mark.parametrize("mode", ["module", "gluon"])
def test_horovods_example_trains_the_steps_that_it_counts(mode: str, shared_digits: Path) -> None:
    sizes = ["--image-size=32", "--batch-size=4", "--warmup=1", "--steps=2"]
    words = [f"--data={shared_digits / 'train'}", "--model=mobilenet0.25", f"--mode={mode}", *sizes]
    begin = time.monotonic()
    told = run_ranks(command_of(Program.HOROVOD_EXAMPLE, *words), overrides=["cluster.communication.kind=horovod"])
    took_s = time.monotonic() - begin
    ((figures,),) = read_samples(told).values()
    # Two ranks of 4 images take 2 steps that count, within the time of the job, and none of them in microseconds.
    assert 2 * 4 * 2 / took_s < figures["images_per_s"] < 2 * 4 / 1e-4


@pytest.mark.slow
@needs_torch
@pytest.mark.ranks
def test_pytorch_is_measured_in_three_ways_beside_ours(tmp_path: Path) -> None:
    report = _report(tmp_path)
    rates = _rates(report)
    assert [name for name in rates if name not in OWN - {"ours"}] == [
        "ours",
        "PyTorch DDP",
        "PyTorch DDP, channels last",
        "PyTorch DataParallel",
    ]
    assert min(rates.values()) > 0
    assert any(note.startswith("DataParallel splits a batch over GPUs; without GPUs") for note in report["notes"])


def test_what_the_peers_programs_import_of_ours_needs_nothing_but_numpy() -> None:
    ours = "data.recordio, train.bench.samples, train.networks.arch, train.rank.identity"
    build = "train.networks.arch.build_network('resnet8', num_classes=10, image_size=8)"
    program = f"import sys; sys.modules.update(pydantic=None, yaml=None); import {ours}; {build}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_torch
@pytest.mark.ranks
def test_pytorch_computes_the_same_logits_from_the_same_parameters_of_every_family(tmp_path: Path) -> None:
    expected = {name: _ask(name, tmp_path) for name in _FAMILIES}
    program = [str(_PYTHON), "-m", "tests.train.bench.programs.torch_networks", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, logits in expected.items():
        theirs = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(theirs, logits, rtol=1e-3, atol=1e-4 * np.abs(logits).max(), err_msg=name)


def _ask(name: str, folder: Path) -> Any:
    """Write the parameters of a network and some images to a file, and return our logits."""
    least, most = IMAGE_SIZES[name]
    model = Model(
        name=name,
        num_classes=10,
        image_size=min(max(32, least), most),
        input_channels=1 if name.startswith("mnist") else 3,
    )
    table = build_network(name, num_classes=10, image_size=model.image_size, input_channels=model.input_channels)
    weights = initial_weights(table, model, seed=1)
    shape = (2, model.input_channels, model.image_size, model.image_size)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    numbered = {str(number): weights[each.name] for number, each in enumerate(table.parameters)}
    np.savez(folder / f"{name}.npz", images=images, **numbered)
    network = TrainedNetwork(
        table, model=model, loss=Loss(), engine=EngineSettings(layout="NCHW"), context=mx.cpu(), accumulate=False
    )
    network.load_weights(weights)
    return network.inference()(mx.nd.array(images)).asnumpy()


def _report(folder: Path, *words: str) -> Any:
    file = folder / "report.json"
    assert main(["bench", "peers", *_TINY, *words, "--output", str(file)]) == 0
    return json.loads(file.read_text(encoding="utf-8"))


def _rates(report: Any) -> dict[str, float]:
    return {row["alternative"]: row["median"] for row in report["rows"] if row["figure"] == "images_per_s"}
