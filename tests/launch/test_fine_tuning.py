"""``train --from``: a run that begins with the weights of another one is better from its first epoch on."""

import json
from pathlib import Path

import pytest

from launch.__main__ import main
from logs.folder import RunFolder
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, train


@pytest.mark.ranks
def test_after_one_epoch_a_run_from_weights_is_better_than_one_from_scratch(
    two_epoch_run: FinishedRun, tmp_path: Path
) -> None:
    metrics = (two_epoch_run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    scratch = next(row["top1"] for row in map(json.loads, metrics) if "top1" in row)
    data = RunFolder(two_epoch_run.folder).settings[1].paths.data
    settings = [*TWO_EPOCHS, "model.num_classes=12", "run.max_steps=19"]
    settings += ["cluster.ranks_per_node=1", f"cluster.paths.data={data}"]
    done = train(tmp_path / "tuned", *settings, words=("--from", str(two_epoch_run.folder)))
    assert done.status == 0, done.errors
    assert read_summary(done.folder)["top1"] > scratch + 0.1
    checkpoint = max((two_epoch_run.folder / "checkpoints").iterdir())  # step-00000038.ckpt
    (told,) = [line for line in done.errors.splitlines() if str(checkpoint) in line]
    assert told.startswith(f"weights from {checkpoint}: ")
    assert told.endswith("the classifier has another shape and is re-initialised: classifier_bias, classifier_weight")
    # The configuration of the run is complete: it can be repeated, and resumed on another node.
    recipe, _ = RunFolder(done.folder).settings
    assert recipe.model.parameters == str(checkpoint)


def test_weights_of_another_run_are_refused_where_a_run_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--from", str(tmp_path), "--resume", str(tmp_path)]) == 2
    told = "--from begins a new run, --resume continues one with its own weights; leave one of them out"
    assert capsys.readouterr().err == f"error: {told}\n"
