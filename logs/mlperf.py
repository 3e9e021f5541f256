"""A run's MLPerf events, in the order that MLPerf's rules ask for, and the files that rank 0 writes the events into.

``result_0.txt`` is for ruleset 4.0.0 (``:::MLLOG {json}``), and ``result_0.mll.txt`` for ruleset 0.6.0, that of the
2019 record (``:::MLL seconds key: {json}``). There are two files because the checker of either ruleset refuses the
lines of the other. Keys are those of ruleset 4.0.0.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TextIO

from configs.errors import UserError
from configs.load import ROOT
from configs.reading import is_file, read_bytes
from configs.registry import ENGINES, EngineEntry
from configs.schema import Cluster, Mlperf
from logs.disk import explain_disk_errors

RESULT_FILES = {"4.0.0": "result_0.txt", "0.6.0": "result_0.mll.txt"}
"""Ruleset -> the file in a run folder that is written for this ruleset."""

_JUMP_S = 1.0
"""Least jump that is named. Daemons that keep a clock right slow it down or speed it up, and so all clocks of Linux."""

_NOT_CALLERS = (__file__, contextlib.__file__)
"""Source files between an event and the code that logs it; contextlib runs blocks, epochs, evaluations."""

_EVENT_TYPES = {"point": "POINT_IN_TIME", "start": "INTERVAL_START", "stop": "INTERVAL_END"}

_OLD_KEYS = {
    "lars_opt_base_learning_rate": "opt_base_learning_rate",
    "sgd_opt_base_learning_rate": "opt_base_learning_rate",
    "lars_opt_learning_rate_warmup_epochs": "opt_learning_rate_warmup_epochs",
    "seed": "run_set_random_seed",
    "train_samples": "preproc_num_train_examples",
    "eval_samples": "preproc_num_eval_examples",
}
"""Key of ruleset 4.0.0 -> key of 0.6.0, where the two differ. *Source*: the checker's rules and the 2019 logs."""

Kind = Literal["point", "start", "stop"]
Status = Literal["success", "aborted"]


class EventLog:
    """A run's log of events; this one, of every rank but 0, writes nothing.

    MLPerf's rules ask for this order: submission, cache_clear if no data of the data set is in the page cache,
    init_start, seed and hyperparameters, init_stop, run_start, before which no byte of the training data may have been
    read; then blocks of epochs, and inside each block one evaluation with its accuracy; run_stop. Epochs count from 1.
    Two keys of our own, ``rehearsal`` and ``resumed_from_step``, come before anything else: no such run can be
    submitted. If an exception leaves a block, an epoch or an evaluation, no stop event is logged for it, because it did
    not end; `run_stop` then says that the run was aborted.
    """

    _stopped = False

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Log one event, under a key of MLPerf's rules or a key of our own."""

    def close(self) -> None:
        """Close the log; nothing may be logged afterwards."""

    def submission(self, cluster: Cluster, mlperf: Mlperf) -> None:
        """Log who submits and what runs; comes first, because the checker derives time limits from the division."""
        submission = cluster.submission
        told = {
            "benchmark": mlperf.benchmark,
            "org": submission.org,
            "division": mlperf.division,
            "status": submission.status,
            "platform": submission.platform,
            "poc_name": submission.poc_name,
            **({"poc_email": submission.poc_email} if submission.poc_email else {}),
            "entry": {"hardware": submission.platform, "framework": _framework(ENGINES[cluster.engine.name])},
        }
        for key, value in told.items():
            self.emit("point", f"submission_{key}", value)

    def run_stop(self, status: Status) -> None:
        """Log the end of the timed run, exactly once a run."""
        assert not self._stopped, "run_stop is logged exactly once"
        self._stopped = True
        self.emit("stop", "run_stop", status=status)

    @contextmanager
    def block(self, first_epoch: int, epoch_count: int) -> Iterator[None]:
        """Log start and stop around the epochs up to an evaluation, and around that evaluation."""
        assert first_epoch >= 1
        assert epoch_count >= 1
        self.emit("start", "block_start", first_epoch_num=first_epoch, epoch_count=epoch_count)
        yield
        self.emit("stop", "block_stop", first_epoch_num=first_epoch)

    @contextmanager
    def interval(self, name: Literal["epoch", "eval"], epoch: int) -> Iterator[None]:
        """Log start and stop around the steps of one epoch, or around the evaluation after it."""
        assert epoch >= 1
        self.emit("start", f"{name}_start", epoch_num=epoch)
        yield
        self.emit("stop", f"{name}_stop", epoch_num=epoch)

    def eval_accuracy(self, top1: float, epoch: int) -> None:
        """Log the top-1 accuracy (0 to 1) on the validation images after ``epoch``."""
        assert 0 <= top1 <= 1, top1
        self.emit("point", "eval_accuracy", top1, epoch_num=epoch)


