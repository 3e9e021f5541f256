"""A small file of a run folder may be missing, empty, foreign or damaged: the checkpoints decide what is resumed."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_cluster, load_recipe
from configs.plan import Position
from launch.failure_cause import Ending
from launch.resume import prepared
from launch.start.local import Outcome
from logs.checkpoints import SavedState
from logs.environment import write_environment
from logs.folder import RunFolder
from logs.metrics import MetricsWriter, read_metrics
from logs.mlperf import MlperfLog
from tests.runs import begin_logs

RECIPE, CLUSTER = load_recipe("digits"), load_cluster("laptop")
FILES = (
    "summary.json", "verdict.json", "environment.json", "startup.json", "usage.json", "attempts.jsonl", "metrics.jsonl",
    "failure_0.json", "failure_7.json", "stop", "unfinished",
)  # fmt: skip
CONTENTS = {
    "empty": b"",
    "bytes": b"\xff\xfe\0\x80\n",
    "text": b"hello\n",
    "half an object": b'{"rank": 0, "steps',
    "a list": b"[1]\n",
    "a number": b"7\n",
    "an object": b'{"a": 1}\n',
    "other types": b'{"rank": "x", "steps": [], "status": {}, "from_step": "y", "step": null, "kind": 3}\n',
    "deep": b"[" * 9**6,
    "GPUs that are a number": b'{"gpus": 7}',
    "variables that are a list": b'{"variables": [1]}',
    "flags that are a number": b'{"cpu_flags": 3}',
    "attempts that are lists": b'{"earlier_attempts": [[1]]}',
    "flags of an attempt that are a number": b'{"earlier_attempts": [{"cpu_flags": 3}]}',
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.make()
    run.write_settings(RECIPE, CLUSTER)
    run.checkpoints.write(19, SavedState({}, {"a": np.zeros(3)}), keep=2)
    begin_logs(run.path)
    return run


@pytest.mark.medium
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_damaged_small_files_do_not_keep_a_run_from_its_checkpoint(folder: RunFolder, content: bytes) -> None:
    for name in FILES:
        (folder / name).write_bytes(content)
    assert (Ending.read(folder, Outcome(1)).reports, folder.attempts.read()) == ([], [])
    with prepared(folder, RECIPE, CLUSTER, must_resume=True):
        assert folder.checkpoints.resume_point() == folder.checkpoints.files()[0]
        assert not (folder / "summary.json").exists()
        metrics = MetricsWriter(folder / "metrics.jsonl", resume_at=Position(2, 19))
        metrics.row(kind="interval", step=19, epoch=2)
        metrics.flush()
        assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [19]
        changes = write_environment(folder.path, {"OMP_NUM_THREADS": "1"})
    assert [each for each in changes if "instead of absent" not in each and "THREADS" not in each] == []
    assert json.loads((folder / "environment.json").read_text())["variables"]["OMP_NUM_THREADS"] == "1"


def _refuses(folder: RunFolder, message: str, *, must_resume: bool = True) -> None:
    """See that the run does not go on, and why."""
    with pytest.raises(UserError, match=message), prepared(folder, RECIPE, CLUSTER, must_resume=must_resume):
        pass


@pytest.mark.medium
@pytest.mark.parametrize("spoil", [os.mkfifo, lambda path: path.symlink_to("gone")])
def test_what_is_no_file_is_named_before_anything_waits_for_it(
    folder: RunFolder, spoil: Callable[[Path], None]
) -> None:
    for name in (*FILES, "result_0.txt", "of a name that nobody knows"):
        (folder / name).unlink(missing_ok=True)
        spoil(folder / name)
        _refuses(folder, rf"{name}: is neither a file nor a folder; move it away$")
        (folder / name).unlink()


def test_a_folder_in_place_of_a_file_is_named_with_what_to_do(folder: RunFolder) -> None:
    for name in ("summary.json", "verdict.json", "failure_0.json"):
        (folder / name).mkdir()
        _refuses(folder, rf"{name}: cannot be written: Is a directory; check the path")
        (folder / name).rmdir()


@pytest.mark.parametrize("gone", [("metrics.jsonl", "result_0.txt"), ("result_0.mll.txt",)])
def test_a_run_whose_end_could_not_be_judged_is_refused_before_it_trains(
    folder: RunFolder, gone: tuple[str, ...]
) -> None:
    """What the attempt before has logged is one half of what the end is compared with."""
    for name in gone:
        (folder / name).unlink()
    before = {path for path in folder.path.iterdir() if path.name != "claims"}
    named, remedy = re.escape(" and ".join(gone)), re.escape(f"--from {folder}")
    told = rf"^{folder}: {named} missing or incomplete, .* put back .* {remedy}$"
    _refuses(folder, told, must_resume=False)
    assert {path for path in folder.path.iterdir() if path.name != "claims"} == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "result_0.txt", "result_0.mll.txt"])
def test_an_evaluation_before_the_checkpoint_is_missed_and_a_later_one_is_not(folder: RunFolder, name: str) -> None:
    """A file that was emptied or damaged, or was copied before the checkpoint was, would fail the run at its end."""
    log, metrics = MlperfLog(folder.path, is_resumed=True), MetricsWriter(folder / "metrics.jsonl", Position(1, 0))
    for epoch in (1, 2):  # of 19 steps
        log.eval_accuracy(0.5, epoch)
        metrics.row(kind="evaluation", step=19 * epoch, epoch=epoch, top1=0.5)
    log.close()
    metrics.flush()
    first, second = (folder / name).read_bytes().splitlines(keepends=True)
    (folder / name).write_bytes(second)
    _refuses(folder, rf"^{folder}: {name} missing or incomplete, .* put back")
    (folder / name).write_bytes(first)
    with prepared(folder, RECIPE, CLUSTER, must_resume=True):
        assert folder.checkpoints.resume_point() is not None
