"""Whole runs by the command of users: real ranks, real Horovod, real JPEGs, the official checker."""

import csv
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.load import ROOT
from configs.registry import has_engine
from data.__main__ import main as prepare
from logs.folder import RunFolder
from logs.metrics import read_metrics
from logs.read.parse import parse_log
from tests.programs import python
from tests.runs import SHORT, TWO_EPOCHS, FinishedRun, read_summary, train, train_command

pytestmark = pytest.mark.ranks

EPOCH = "run.max_steps=19"
"""19 steps of 64 images read each of the 1,198 training images."""


def _losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "interval"]


def test_the_rate_counts_the_images_of_all_ranks_over_the_time_of_the_epochs(two_epoch_run: FinishedRun) -> None:
    summary = read_summary(two_epoch_run.folder)
    epochs_s = sum(span.end_s - span.begin_s for span in parse_log(two_epoch_run.folder / "result_0.txt").epoch_spans)
    # The clock of the rate also runs between an epoch and its evaluation, a small part of the run.
    assert 0.6 < summary["images_per_s"] * epochs_s / (38 * 64) < 1.05


def test_a_run_leaves_a_complete_folder_that_both_rulesets_accept(short_run: FinishedRun) -> None:
    assert short_run.status == 0, short_run.errors
    assert "log check: passes" in short_run.output
    names = {path.name for path in short_run.folder.iterdir()}
    assert {"config.yaml", "environment.json", "result_0.txt", "result_0.mll.txt", "metrics.jsonl", "startup.json",
            "ranks.json", "summary.json", "verdict.json"} <= names  # fmt: skip
    summary = read_summary(short_run.folder)
    assert summary["status"] == "success"
    assert (summary["steps"], summary["world_size"], summary["global_batch_size"]) == (8, 2, 64)
    assert len(summary["weights_checksum"]) == 16
    assert 0 <= summary["input_wait_fraction"] <= 1
    assert summary["rcp"] is None
    assert "reference" not in short_run.output
    ranks = json.loads((short_run.folder / "ranks.json").read_text(encoding="utf-8"))["ranks"]
    assert [row["rank"] for row in ranks] == [0, 1]
    assert all(row["compute_median_s"] > 0 for row in ranks)
    assert ranks[summary["slowest_rank"]]["compute_median_s"] == max(row["compute_median_s"] for row in ranks)
    assert len(_losses(short_run.folder)) == 4
    verdicts = json.loads((short_run.folder / "verdict.json").read_text(encoding="utf-8"))
    assert {ruleset: verdict["passed"] for ruleset, verdict in verdicts.items()} == {"4.0.0": True, "0.6.0": True}
    ledger = json.loads((short_run.folder / "startup.json").read_text(encoding="utf-8"))
    # The ledger is written before run_start: the pipelines are built by then, and read nothing (test_packed).
    assert {"evaluation pipeline", "training pipeline"} <= {row["phase"] for row in ledger["phases"]}


def test_a_run_whose_outputs_are_closed_or_unread_trains_to_its_end_with_the_same_status(
    tmp_path: Path, packed_digits: Path
) -> None:
    """Nobody reads the standard error, a pipe that takes no more; `tests/configs/test_outputs.py` has other ways."""
    receives, sends = os.pipe()
    fcntl.fcntl(sends, fcntl.F_SETPIPE_SZ, 4096)
    os.write(sends, b"x" * 4096)
    words = [*SHORT, "cluster.ranks_per_node=1", f"cluster.paths.data={packed_digits}"]
    told = f'("$@"; echo $? >{tmp_path}/status) <&- | head -0'
    command = ["bash", "-c", told, "-", *train_command(tmp_path / "run", *words)]
    subprocess.run(command, cwd=ROOT, stdout=sends, stderr=sends, check=True, timeout=120)
    os.close(receives)
    os.close(sends)
    assert (tmp_path / "status").read_text(encoding="utf-8") == "0\n"
    summary = read_summary(tmp_path / "run")
    assert (summary["status"], summary["steps"]) == ("success", 8)
    assert "ended" in json.loads((tmp_path / "run" / "claims" / "1.json").read_text(encoding="utf-8"))


def test_a_run_that_its_ranks_refuse_is_one_line_and_status_2(tmp_path: Path, packed_digits: Path) -> None:
    data = f"cluster.paths.data={packed_digits}"
    done = train(tmp_path / "run", data, "data.train_samples=1000", "cluster.ranks_per_node=1")
    assert done.status == 2
    (line,) = [line for line in done.errors.splitlines() if line.startswith("error:")]
    assert "1198 records, the recipe says data.train_samples: 1000" in line
    assert not (tmp_path / "run").exists()


def test_a_corrupt_jpeg_stops_the_run_and_is_named(tmp_path: Path, packed_digits: Path) -> None:
    digits = shutil.copytree(packed_digits / "digits", tmp_path / "data" / "digits")
    number, offset = (int(word) for word in (digits / "train.idx").read_text("ascii").splitlines()[700].split("\t"))
    with (digits / "train.rec").open("r+b") as file:
        file.seek(offset + 8 + 24)
        file.write(b"\0" * 400)  # within the image; the length stays
    done = train(tmp_path / "run", *SHORT, EPOCH, "cluster.ranks_per_node=1", f"cluster.paths.data={digits.parent}")
    assert done.status == 1
    assert "train.rec" in str(read_summary(done.folder)["failure"])
    assert f"record {number}" in str(read_summary(done.folder)["failure"])


