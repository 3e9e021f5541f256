"""``./run.sh predict``: class and probability of images, by a run or an export; a line for each that is none."""

import csv
import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from configs.load import dump, load_both
from logs.checkpoints import SavedState
from logs.folder import RunFolder
from tests.failing_reads import failing_reads
from tests.programs import Said, run_program
from train.engine.init import initial_weights
from train.export.predict import main
from train.networks.arch import network_of

FLIPS = ["data.eval_flip=true"]
NAMES = ["hut", "mast\x1b[31m", "quay"]


def _begin_run(folder: Path, *overrides: str, kind: str = "softmax", step: int = 3, seed: int = 1) -> Path:
    """Make the folder of a run that has drawn weights, and of its data set the names of the classes."""
    origin = "folders" if kind == "softmax" else "table"
    given = [
        f"data={{name: mine, source: {origin}, train_samples: 6, eval_samples: 3}}", "data.crop={kind: none}",
        "data.mean=[0, 0, 0]", "data.std=[255, 255, 255]",
        "model={name: mnist_small_cnn, num_classes: 3, image_size: 28, classifier_std: 0.5}", f"run.seed={seed}",
        f"loss={{kind: {kind}}}", "run.target_top1=null", f"cluster.paths.data={folder}/data", *overrides,
    ]  # fmt: skip
    recipe, cluster = load_both("digits", "laptop", given)
    (folder / "data" / "mine").mkdir(parents=True, exist_ok=True)
    split = {"records": 1, "rec_bytes": 1, "rec_sha256": "0" * 64, "idx_bytes": 1, "idx_sha256": "0" * 64}
    counts = {"class_counts": [1, 0, 0]}
    source = {"kind": origin, "description": "", "fingerprint": ""}
    manifest: dict[str, Any] = {"format_version": 1, "source": source, "seed": 1, "class_names": NAMES}
    manifest |= {"train": split | counts, "eval": split | counts}
    (folder / "data" / "mine" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "config.yaml").write_text(dump(recipe, cluster), encoding="utf-8")
    drawn = initial_weights(network_of(recipe.model), recipe.model, recipe.run.seed)
    weights = {f"weights/{name}": each for name, each in drawn.items()}
    RunFolder(run).checkpoints.write(step, SavedState({}, weights), keep=1)
    return run


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Three images of 28 px, one below a folder."""
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    files = [folder / "a.png", folder / "b.png", folder / "more" / "c.png"]
    for number, file in enumerate(files):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (28, 28, 3), np.uint8)).save(file)
    return files


def _logits(run: Path, images: Sequence[Path], step: int = 1) -> np.ndarray:
    """Return the logits of images that have the network's size already, by onnxruntime alone; of mirrors by step -1."""
    values = [np.asarray(Image.open(each), np.float32).transpose(2, 0, 1)[..., ::step] / 255 for each in images]
    session = onnxruntime.InferenceSession(run / "export" / "network.onnx", providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"data": np.stack(values)})[0], np.float64)


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "overrides"), [("softmax", []), ("softmax", FLIPS), ("sigmoid", [])])
def test_each_image_gets_its_class_and_probabilities(
    tmp_path: Path, images: list[Path], kind: str, overrides: list[str], said: Said
) -> None:
    run = _begin_run(tmp_path, *overrides, kind=kind)
    told = said(main, "predict", run, tmp_path / "images", "--json")
    assert told.err == f"exported to {run}/export, without an evaluation (./run.sh export {run} evaluates)\n"
    logits = _logits(run, images)
    if overrides:
        logits = (logits + _logits(run, images, -1)) / 2
    powers = np.exp(logits)
    wanted = powers / powers.sum(axis=1, keepdims=True) if kind == "softmax" else powers / (1 + powers)
    for row, file, values in zip(map(json.loads, told.out.splitlines()), images, wanted, strict=True):
        assert row["file"] == str(file)
        assert [each["class"] for each in row["predictions"]] == [NAMES[each] for each in np.argsort(-values)]
        found = [each["probability"] for each in row["predictions"]]
        np.testing.assert_allclose(found, np.sort(values)[::-1], rtol=1e-5)
    (run / "torn.png").write_bytes(b"\x89PNG")
    words = said(main, "predict", run, images[0], run / "torn.png", "--top", "2", "--csv", status=1).out
    first, torn = csv.DictReader(io.StringIO(words))
    assert first["file"] == str(images[0])
    assert float(first["probability"]) == pytest.approx(wanted[0].max(), abs=1e-6)
    assert float(first["probability 2"]) == pytest.approx(np.sort(wanted[0])[-2], abs=1e-6)
    assert (first["error"], torn["class"], bool(torn["error"])) == ("", "", True)
    # The export is enough: run and data set may be gone. A line for people has no control characters.
    alone = shutil.move(run / "export", tmp_path / "alone")
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "data")
    best = NAMES[wanted[1].argmax()].replace("\x1b", " ")
    assert said(main, "predict", alone, images[1], "--top", "1").out == f"{images[1]}: {best} {wanted[1].max():.4f}\n"


