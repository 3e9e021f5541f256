"""How the parts of a rank are put together: in which order they start, and what each of them is told."""

from typing import Any

from configs.load import load_both
from configs.registry import ENGINES, installed_engine
from tests.engines import ALONE
from train.comm.communicator import Communicator, SingleProcess
from train.compose import compose
from train.rank.identity import Identity
from train.rank.startup import Ledger

SMALL = [
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}}",
    "model.name=resnet8", "model.image_size=8", "batch.global_size=16", "cluster.communication.kind=none",
    "cluster.ranks_per_node=1",
]  # fmt: skip


class _Images:
    """Images that note what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def load(self) -> None:
        self.asked.append("load")

    def open_evaluation(self, arrays: Any) -> Any:
        self.asked.append(("evaluation", arrays))
        return "the evaluation's images"

    def open_training(self, arrays: Any, state: bytes) -> Any:
        self.asked.append(("training", arrays, state))
        return "the training's images"


def test_the_library_of_images_is_loaded_before_the_communicators_and_both_come_before_the_network() -> None:
    images, ledger, asked_before = _Images(), Ledger(), list[str]()

    def connect(identity: Identity, own: Ledger) -> Communicator:
        assert (identity, own) == (ALONE, ledger)
        asked_before.append(images.asked[0])
        return SingleProcess()

    recipe, cluster = load_both("digits", "laptop", SMALL)
    made = compose(recipe, cluster, ALONE, ledger, images=images, source_state=b"there", connect=connect)  # type: ignore[arg-type]
    assert asked_before == ["load"], "or DALI would take Horovod's symbols for its own"
    assert images.asked == ["load", ("evaluation", made.engine), ("training", made.engine, b"there")]
    assert (made.training, made.evaluation) == ("the training's images", "the evaluation's images")  # type: ignore[comparison-overlap]
    step = made.make_step(made.make_clock(), lambda _: None)
    assert step.layer_seed(0) != step.layer_seed(9), "or dropout would leave out the same values in each step"
    phases = [row["phase"] for row in ledger.to_json()["phases"]]
    assert phases == [
        "interpreter", f"import of {ENGINES[installed_engine()].title}", "import of input", "evaluation pipeline",
        "training pipeline", "network and weights", "wait for communicator",
    ]  # fmt: skip