def test_a_rank_without_its_communicator_is_refused_not_trained_alone(short_run: FinishedRun, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    config = (short_run.folder / "config.yaml").read_text(encoding="utf-8")
    (alone / "config.yaml").write_text(config.replace("kind: shared_memory", "kind: horovod"), encoding="utf-8")
    # mpirun sets these variables. A Horovod that was built without MPI does not read them and sees one rank.
    variables = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo",
                 "HOROVOD_CPU_OPERATIONS": "gloo"}  # fmt: skip
    done = python("-m", "train", str(alone), env={**os.environ, **variables}, timeout=60)
    assert done.returncode != 0
    why = "but Horovod sees rank 0 of 1: this would train separate models"
    if not has_engine("mxnet"):
        why = "but MASTER_ADDR and MASTER_PORT do not give the rendezvous address"
    assert f"started rank 1 of 2, {why}" in done.stderr


def test_after_one_epoch_a_run_from_weights_is_better_than_one_from_scratch(
    two_epoch_run: FinishedRun, tmp_path: Path
) -> None:
    scratch = next(row["top1"] for row in read_metrics(two_epoch_run.folder / "metrics.jsonl") if "top1" in row)
    data = RunFolder(two_epoch_run.folder).settings[1].paths.data
    settings = [*TWO_EPOCHS, "model.num_classes=12", "run.max_steps=19"]
    settings += ["cluster.ranks_per_node=1", f"cluster.paths.data={data}"]
    done = train(tmp_path / "tuned", *settings, words=("--from", str(two_epoch_run.folder)))
    assert done.status == 0, done.errors
    assert read_summary(done.folder)["top1"] > scratch + 0.1
    checkpoint = max((two_epoch_run.folder / "checkpoints").iterdir())  # step-00000038.ckpt
    assert f"weights from {checkpoint}: " in done.errors
    # The configuration of the run is complete: it can be repeated, and resumed on another node.
    recipe, _ = RunFolder(done.folder).settings
    assert recipe.model.parameters == str(checkpoint)


LABELS = {"even": (0, 2, 4, 6, 8), "loop": (0, 6, 8, 9), "prime": (2, 3, 5, 7)}
MODEL = "{name: resnet8, num_classes: 3, image_size: 16, input_channels: 1}"


def _write_table(root: Path) -> None:
    """Write the digits as PNGs, every third for evaluation; 1 has no label at all."""
    from sklearn.datasets import load_digits

    digits, rows = load_digits(), {"train": [("file", "labels")], "val": [("file", "labels")]}
    for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(root / f"{number}.png")
        has = "|".join(label for label, members in LABELS.items() if digit in members)
        rows["val" if number % 3 == 2 else "train"].append((f"{number}.png", has))
    for split, pairs in rows.items():
        with (root / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(pairs)


@pytest.mark.slow
def test_two_ranks_learn_several_labels_an_image_from_a_table(tmp_path: Path) -> None:
    source, data = tmp_path / "in", tmp_path / "data"
    source.mkdir()
    _write_table(source)
    assert prepare(["prepare", str(source), str(data / "table"), "--size", "16"]) == 0
    overrides = [
        f"cluster.paths.data={data}", f"model={MODEL}", "data.name=table", "data.source=table", "loss={kind: sigmoid}",
        "optimizer={name: adam}", "schedule={base_lr: 3e-3, warmup_steps: 0, decay: {name: cosine}}",
        "run={epochs: 2, target_top1: null}",
    ]  # fmt: skip
    done = train(tmp_path / "run", *overrides)
    assert done.status == 0, done.errors
    assert "MLPerf training 4.0.0 log check: passes" in done.output
    summary = read_summary(done.folder)
    assert f"mean ROC-AUC {summary['mean_auc']:.4f} after epoch 2" in done.output
    assert summary["top1"] is None
    assert summary["mean_auc"] > 0.9
    last = [row for row in read_metrics(done.folder / "metrics.jsonl") if row["kind"] == "evaluation"][-1]
    assert last["total"] == 599
    assert last["mean_auc"] == pytest.approx(sum(last["class_auc"]) / 3)


@pytest.mark.slow
@pytest.mark.skipif(not has_engine("torch"), reason="torch is not installed")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_run_compiles_in_its_warm_up_only(tmp_path: Path, packed_digits: Path) -> None:
    words = [*SHORT, "model.name=mnist_small_cnn", "model.image_size=28", f"cluster.paths.data={packed_digits}"]
    words += [f"cluster.{each}" for each in ("engine.name=torch", "engine.compile=true", "ranks_per_node=1")]
    words.append(f"cluster.environment={{TORCHINDUCTOR_CACHE_DIR: {tmp_path}/kernels, TORCH_LOGS: recompiles}}")
    done = train(tmp_path / "run", *words)
    assert done.status == 0, done.errors
    assert read_summary(done.folder)["steps"] == 8
    assert "__recompiles" not in done.errors, "PyTorch tells of each program that is compiled again"
    assert list((tmp_path / "kernels").rglob("*.so")), "compiled where the cluster file says"