@pytest.mark.medium
def test_a_table_has_no_more_columns_than_the_network_has_classes(
    tmp_path: Path, images: list[Path], said: Said
) -> None:
    told = said(main, "predict", _begin_run(tmp_path), images[0], "--csv", "--top", 10**9).out
    header, row = csv.reader(io.StringIO(told))
    assert (header[-3:], len(row)) == (["class 3", "probability 3", "error"], 8)


@pytest.mark.medium
def test_an_output_that_is_not_finite_is_no_prediction(tmp_path: Path, images: list[Path], said: Said) -> None:
    run = _begin_run(tmp_path)
    assert main(["predict", str(run), str(images[0])]) == 0
    file = run / "export" / "network.json"
    network = json.loads(file.read_text(encoding="utf-8"))
    # The largest input is still a number of float32, and its sums are none.
    file.write_text(json.dumps({**network, "std": [1e-36 for _ in network["std"]]}), encoding="utf-8")
    told = said(main, "predict", run / "export", images[0], status=2).err
    assert told.endswith("a.png: the network's output is not finite; train it with a smaller rate\n")


@pytest.mark.medium
def test_what_cannot_be_read_is_one_line_each(tmp_path: Path, images: list[Path], said: Said) -> None:
    run = _begin_run(tmp_path)
    images[0].write_bytes(images[0].read_bytes()[:600])
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "d.gif")
    (tmp_path / "images" / "e.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "images" / "f.png")
    (tmp_path / "images" / ".hidden").touch()
    (tmp_path / "images" / "Thumbs.db").touch()
    (tmp_path / "images" / "notes.txt").write_text("no image", encoding="utf-8")
    told = said(main, "predict", run, tmp_path / "images", tmp_path / "none.png", status=1)
    assert [line.partition(": ")[0] for line in told.out.splitlines()] == [*map(str, images[1:])]
    lines = told.err.splitlines()[1:]
    problems = {
        images[0]: "cannot be decoded: ",
        tmp_path / "images" / "d.gif": "is a GIF image, allowed: JPEG or PNG; convert it",
        tmp_path / "images" / "e.png": "no such file",
        tmp_path / "images" / "f.png": "is not a file",
        tmp_path / "images" / "notes.txt": "is neither a JPEG nor a PNG image",
        tmp_path / "none.png": "no such file",
    }
    for line, (file, problem) in zip(lines, problems.items(), strict=True):
        assert line.startswith(f"error: {file}: {problem}")
    row = json.loads(said(main, "predict", run, images[0], "--json", status=2).out)
    assert (row["file"], row["error"][:18]) == (str(images[0]), "cannot be decoded:")


@pytest.mark.medium
def test_a_run_that_has_gone_on_is_exported_again(tmp_path: Path, images: list[Path], said: Said) -> None:
    run = _begin_run(tmp_path)
    words = ["predict", str(run), str(images[0])]
    first = said(main, *words)
    assert said(main, *words) == (first.out, "")
    (run / "export" / "network.pt").touch()
    _begin_run(tmp_path, step=5, seed=2)
    again = said(main, *words)
    assert again.err == first.err
    assert again.out != first.out
    assert not (run / "export" / "network.pt").exists(), "it is of another checkpoint"
    # Where the data set was packed again with other classes, those of the run's own copy of the manifest hold.
    manifest = (tmp_path / "data" / "mine" / "manifest.json").read_text(encoding="utf-8")
    (run / "dataset.json").write_text(manifest.replace("hut", "fen").replace("quay", "ria"), encoding="utf-8")
    shutil.rmtree(run / "export")
    (row,) = map(json.loads, said(main, *words, "--json").out.splitlines())
    assert {each["class"] for each in row["predictions"]} == {"fen", NAMES[1], "ria"}
    again = said(main, *words)
    (run / "export" / "network.json").write_text('{"top1": 0.9}', encoding="utf-8")
    assert said(main, *words) == (again.out, first.err)
    weights = bytearray((run / "export" / "network.onnx").read_bytes())
    weights[len(weights) // 2] ^= 64
    (run / "export" / "network.onnx").write_bytes(weights)
    assert said(main, *words) == (again.out, first.err)
    shutil.rmtree(run / "checkpoints")
    assert said(main, *words) == (again.out, f"{run}: no checkpoint in it; its export is taken\n")


@pytest.mark.medium
def test_what_is_no_run_and_no_export_is_refused_in_one_line(tmp_path: Path, images: list[Path], said: Said) -> None:
    def refusal(*words: Any) -> Any:
        told = said(main, "predict", *words, status=2)
        assert (told.out, told.err.count("\n")) == ("", 1)
        return told.err

    run = _begin_run(tmp_path)
    (tmp_path / "empty").mkdir()
    folder = tmp_path / "empty"
    assert refusal(folder, images[0]) == (
        f"error: {folder}: neither the folder of a run nor of an export; give one that has a checkpoint\n"
    )
    assert refusal(run, images[0], "--top", 0) == "error: --top: got 0, allowed: 1 or more\n"
    assert main(["predict", str(run), str(images[0])]) == 0
    assert refusal(run, folder) == f"error: {folder}: no file in it; give an image or a folder of images\n"
    export = run / "export"
    (export / "network.onnx").write_bytes(b"damaged")
    damaged = f"error: {export}/network.onnx: damaged, or of another export; export the network again\n"
    assert refusal(export, images[0]) == damaged
    (export / "network.json").write_text("{}", encoding="utf-8")
    assert refusal(export, images[0]) == (
        f"error: {export}/network.json: comes from another version of this program; export the network again\n"
    )


@pytest.mark.ranks  # by its processes
def test_an_image_that_cannot_be_read_is_tried_again_and_then_fails_alone(tmp_path: Path, images: list[Path]) -> None:
    """That every call is tried again, in the same way, is seen in tests/configs."""
    run, two = _begin_run(tmp_path), images[:2]
    command = [sys.executable, "-m", "train.export.predict", str(run), *map(str, two), "--json"]
    lines = []
    for call, once in (("open", True), ("stat", False)):
        variables = failing_reads(tmp_path, call, two[0], errno.EIO, once=once)
        done = run_program(*command, env=variables)
        assert done.returncode == (0 if once else 1), done.stderr
        lines.append([json.loads(line) for line in done.stdout.splitlines()])
    assert [[row["file"] for row in rows] for rows in lines] == [[*map(str, two)]] * 2
    assert "predictions" in lines[0][0]
    assert lines[1][0]["error"].startswith("cannot be read: Input/output error; ")
    assert lines[1][1] == lines[0][1]
