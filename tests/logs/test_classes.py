"""The counts by class of a run folder: written and read back, and damage in one line."""

from pathlib import Path

import pytest

from configs.errors import UserError
from logs.classes import CLASSES_FILE, read_classes, write_classes
from logs.disk import read_object
from logs.metrics import read_metrics
from tests.runs import FinishedRun

COUNTS = {"images": [3, 0], "predicted": [2, 1], "correct": [2, 0], "confusion": [[2, 1], [0, 0]]}


def test_counts_come_back_with_the_accuracy_of_each_class(tmp_path: Path) -> None:
    assert read_classes(tmp_path) is None, "a folder of an older run has none"
    write_classes(tmp_path, 4, ["cat", "dog"], COUNTS)
    found = read_classes(tmp_path)
    assert found is not None
    assert (found.epoch, found.names, found.confusion) == (4, ("cat", "dog"), ((2, 1), (0, 0)))
    assert [found.accuracy(index) for index in (0, 1)] == [pytest.approx(2 / 3), None]


@pytest.mark.parametrize(("names", "told"), [((), ("0", "1")), (("cat",), ("cat", "1"))])
def test_outputs_without_a_name_are_numbered(names: tuple[str, ...], told: tuple[str, ...], tmp_path: Path) -> None:
    write_classes(tmp_path, 4, names, {**COUNTS, "confusion": None})
    numbered = read_classes(tmp_path)
    assert numbered is not None
    assert (numbered.names, numbered.confusion) == (told, None)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"epoch": 1, "names": ["a"], "images": [1, 2], "predicted": [1], "correct": [1]}',
     '{"epoch": 1, "names": ["a"], "images": [1], "predicted": [1], "correct": ["x"]}',
     '{"epoch": 1, "names": ["a"], "images": [1], "predicted": [1], "correct": [1], "confusion": []}'],
)  # fmt: skip
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / CLASSES_FILE).write_text(text)
    with pytest.raises(UserError, match=r"classes\.json") as refused:
        read_classes(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.ranks
def test_a_run_of_two_ranks_counts_each_evaluation_image_once(short_run: FinishedRun) -> None:
    found = read_classes(short_run.folder)
    assert found is not None and found.confusion is not None
    last = [row for row in read_metrics(short_run.folder / "metrics.jsonl") if row["kind"] == "evaluation"][-1]
    # Every third of scikit-learn's digits is for evaluation; its labels are known.
    from sklearn.datasets import load_digits

    labels = [int(label) for label in load_digits().target[2::3]]
    assert found.images == tuple(labels.count(digit) for digit in range(10))
    assert (found.names, found.epoch) == (tuple("0123456789"), last["epoch"])
    assert (sum(found.images), sum(found.correct), sum(found.predicted)) == (599, last["correct"], 599)
    assert [sum(row) for row in found.confusion] == list(found.images)
    assert 0 < last["eval_loss"] < 3
    # ResNet-8: a convolution of 3 channels, a block of two each with 16, 32 and 64 channels, the last two blocks with a
    # shortcut of 1x1, two parameters a channel of batch norm, and a classifier.
    stem, head = 9 * 3 * 16 + 2 * 16, 64 * 10 + 10
    blocks = [2 * 9 * 16 * 16 + 4 * 16, *(9 * c * c // 2 + 9 * c * c + 4 * c + c * c // 2 + 2 * c for c in (32, 64))]
    assert read_object(short_run.folder / "startup.json")["parameters"] == stem + sum(blocks) + head == 78_042