def _framework(engine: EngineEntry) -> str:
    for name in engine.distributions:
        with contextlib.suppress(PackageNotFoundError):
            return f"{engine.title} {version(name)}"
    return "none"


class MlperfLog(EventLog):
    """The log of rank 0: writes each event at once, as a whole line, to both files of the run folder.

    Args:
        run_folder: An existing folder. Without ``is_resumed`` it must hold no result files.
        is_resumed: Append to the files of an earlier attempt. The official checker refuses such a log, as it should.

    Raises:
        UserError: If the disk is full, or the file was deleted, now or at a later event.
    """

    def __init__(self, run_folder: Path, *, is_resumed: bool = False) -> None:
        self._clock_s = _clock_s()
        self._files: dict[str, tuple[Path, TextIO]] = {}
        for ruleset, name in RESULT_FILES.items():
            path = run_folder / name
            assert is_resumed or not is_file(path), f"{path} belongs to another run"
            with explain_disk_errors(path):
                self._files[ruleset] = path, path.open("a", encoding="utf-8", buffering=1)

    def emit(self, kind: Kind, key: str, value: Any = None, **metadata: Any) -> None:
        """Write one event to both files; if the process is killed later, the event is not lost."""
        lines = _lines(self._clock_s, kind, key, value, metadata)
        for ruleset, (path, file) in self._files.items():
            with explain_disk_errors(path):
                file.write(lines[ruleset])
                # Where the folder is gone, or another run has begun there, rank 0's claim tells so.
                if not os.fstat(file.fileno()).st_nlink and not path.exists() and path.parent.is_dir():
                    raise UserError(f"{path}: was deleted during the run, which ends; start it again")

    def close(self) -> None:
        """Close both files, the second also if closing the first fails; name a jump of the machine's clock."""
        if abs(moved_s := _clock_s() - self._clock_s) > _JUMP_S:
            words = "the times of log and summary are by a clock that nobody moves"
            sys.stderr.write(f"warning: the clock of this machine was moved by {moved_s:+,.0f} s in the run; {words}\n")
        with contextlib.ExitStack() as stack:
            for path, file in self._files.values():
                stack.enter_context(explain_disk_errors(path))
                stack.enter_context(file)


def event_of(key: str) -> re.Pattern[bytes]:
    """Return the pattern of an event of this key in a log of either format."""
    return re.compile(rf'"key": "{key}"|^:::MLL [\d.]+ {key}:'.encode(), re.MULTILINE)


def close_log(path: Path, ruleset: str) -> None:
    """Append ``run_stop`` with status aborted to the log of a killed run, if the log has no ``run_stop`` yet.

    A last line that was cut off is removed first. A missing log is not created.

    Args:
        path: One of the result files; no process may be writing to this file.
        ruleset: The ruleset that the file is written for, a key of `RESULT_FILES`.

    Raises:
        UserError: If the disk is full.
    """
    if not is_file(path):
        return
    whole, _, _torn = read_bytes(path).rpartition(b"\n")
    *_, last_attempt = event_of("resumed_from_step").split(whole)
    if event_of("run_stop").search(last_attempt):
        return
    line = _lines(_clock_s(), "stop", "run_stop", None, {"status": "aborted"})[ruleset]
    with explain_disk_errors(path), path.open("r+b") as file:
        file.truncate(len(whole) + 1 if whole else 0)
        file.seek(0, 2)
        file.write(line.encode())


def _clock_s() -> float:
    """Return the Unix time at which the steady clock was 0, by the machine's clock, which may be moved meanwhile."""
    return time.time() - time.monotonic()


def _lines(clock_s: float, kind: Kind, key: str, value: Any, metadata: dict[str, Any]) -> dict[str, str]:
    """Return ruleset -> the line of an event that happens now, with the source file and line of the code that logs.

    The first is the line of MLPerf's own logger, of which this format is all that a run needs.

    Args:
        clock_s: See `_clock_s`: the time of an event is that of the first event and the seconds since then.
        kind: Kind of the event.
        key: Key of ruleset 4.0.0.
        value: What JSON can hold, or NumPy's form of it.
        metadata: Likewise.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _NOT_CALLERS and frame.f_back is not None:
        frame = frame.f_back
    place = {"file": frame.f_code.co_filename.removeprefix(f"{ROOT}/"), "lineno": frame.f_lineno}
    event = {"value": value, "metadata": place | metadata}
    time_ms = int((clock_s + time.monotonic()) * 1e3)
    record = {"namespace": "", "time_ms": time_ms, "event_type": _EVENT_TYPES[kind], "key": key, **event}
    texts = [json.dumps(each, default=lambda number: number.tolist()) for each in (record, event)]
    old = f":::MLL {time_ms / 1000:.3f} {_OLD_KEYS.get(key, key)}: {texts[1]}\n"
    return {"4.0.0": f":::MLLOG {texts[0]}\n", "0.6.0": old}
