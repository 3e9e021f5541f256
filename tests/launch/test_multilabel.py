"""A whole run on images with several labels: real ranks, a real table, Adam."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.__main__ import main as prepare
from data.sources.digits import _read_table
from logs.metrics import read_metrics
from tests.runs import read_summary, train

LABELS = {"even": (0, 2, 4, 6, 8), "loop": (0, 6, 8, 9), "prime": (2, 3, 5, 7)}
MODEL = "{name: resnet8, num_classes: 3, image_size: 16, input_channels: 1}"


def _write_table(root: Path) -> None:
    """Write the digits as PNGs, every third for evaluation; 1 has no label at all."""
    table = _read_table()
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "val": []}
    for number, (*pixels, digit) in enumerate(table):
        Image.fromarray((np.reshape(pixels, (8, 8)) * 15.9).astype(np.uint8)).save(root / f"{number}.png")
        has = "|".join(label for label, members in LABELS.items() if digit in members)
        rows["val" if number % 3 == 2 else "train"].append((f"{number}.png", has))
    for split, pairs in rows.items():
        with (root / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("file", "labels"), *pairs])


@pytest.mark.slow
@pytest.mark.ranks
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
    last = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "evaluation"][-1]
    assert last["total"] == 599
    assert last["mean_auc"] == pytest.approx(sum(last["class_auc"]) / 3)
