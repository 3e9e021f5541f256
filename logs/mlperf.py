"""A run's MLPerf events, written once through the official logger and kept in both line dialects.

``result_0.txt`` speaks ruleset 4.0.0 (``:::MLLOG {json}``), ``result_0.mll.txt`` ruleset 0.6.0, the one of the 2019
record (``:::MLL seconds key: {json}``). The checker of either refuses the other's lines, hence two files. Only home of
``mlperf_logging.mllog``; rank 0 writes, the other ranks hold a `NullLog`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from configs.load import ROOT
from logs import events
from logs.disk import explain_disk_errors
from logs.events import EventLog, Kind, NullLog

__all__ = ["RESULT_FILES", "EventLog", "MlperfLog", "NullLog", "close_log"]

RESULT_FILES = {"4.0.0": "result_0.txt", "0.6.0": "result_0.mll.txt"}
"""Ruleset -> the file of a run folder that is written for it."""

_TOKEN = ":::MLLOG "
_NOT_CALLERS = (__file__, events.__file__, contextlib.__file__)
"""Files whose frames lie between mllog and the code that logs; contextlib's are those of the intervals."""

_OLD_KEYS = {
    "lars_opt_base_learning_rate": "opt_base_learning_rate",
    "sgd_opt_base_learning_rate": "opt_base_learning_rate",
    "lars_opt_learning_rate_warmup_epochs": "opt_learning_rate_warmup_epochs",
    "seed": "run_set_random_seed",
    "train_samples": "preproc_num_train_examples",
    "eval_samples": "preproc_num_eval_examples",
}
"""Key of ruleset 4.0.0 -> its name in 0.6.0, where they differ. *Source*: the checker's rules and the 2019 logs."""


class MlperfLog(EventLog):
    """The log of rank 0: each event goes at once, a whole line, to both files of the run folder.

    Args:
        run_folder: An existing folder without result files, save where a run goes on.
        goes_on: The log goes on behind an earlier attempt's, which the official checker refuses, as it should.

    Raises:
        UserError: The disk is full, here or at any later event.
    """

    def __init__(self, run_folder: Path, *, goes_on: bool = False) -> None:
        self._encoder = _Encoder()
        self._files: dict[str, tuple[Path, TextIO]] = {}
        for ruleset, name in RESULT_FILES.items():
            path = run_folder / name
            assert goes_on or not path.is_file(), f"{path} is another run's"
            with explain_disk_errors(path):
                self._files[ruleset] = path, path.open("a", encoding="utf-8", buffering=1)

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Write one event to both files; a killed process loses nothing that was emitted."""
        line = self._encoder.encode(kind, key, value, metadata)
        for ruleset, (path, file) in self._files.items():
            with explain_disk_errors(path):
                file.write(_DIALECTS[ruleset](line) + "\n")

    def close(self) -> None:
        """Close both files, the second even if the first cannot be."""
        with contextlib.ExitStack() as stack:
            for path, file in self._files.values():
                stack.enter_context(explain_disk_errors(path))
                stack.enter_context(file)


def close_log(path: Path, ruleset: str) -> None:
    """Append ``run_stop`` with status aborted to the log of a killed run, unless it has a ``run_stop``.

    A last line that was cut off is dropped first. A log that does not exist stays so.

    Args:
        path: One of the result files; no process may be writing it.
        ruleset: Whose dialect the file is in, a key of `RESULT_FILES`.

    Raises:
        UserError: The disk is full.
    """
    if not path.is_file():
        return
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    *_, last_attempt = re.split(
        rb'"key": "resumed_from_step"|^:::MLL [\d.]+ resumed_from_step:', whole, flags=re.MULTILINE
    )
    if re.search(rb'"key": "run_stop"|^:::MLL [\d.]+ run_stop:', last_attempt, re.MULTILINE):
        return
    line = _Encoder().encode("stop", "run_stop", None, {"status": "aborted"})
    with explain_disk_errors(path), path.open("r+b") as file:
        file.truncate(len(whole) + 1 if whole else 0)
        file.seek(0, 2)
        file.write(f"{_DIALECTS[ruleset](line)}\n".encode())


class _Encoder(logging.Handler):
    """The official logger, on a `logging.Logger` of its own that keeps the line instead of printing it.

    The package's shared logger, which prints to stdout and gathers handlers from whoever used it before, is left alone.
    """

    def __init__(self) -> None:
        from mlperf_logging.mllog import mllog  # noqa: PLC0415 (brings NumPy, which those who only read logs do not need)

        super().__init__()
        self._line = ""
        logger = logging.Logger(__name__, logging.INFO)  # unregistered: no parent, so nothing reaches the console
        logger.addHandler(self)
        # MLLogger takes root_dir for a regular expression.
        self._mllogger = mllog.MLLogger(logger, root_dir=re.escape(str(ROOT)))
        self._methods = {"point": self._mllogger.event, "start": self._mllogger.start, "stop": self._mllogger.end}

    def emit(self, record: logging.LogRecord) -> None:
        self._line = record.getMessage()

    def encode(self, kind: Kind, key: str, value: Any, metadata: dict[str, Any]) -> str:
        """Give the ``:::MLLOG`` line of an event, with the file and line of whoever called this module."""
        self._methods[kind](key, value, metadata=metadata or None, stack_offset=_frames_to_caller())
        # mllog logs "Failed to encode" instead of raising.
        assert self._line.startswith(_TOKEN), self._line
        return self._line


def _frames_to_caller() -> int:
    """Count the frames between mllog and the code that logs."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and frame.f_code.co_filename in _NOT_CALLERS:
        frame, count = frame.f_back, count + 1
    return count + 1


def _to_mll(line: str) -> str:
    """Translate a line of ruleset 4.0.0 into one of 0.6.0."""
    record = json.loads(line.removeprefix(_TOKEN))
    key = _OLD_KEYS.get(record["key"], record["key"])
    event = {"value": record["value"], "metadata": record["metadata"]}
    return f":::MLL {record['time_ms'] / 1000:.3f} {key}: {json.dumps(event)}"


_DIALECTS: dict[str, Callable[[str], str]] = {"4.0.0": str, "0.6.0": _to_mll}
