"""A wrong sum in real ranks: what the run keeps is sound."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs.checkpoints import CHECKPOINT_FOLDER
from logs.folder import RunFolder
from tests.extending import copy_program, make_environment
from tests.programs import run_program
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, train_command

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

FAULTY = '''
"""Sums in shared memory; a file has a line for each attempt: in which rank and step a sum is spoilt, and by what."""

import json
from pathlib import Path

from train.comm.shared_memory import connect as connect_shared_memory

ORDERS = Path(__file__).with_name("orders")


def connect(communication, identity, ledger):
    return Faulty(connect_shared_memory(communication, identity, ledger), identity.rank)


class Faulty:
    def __init__(self, inner, rank):
        self.inner, self.rank, self.step = inner, rank, None
        first, *self.left = ORDERS.read_text().splitlines() or ["{}"]
        self.order = json.loads(first)

    def __getattr__(self, verb):
        return getattr(self.inner, verb)

    def gather_bytes(self, name, content):
        told = self.inner.gather_bytes(name, content)
        if self.step is None:  # The ranks tell each other of their start-up, and then the first step begins.
            self.step = -1
            if self.rank == 0:
                ORDERS.write_text("\\n".join(self.left))
        return told

    def reduce(self, name, arrays, priority=0):
        if self.step is not None and name == "bucket_0":
            self.step += 1
        self.inner.reduce(name, arrays, priority)
        if (self.rank, self.step) == (self.order.get("rank"), self.order.get("step")) and name == "bucket_1":
            self.inner.complete()
            arrays[0][(0,) * len(arrays[0].shape)] = self.order["value"]
'''


class Program:
    """A copy of the program with the communicator above.

    Args:
        folder: Where the copy is made.
    """

    def __init__(self, folder: Path) -> None:
        copy_program(folder)
        self._folder, self._python = folder, str(make_environment(folder))
        (folder / "train" / "comm" / "faulty.py").write_text(FAULTY, encoding="utf-8")
        registry, last = folder / "configs" / "registry.py", '    "none": CommunicatorEntry('
        entry = '    "faulty": CommunicatorEntry("train.comm.faulty", ("mxnet", "torch"), "shared_memory"),\n'
        text = registry.read_text(encoding="utf-8")
        assert text.count(last) == 1
        registry.write_text(text.replace(last, entry + last), encoding="utf-8")

    def train(self, run: Path, *orders: dict[str, Any]) -> FinishedRun:
        """Train two epochs of eight steps on three ranks, in as many attempts as are needed.

        Args:
            run: The run folder.
            orders: A fault of each attempt: ``rank`` gets a sum with another first number in the attempt's ``step``.
        """
        (self._folder / "train" / "comm" / "orders").write_text("\n".join(map(json.dumps, orders)), encoding="utf-8")
        settings = [*TWO_EPOCHS, "cluster.ranks_per_node=3", "batch.global_size=66", "run.compare_every_steps=5",
                    "data.train_samples=528", "cluster.communication.kind=faulty", "data.source=synthetic",
                    "data.eval_samples=66"]  # fmt: skip
        words = train_command(run, *settings, words=("--max-restarts", "1"))[1:]
        done = run_program(self._python, *words, cwd=self._folder, timeout=250)
        return FinishedRun(run, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("program"))


def _kept(run: Path) -> dict[str, dict[str, Any]]:
    """Return the arrays of each checkpoint by NumPy's own reader; the digest behind them has 32 bytes."""
    states = {}
    for path in sorted((run / CHECKPOINT_FOLDER).glob("*.ckpt")):
        with np.load(io.BytesIO(path.read_bytes()[:-32])) as members:
            states[path.name] = {name: members[name] for name in members.files}
    return states


# In the middle of the second epoch, so that the restart goes on from a checkpoint.
WRONG_SUM = {"rank": 2, "step": 11, "value": 0.001}
TOLD = ("the same at step 14 of epoch 2", "rank 2 differs", "the other 2 of 3", "doctor")


@pytest.mark.timeout(600)
def test_a_wrong_sum_is_found_before_it_is_kept_and_the_restart_ends_with_the_bits_of_a_sound_run(
    program: Program, tmp_path: Path
) -> None:
    whole, run = program.train(tmp_path / "whole"), tmp_path / "run"
    assert whole.status == 0, whole.errors
    done = program.train(run, WRONG_SUM)
    assert done.status == 0, done.errors
    assert "Traceback" not in done.errors
    (attempt,) = RunFolder(run).attempts.read()
    assert all(words in attempt.cause for words in TOLD), attempt.cause
    assert read_summary(run)["weights_checksum"] == read_summary(whole.folder)["weights_checksum"]
    kept, expected = _kept(run), _kept(whole.folder)
    assert list(kept) == list(expected)
    for step, state in expected.items():
        for array in (each for each in state if each.startswith(("weights/", "momenta/"))):
            assert np.array_equal(kept[step][array], state[array]), (step, array)
