"""Numbers that only their sources justify: limits of libraries and kernels, time limits, and choices of this program.

A wrong one fails no other test, because it only moves a limit. Each row says where the value comes from.
"""

import importlib
import signal
from typing import Any

import pytest

GIB, MIB = 2**30, 2**20
SETTINGS: dict[str, dict[str, Any]] = {
    "train.__main__": {"_END_S": 10},  # choice
    "train.comm.buckets": {"_SENT_AT_ONCE": 0.2},  # choice
    "train.comm.interfaces": {"_SIOCGIFADDR": 0x8915},  # linux/sockios.h
    "train.doctor.machine": {"_SAMPLE_BYTES": MIB},  # choice
    "train.doctor.probe": {"_MEASURING_S": 60, "_STEP_S": 110, "_ALLREDUCE_BYTES": 32 * MIB, "_ROUNDS": 5},  # choice
    "train.doctor.step_probe": {"_ROUNDS": 3, "_ENOUGH_S": 4.0},  # choice
    "train.engine.parameters": {"_NAMED_AT_MOST": 5},  # choice
    "train.engine.timed.device": {
        "_SIGNALS": {"kill": signal.SIGKILL, "silence": signal.SIGSTOP, "notice": signal.SIGTERM},  # docs/faults.md
    },
    "train.engine.timed.network": {"_LOSS": 1.0, "_TICK_S": 0.001},  # choice
    "train.export": {"_PREFIX": "network", "_MOST_OFF": 0.0005},  # choice
    "train.measure.chance": {"_DEVIATIONS": 3.0},  # one of 700 guessers
    "train.measure.rank_usage": {"_UNIT_BYTES": 1024},  # man 2 getrusage: ru_maxrss in kilobytes
    "train.measure.timing": {"_DRAINED_S": 0.0001},  # choice
    "train.measure.trace": {"TRACE_FILE": "trace.json", "_SETTLED_STEPS": 5, "_MOST_RANKS": 16},  # choice
    "train.networks.limits": {
        "INFERENCE_ROWS": 2**16 - 1,  # cuDNN 8.9.6
        "TRAINING_ROWS": 880_801,  # PyTorch, aten/native/Normalization.cpp
        "TENSOR_ELEMENTS": 2**31 - 1,  # MXNet without INT64_TENSOR_SIZE
    },
    "train.plan.memory": {
        "BYTES_PER_NUMBER": {"float32": 4, "float16": 2, "bfloat16": 2},  # IEEE 754; bfloat16 has 16 bits
        "_CUDA_BYTES": GIB,  # assumption
        "_WORKSPACE_BYTES": GIB,  # MXNet 1.9.1, Convolution: workspace = 1024 MB
        "_NCCL_CHANNELS": 16,
        "_NCCL_BUFFER_BYTES": 4 * MIB,  # NCCL's page on NCCL_BUFFSIZE
        "_ROUTES": {"flat": 1, "hierarchical": 3, "torus": 3},
    },
    "train.plan.document": {"_EVERY_STEP_UP_TO": 50_000, "_RULESETS": ("0.6.0", "4.0.0")},
    "train.rank.watchdog": {
        "_PR_SET_PDEATHSIG": 1,  # linux/prctl.h
        "_BACKSTOP_S": 5.0,
        "_LAST_WORDS_S": 2.0,
        "_WAITS": ("mxnet", "horovod"),
        "_MEETING_PLACES": ("train/comm/", "train/engine/torch/engine.py"),
    },
    "configs.errors": {"STOPPED_STATUS": 75},  # sysexits.h: EX_TEMPFAIL
    "configs.rules": {"MAX_REFERENCE_BATCH_SIZE": 67_840, "TARGET_TOP1": 0.759},  # mlperf-logging, rcp_checker
    "configs.resume_check": {"NUMERICS_PREFIXES": ("DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")},
    "configs.blocks.rehearsal": {"SLOWER": 10, "MOST_SLOW": 1000},  # docs/faults.md
    "configs.arguments": {"_CODES": {"strong": 1, "good": 32, "bad": 31, "faint": 2}},  # ECMA-48, SGR
    "configs.load": {
        "FOLDERS": {"recipe": "recipes", "cluster": "clusters", "study": "studies"},
        "_DEEP": 1000,
        "_MOST_VALUES": 1_000_000,
    },
    "configs.json_schema": {"_LONGEST_CHOICE": 34},
    "launch.start.key_value_server": {"_BACKLOG": 1024, "_MOST_BYTES": MIB},  # choice
    "logs.judge.eligible": {"_ACCURACY_TOLERANCE": 1e-6, "_TIME_TOLERANCE_S": 1.0, "_BACK_S": 0.5},  # choice
    "configs.keys": {"_WIDTH": 100, "_HEADS": ("KEY", "TYPE AND RANGE", "UNIT", "DEFAULT")},
}


@pytest.mark.parametrize("module", SETTINGS)
def test_a_setting_changes_with_its_source_only(module: str) -> None:
    held = vars(importlib.import_module(module))
    assert {name: held[name] for name in SETTINGS[module]} == SETTINGS[module]
