"""The rules within one block of keys: the values that are just allowed, and those that are just not."""

from typing import Any

import pytest
from pydantic import BaseModel

from configs.blocks.images import Crop, Data
from configs.blocks.jobs import Container, Scheduler
from configs.blocks.rehearsal import FAULTS, MOST_SLOW, Fault, Rehearsal
from configs.blocks.training import Schedule
from configs.decays import Polynomial, StepDecay
from configs.errors import ConfigError
from configs.ideas.loss import Loss
from configs.validate import validate

WAITS = {"forward_s": 0.1, "gradients_s": [0.1], "update_s": 0.1, "evaluation_s": 0.1, "top1": [0.5]}
DATA = {"name": "x", "source": "digits", "train_samples": 1, "eval_samples": 1}
RATE = {"base_lr": 1.0, "warmup_epochs": 0.0, "decay": {"name": "polynomial"}}

# Block, the keys in every case, a key, its allowed values, its refused values.
RULES: list[tuple[type[BaseModel], dict[str, Any], str, list[Any], list[Any]]] = [
    (Scheduler, {}, "queue", ["", "gpu"], ["gpu q", "a\nb", "a\tb", "\x1b[0m", "\u2028"]),
    (Scheduler, {}, "account", ["", "a/b"], ["a\nb", "a\x00"]),
    (Scheduler, {}, "setup", [[], ["module load x\nmodule load y"]], ["module load x"]),
    (Scheduler, {}, "resources", [[], ["-pe mpi 2", "--x"]], [["--x", "-l y\n#$ -z"], ["a\tb"], ["a\rb"]]),
    (Scheduler, {}, "resources", [["{num_nodes}"], ["{ranks_per_node}:{world_size}"], ["{{", "}}"]],
     [["{nodes}"], ["{}"], ["{0}"], ["{num_nodes.x}"], ["{num_nodes}", "{num_nodes} {rank}"]]),
    (Scheduler, {}, "resources", [["a{num_nodes}b"]], [["{"], ["}"], ["{num_nodes"], ["x", "{num_nodes}}"]]),
    (Scheduler, {"wall_time_s": 60}, "notice_s", [0, 59], [-1, 60, 61]),
    (Scheduler, {"wall_time_s": None}, "notice_s", [0, 99_999], [-1]),
    (Container, {}, "mounts", [[], ["/a:/b"], ["a:/b:ro", "b:/"]],
     [["/a"], ["/a:b"], [":/b"], ["/a:/b:rw"], ["/a:/b:ro:ro"], ["/a:/b:/c"], ["a:/b", "a:"]]),
    (Container, {"runtime": "charliecloud", "image": "x"}, "mounts", [["/a:/b"]], [["/a:/b:ro"]]),
    (Container, {"runtime": "none"}, "image", [""], ["x"]),
    (Container, {"runtime": "enroot"}, "image", ["x"], [""]),
    (Rehearsal, {"waits": WAITS}, "faults", [[], ["kill@1:0"], ["slow@10:3", "disk@999999999:999999"]],
     [["kill@0:1"], ["kil@1:1"], ["kill@01:1"], ["kill@1:1 "], [" kill@1:1"], ["kill@1:-1"], ["kill@1"], ["@1:1"],
      ["KILL@1:1"], ["kill@1000000000:1"], ["kill@1:1000000"], ["kill@1:1", "kill@1:1:1"]]),
    (Rehearsal, {"waits": WAITS}, "slow_ranks", [{}, {"0": 0.001}, {"3": 1, "17": MOST_SLOW}],
     [{"0": 0}, {"0": -1}, {"0": MOST_SLOW + 0.1}, {"a": 2}, {"-1": 2}, {"1.5": 2}, {"": 2}, {"1": 2, "x": 2}]),
    (Rehearsal, {"waits": WAITS}, "slow_ranks", [{"3:copy": 2, "3:link": 2}], [{"1:disk": 2}, {":copy": 2}]),
    (Rehearsal, {"waits": WAITS}, "noise", [0, 1], [-0.1, 1.1]),
    (Data, DATA, "std", [[1, 1, 1]], [[1, 1, 0.9], [0, 1, 1], [-1, 1, 1]]),
    (Data, DATA, "name", ["a", ".a", "-a", "a b", "é"], ["", ".", "..", "a/b", "/a", "a\n"]),
    (Crop, {}, "area", [[1, 1], [0.001, 0.001], [0.08, 1]], [[0, 1], [0.5, 1.001], [0.5, 0.4], [-0.1, 1]]),
    (Crop, {"kind": "none"}, "aspect", [[0.1, 10], [2, 2]], [[0, 1], [1, 10.1], [2, 1]]),
    (Loss, {"kind": "sigmoid"}, "label_smoothing", [0], [0.01, 0.9]),
    (Loss, {"kind": "softmax"}, "label_smoothing", [0, 0.9], [1, -0.1]),
    (Schedule, RATE, "warmup_steps", [None], [0, 3]),
    (Schedule, RATE | {"warmup_steps": 0}, "warmup_epochs", [None], [0, 3]),
    (Schedule, RATE | {"warmup_steps": None}, "warmup_epochs", [0, 0.5], [None, -1]),
    (Schedule, RATE, "decay", [{"name": "polynomial", "end_lr": 1.0}, {"name": "polynomial", "end_lr_ratio": 1}],
     [{"name": "polynomial", "end_lr": 1.001}, {"name": "polynomial", "end_lr_ratio": 1.001}]),
    (Polynomial, {"name": "polynomial", "end_lr": 0.0}, "end_lr_ratio", [None], [0, 0.5]),
    (Polynomial, {"name": "polynomial", "end_lr_ratio": 0.0}, "end_lr", [None], [0, 0.5]),
    (StepDecay, {"name": "step"}, "boundaries", [[0.5], [1, 2], [1, 1.5, 9]], [[], [0], [-1, 1], [1, 1], [2, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("block", "both", "key", "allowed", "refused"), RULES)
def test_a_rule_of_a_block_ends_where_its_message_says(
    block: type[BaseModel], both: dict[str, Any], key: str, allowed: list[Any], refused: list[Any]
) -> None:
    for value in allowed:
        validate(block, {**both, key: value})
    for value in refused:
        with pytest.raises(ConfigError):
            validate(block, {**both, key: value})


def test_a_fault_is_read_and_a_rank_has_its_own_in_the_order_of_their_steps() -> None:
    assert Fault.parse("silence@120:13") == Fault("silence", 120, 13)
    assert {Fault.parse(f"{kind}@1:0").kind for kind in FAULTS} == set(FAULTS)
    faults = ["kill@9:1", "slow@10:1", "link@3:11", "notice@2:1", "error@1:0"]
    rehearsal = Rehearsal.model_validate({"waits": WAITS, "faults": faults})
    assert [each.step for each in rehearsal.faults_of(1)] == [2, 9, 10]
    assert rehearsal.faults_of(11) == [Fault("link", 3, 11)]
    assert rehearsal.faults_of(2) == []
    assert rehearsal.after_failures(0) == rehearsal
    # An error or a broken link ends an attempt; a slow rank stays slow, and a notice saves what came before.
    assert rehearsal.after_failures(2).faults == ("kill@9:1", "slow@10:1", "notice@2:1")
    assert rehearsal.after_failures(9).faults == ("slow@10:1", "notice@2:1")
