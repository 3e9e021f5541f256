"""How the parts of a rank are put together: in which order they start, and what each of them is told."""

from typing import Any

import pytest

from configs.load import load_both
from configs.registry import ENGINES, installed_engine
from configs.schema import Cluster, Recipe
from tests.engines import ALONE
from train.comm.buckets import BucketPlan
from train.comm.communicator import Communicator, SingleProcess
from train.compose import Composition, compose
from train.engine.build import layer_seed
from train.ideas.mixing import MixingPart
from train.measure.timing import Clock, StepClock
from train.rank.identity import Identity
from train.rank.startup import Ledger

SMALL = [
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}}",
    "model.name=resnet8", "model.image_size=8", "batch.global_size=16", "batch.accumulation_steps=2",
    "cluster.communication.kind=none", "cluster.ranks_per_node=1", "run.seed=7",
    "run.log_every_steps=5", "cluster.engine.run_ahead_steps=3",
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


def _composed(*overrides: str, **parts: Any) -> Composition:
    return compose(*_settings(*overrides), ALONE, Ledger(), **parts)


def _settings(*overrides: str) -> tuple[Recipe, Cluster]:
    return load_both("digits", "laptop", [*SMALL, *overrides])


def test_the_library_of_images_is_loaded_before_the_communicators_and_both_come_before_the_network() -> None:
    images, ledger, asked_before = _Images(), Ledger(), list[str]()

    def connect(identity: Identity, own: Ledger) -> Communicator:
        assert (identity, own) == (ALONE, ledger)
        asked_before.append(images.asked[0])
        return SingleProcess()

    made = compose(*_settings(), ALONE, ledger, images=images, source_state=b"there", connect=connect)  # type: ignore[arg-type]
    assert asked_before == ["load"], "or DALI would take Horovod's symbols for its own"
    assert images.asked == ["load", ("evaluation", made.engine), ("training", made.engine, b"there")]
    assert (made.training, made.evaluation) == ("the training's images", "the evaluation's images")  # type: ignore[comparison-overlap]
    phases = [row["phase"] for row in ledger.to_json()["phases"]]
    assert phases == [
        "interpreter", f"import of {ENGINES[installed_engine()].title}", "import of input", "evaluation pipeline",
        "training pipeline", "network and weights", "wait for communicator",
    ]  # fmt: skip


@pytest.mark.medium
def test_a_rank_makes_its_clock_and_draws_dropout_and_mixes_as_its_files_say() -> None:
    made = _composed("cluster.engine.timing=false")
    assert type(_composed("cluster.engine.timing=true").make_clock()) is StepClock
    assert type(made.make_clock()) is Clock
    step = made.make_step(made.make_clock(), lambda _: None)
    assert [step.layer_seed(number) for number in (0, 9)] == [layer_seed(7, 0, 0), layer_seed(7, 0, 9)]
    assert step.parts == ()
    mixed = _composed("data.mixup_alpha=0.2")
    (part,) = mixed.make_step(mixed.make_clock(), lambda _: None).parts
    assert isinstance(part, MixingPart)
    other, buckets = SingleProcess(), BucketPlan(((0,),))
    step = made.make_step(made.make_clock(), lambda _: None, communicator=other, buckets=buckets)
    assert (step.communicator, step.buckets) == (other, buckets)
