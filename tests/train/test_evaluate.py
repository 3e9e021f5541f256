"""The metrics against their definitions, whole and cut over ranks."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.ideas.part import Place, parts_of
from configs.load import load_cluster
from configs.plan import plan_run
from tests.engines import cpu_engine, each_engine, random_batch, small_network
from train.comm.communicator import Connect, SingleProcess, start_communicator
from train.comm.devices import run_ranks_here
from train.evaluate import Evaluator, MeanAuc, Score, Top1
from train.rank.identity import Identity
from train.rank.startup import Ledger

LOGITS = np.array([[9.0, -1.0], [8.0, 2.0], [7.0, 1.0], [6.0, 3.0], [5.0, 0.0]])
LABELS = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 0]])


def _add(metric: Any, logits: np.ndarray, labels: Any, num_valid: int) -> None:
    arrays = (cpu_engine().from_host(np.asarray(each, np.float32)) for each in (logits, labels))
    metric.add(*arrays, num_valid)


def _score(labels: np.ndarray, logits: np.ndarray = LOGITS) -> Score:
    metric = MeanAuc(cpu_engine())
    _add(metric, logits, labels, len(logits))
    return metric.score(SingleProcess())


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    # Class 0: 5 of 6 pairs (present, absent) are in order; class 1: all 6.
    score = _score(LABELS)
    aucs = {"mean_auc": pytest.approx(11 / 12), "class_auc": [pytest.approx(5 / 6), 1.0]}
    assert score.row.items() >= {**aucs, "total": 5}.items()
    assert str(score) == "mean ROC-AUC 0.9167"


def test_a_pair_of_equal_logits_counts_half() -> None:
    # Pairs of an image with and one without the label: three in order and one equal; one in order and one equal.
    logits, labels = np.array([[1, 1], [1, 0], [2, 2], [0, 0]]), np.array([[0, 1], [1, 1], [1, 0], [0, 0]])
    assert _score(labels, logits).row["class_auc"] == pytest.approx([3.5 / 4, 1.5 / 4])


@pytest.mark.parametrize("bounds", [(0, 2, 2, 5), (0, 0, 2, 5), (0, 2, 5, 5)])
def test_ranks_with_shards_of_any_size_agree_on_the_score_of_the_whole(bounds: tuple[int, ...]) -> None:
    pytest.importorskip("mxnet")  # which has the ranks that are threads
    # One of the three ranks holds no image; batches are padded with what must not count.
    parts = [slice(begin, end) for begin, end in pairwise(bounds)]
    rows: dict[int, dict[str, Any]] = {}

    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        communicator = start_communicator(identity, ledger, connect).result()
        metric = MeanAuc(cpu_engine())
        part = parts[identity.rank]
        if len(LOGITS[part]):
            padded, labels = (np.concatenate([array[part], np.full((2, 2), 1e9)]) for array in (LOGITS, LABELS))
            _add(metric, padded, labels, len(LOGITS[part]))
        rows[identity.rank] = dict(metric.score(communicator).row)
        return 0

    cluster = load_cluster("laptop", ["cluster.communication.kind=devices", "cluster.ranks_per_node=3"])
    one_process = Identity(0, 3, 0, 3, "here", "none")
    assert run_ranks_here(cluster, one_process, Ledger(), main) == 0
    assert rows == dict.fromkeys(range(3), _score(LABELS).row)


@pytest.mark.parametrize(
    ("labels", "aucs", "basis"),
    [
        (LABELS * [1, 0], [5 / 6, None], "1 of 2 classes, 5 images"),  # a class that no image has
        (LABELS * [1, 0] + [0, 1], [5 / 6, None], "1 of 2 classes, 5 images"),  # one that every image has
        ([[0, 0], [0, 1], [0, 0], [0, 1], [1, 0]], [0.0, 1.0], "2 classes, 5 images"),  # one that is always wrong
    ],
)
def test_only_a_class_that_is_present_and_absent_counts_for_the_mean(
    labels: Any, aucs: list[float | None], basis: str
) -> None:
    score, known = _score(np.array(labels)), [each for each in aucs if each is not None]
    assert score.row["class_auc"] == [None if each is None else pytest.approx(each) for each in aucs]
    assert score.value == pytest.approx(float(np.mean(known)))
    assert score.basis == basis


def test_no_class_at_all_is_an_error_in_words() -> None:
    with pytest.raises(RuntimeError, match="no class is both present and absent among 5 evaluation images"):
        _score(np.zeros((5, 2)))


@pytest.mark.medium
@each_engine
def test_the_logits_of_an_image_and_of_its_mirror_are_averaged(name: str) -> None:
    engine, recipe, network = small_network(name, "data.eval_flip=true")
    batches = [random_batch(engine, network, seed=seed) for seed in (1, 2)]
    judged: list[np.ndarray] = []
    metric: Any = SimpleNamespace(
        add=lambda logits, *_: judged.append(engine.to_host(logits)), score=lambda _: Score("top-1", 0.5, {}, "")
    )
    source: Any = SimpleNamespace(batches=lambda: ((*batch, 8) for batch in batches))
    place = Place(recipe, load_cluster("laptop", []), plan_run(recipe, 1), 0, engine, network)
    parts = parts_of(place)
    Evaluator(network, source, SingleProcess(), lambda: metric, lambda: None, parts)()
    logits_of = network.inference()
    for found, (images, _) in zip(judged, batches, strict=True):
        mirrored = engine.from_host(np.ascontiguousarray(engine.to_host(images)[..., ::-1]))
        own, others = (engine.to_host(logits_of(each)) for each in (images, mirrored))
        np.testing.assert_allclose(found, (own + others) / 2, rtol=1e-5, atol=1e-6)
        assert not np.allclose(own, others, rtol=1e-2)


def _cross_entropy(logits: np.ndarray, labels: list[int]) -> float:
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[range(len(labels)), labels]).mean())


def test_top1_and_its_loss_count_valid_images_only() -> None:
    # Class 0 is the most likely one of every image: images 0, 1 and 3 are right, and so is the padding.
    metric = Top1(cpu_engine())
    _add(metric, LOGITS, [0, 0, 1, 0, 0], 4)
    _add(metric, LOGITS, [1, 0, 0, 0, 0], 1)
    score = metric.score(SingleProcess())
    loss = _cross_entropy(LOGITS[[0, 1, 2, 3, 0]], [0, 0, 1, 0, 1])
    assert score.row == {"top1": 0.6, "correct": 3, "total": 5, "eval_loss": pytest.approx(loss, rel=1e-4)}
    assert (score.value, str(score)) == (0.6, "top-1 0.6000")
    assert metric.by_class(SingleProcess(), 2) == {
        "images": [3, 2],
        "predicted": [5, 0],
        "correct": [3, 0],
        "confusion": [[3, 0], [2, 0]],
    }
    many = metric.by_class(SingleProcess(), 51)
    assert many == {key: [*values, *[0] * 49] for key, values in
                    {"images": [3, 2], "predicted": [5, 0], "correct": [3, 0]}.items()}  # fmt: skip


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e10])
def test_a_loss_that_cannot_be_summed_is_infinite(odd: float) -> None:
    metric = Top1(cpu_engine())
    _add(metric, np.array([[1.0, 0.0], [odd, odd - 1e10]]), [0, 1], 2)
    row = metric.score(SingleProcess()).row
    assert (row["total"], row["eval_loss"]) == (2, np.inf)


def test_the_loss_of_several_labels_is_the_mean_binary_cross_entropy() -> None:
    likely = 1 / (1 + np.exp(-LOGITS))
    loss = -(LABELS * np.log(likely) + (1 - LABELS) * np.log(1 - likely)).mean()
    assert _score(LABELS).row["eval_loss"] == pytest.approx(loss)
