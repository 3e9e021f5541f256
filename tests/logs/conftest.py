"""What tests of logs and pages share."""

import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_cluster
from configs.schema import Mlperf
from logs.mlperf import EventLog, MlperfLog

COMMON: dict[str, Any] = {
    "global_batch_size": 32768, "train_samples": 1281167, "eval_samples": 50000, "gradient_accumulation_steps": 1,
    "model_bn_span": 32, "label_smoothing": 0.1, "opt_learning_rate_warmup_steps": 640,
}  # fmt: skip
LARS = COMMON | {
    "opt_name": "lars", "lars_opt_base_learning_rate": 21.2, "lars_opt_end_learning_rate": 1e-4,
    "lars_opt_learning_rate_warmup_epochs": 16, "lars_opt_learning_rate_decay_steps": 1600,
    "lars_opt_learning_rate_decay_poly_power": 2, "lars_opt_weight_decay": 5e-5, "lars_opt_momentum": 0.94,
    "lars_epsilon": 0.0, "lars_opt_trust_coefficient": 0.001,
}  # fmt: skip
SGD = COMMON | {
    "opt_name": "sgd", "sgd_opt_base_learning_rate": 0.1, "sgd_opt_end_learning_rate": 1e-4,
    "opt_learning_rate_warmup_epochs": 16, "opt_learning_rate_decay_boundary_epochs": (30.0, 60.0),
    "opt_learning_rate_decay_factor": 0.1, "sgd_opt_weight_decay": 5e-5, "sgd_opt_momentum": 0.94,
}  # fmt: skip


class ToyRun:
    """Logs four epochs in two blocks, with the hyperparameters of a closed-division submission."""

    lars, sgd = LARS, SGD

    def log_events(
        self, log: EventLog, division: Any = "closed", values: Mapping[str, Any] = LARS, top1: float = 0.761
    ) -> None:
        log.submission(load_cluster("laptop"), Mlperf(division=division))
        log.emit("point", "cache_clear", value=True)
        log.emit("start", "init_start")
        log.emit("point", "seed", 17)
        for each in values.items():
            log.emit("point", *each)
        log.emit("stop", "init_stop")
        log.emit("start", "run_start")
        time.sleep(0.002)  # The log's times are whole milliseconds.
        for first_epoch, reached in ((1, top1 / 2), (3, top1)):
            with log.block(first_epoch, 2):
                for epoch in (first_epoch, first_epoch + 1):
                    with log.interval("epoch", epoch):
                        pass
                with log.interval("eval", epoch):
                    pass
                log.eval_accuracy(reached, epoch)

    def write(self, folder: Path, status: Any = "success", **events: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        log = MlperfLog(folder)
        self.log_events(log, **events)
        log.run_stop(status)
        log.close()
        return folder


@pytest.fixture
def toy_run() -> ToyRun:
    return ToyRun()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write descriptions in place of drawings, which take most of a report's time."""
    monkeypatch.setattr("logs.show.drawing.to_svg", lambda chart: f"<svg>{escape(chart.title)}</svg>")
