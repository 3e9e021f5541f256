"""The events of a run, one by one: kind, key, value and metadata, in the order of MLPerf's rules."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from configs.load import load_cluster
from configs.registry import ENGINES
from configs.schema import Cluster, Mlperf
from logs.mlperf import EventLog, Kind, NullLog

SUBMISSION = {"org": "Org", "platform": "box", "poc_name": "Ann", "poc_email": "a@b.c", "status": "onprem"}
ENTRY = "submission_entry"


def _cluster(engine: str, **submission: str) -> Cluster:
    """Return the cluster of a submission; the engine is set by hand, because the environment may lack it."""
    told = [f"cluster.submission.{key}={value}" for key, value in {**SUBMISSION, **submission}.items()]
    cluster = load_cluster("laptop", told)
    return cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"name": engine})})


def _framework(engine: str) -> str:
    try:
        return f"{ENGINES[engine].title} {version(ENGINES[engine].package)}" if ENGINES[engine].computes else "none"
    except PackageNotFoundError:
        return "none"


class _Told(EventLog):
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        self.events.append((kind, key, value, metadata))

    def close(self) -> None:
        """Nothing is open."""


def test_a_whole_run_has_these_events() -> None:
    log = _Told()
    log.rehearsal()
    log.resumed(7)
    log.submission(_cluster("mxnet"), Mlperf(division="closed"))
    log.cache_clear()
    log.init_start()
    log.seed(5)
    log.hyperparameters({"opt_name": "sgd", "train_samples": 3})
    log.init_stop()
    log.run_start()
    with log.block(3, 2):
        with log.epoch(4):
            pass
        with log.evaluation(4):
            pass
        log.eval_accuracy(0.5, 4)
    log.run_stop("success")
    assert log.events == [
        ("point", "rehearsal", True, {}),
        ("point", "resumed_from_step", 7, {}),
        ("point", "submission_benchmark", "resnet", {}),
        ("point", "submission_org", "Org", {}),
        ("point", "submission_division", "closed", {}),
        ("point", "submission_status", "onprem", {}),
        ("point", "submission_platform", "box", {}),
        ("point", "submission_poc_name", "Ann", {}),
        ("point", "submission_poc_email", "a@b.c", {}),
        ("point", ENTRY, {"hardware": "box", "framework": _framework("mxnet")}, {}),
        ("point", "cache_clear", True, {}),
        ("start", "init_start", None, {}),
        ("point", "seed", 5, {}),
        ("point", "opt_name", "sgd", {}),
        ("point", "train_samples", 3, {}),
        ("stop", "init_stop", None, {}),
        ("start", "run_start", None, {}),
        ("start", "block_start", None, {"first_epoch_num": 3, "epoch_count": 2}),
        ("start", "epoch_start", None, {"epoch_num": 4}),
        ("stop", "epoch_stop", None, {"epoch_num": 4}),
        ("start", "eval_start", None, {"epoch_num": 4}),
        ("stop", "eval_stop", None, {"epoch_num": 4}),
        ("point", "eval_accuracy", 0.5, {"epoch_num": 4}),
        ("stop", "block_stop", None, {"first_epoch_num": 3}),
        ("stop", "run_stop", None, {"status": "success"}),
    ]


def test_an_address_that_was_not_given_is_not_logged() -> None:
    log = _Told()
    log.submission(_cluster("mxnet", poc_email="''"), Mlperf())
    assert "submission_poc_email" not in [key for _, key, *_ in log.events]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_framework_is_that_of_the_engine_that_trains(engine: str) -> None:
    log = _Told()
    log.submission(_cluster(engine), Mlperf())
    assert [value["framework"] for _, key, value, _ in log.events if key == ENTRY] == [_framework(engine)]


@pytest.mark.parametrize("top1", [-0.001, 1.001])
def test_an_accuracy_is_a_share(top1: float) -> None:
    with pytest.raises(AssertionError):
        NullLog().eval_accuracy(top1, 1)
    for sound in (0.0, 1.0):
        NullLog().eval_accuracy(sound, 1)


def test_epochs_count_from_one() -> None:
    log = NullLog()
    for make in (lambda at: log.block(at, 1), lambda at: log.block(1, at), log.epoch, log.evaluation):
        with make(1):
            pass
        with pytest.raises(AssertionError), make(0):
            pass
