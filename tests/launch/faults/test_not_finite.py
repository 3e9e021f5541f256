"""A gradient that is not finite, in real ranks of each engine: the run fails, and what it keeps is finite."""

import io
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logs.checkpoints import CHECKPOINT_FOLDER
from tests.engines import each_engine
from tests.extending import copy_program, make_environment
from tests.runs import TWO_EPOCHS, FinishedRun, read_summary, train_command

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

FAULTY = '''
"""Sums in shared memory; a file tells in which step rank 1 spoils its gradient of the first layer, and by what."""

from pathlib import Path

from train.comm.shared_memory import connect as connect_shared_memory

ORDER = Path(__file__).with_name("order")


def connect(communication):
    inner = connect_shared_memory(communication)
    return lambda identity, ledger: Faulty(inner(identity, ledger), identity.rank)


class Faulty:
    def __init__(self, inner, rank):
        self.inner, self.rank, self.step = inner, rank, None

    def __getattr__(self, verb):
        return getattr(self.inner, verb)

    def gather_bytes(self, name, content):
        if self.step is None:  # The ranks tell each other of their start-up, and then the first step begins.
            self.step = 0
        return self.inner.gather_bytes(name, content)

    def reduce(self, name, arrays, priority=0):
        first = [each for each in arrays if len(each.shape) == 4 and each.shape[1] == 3]
        if first and self.step is not None:
            if self.rank == 1 and ORDER.exists() and self.step == int(ORDER.read_text().split()[0]):
                first[0][0, 0, 0, 0] = float(ORDER.read_text().split()[1])
                ORDER.unlink()
            self.step += 1
        self.inner.reduce(name, arrays, priority)
'''


class Program:
    """A copy of the program with the communicator above.

    Args:
        folder: Where the copy is made.
        data: The packed data sets.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        copy_program(folder)
        self._folder, self._data, self._python = folder, data, str(make_environment(folder))
        (folder / "train" / "comm" / "faulty.py").write_text(FAULTY, encoding="utf-8")
        registry, last = folder / "configs" / "registry.py", '    "none": CommunicatorEntry('
        entry = '    "faulty": CommunicatorEntry("train.comm.faulty", ("mxnet", "torch"), "shared_memory"),\n'
        text = registry.read_text(encoding="utf-8")
        assert text.count(last) == 1
        registry.write_text(text.replace(last, entry + last), encoding="utf-8")

    def train(self, run: Path, engine: str) -> FinishedRun:
        """Train two epochs of 19 steps, with a checkpoint after the first."""
        ways = [f"cluster.engine.name={engine}", "cluster.communication.kind=faulty"]
        return self._launch(run, *train_command(run, *TWO_EPOCHS, *ways, f"cluster.paths.data={self._data}")[1:])

    def resume(self, run: Path) -> FinishedRun:
        """Go on with a run."""
        return self._launch(run, "-I", "-m", "launch", "train", "--resume", str(run))

    def order(self, step: int, value: float) -> None:
        """Have the next start spoil a gradient in its step number ``step``, from 0."""
        (self._folder / "train" / "comm" / "order").write_text(f"{step} {value}", encoding="utf-8")

    def _launch(self, run: Path, *words: str) -> FinishedRun:
        command = [self._python, *words]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False, timeout=250)
        return FinishedRun(run, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, packed_digits: Path) -> Program:
    return Program(tmp_path_factory.mktemp("program"), packed_digits)


def _kept(run: Path) -> dict[str, dict[str, Any]]:
    """Return the arrays of each checkpoint by NumPy's own reader; the digest behind them has 32 bytes."""
    states = {}
    for path in sorted((run / CHECKPOINT_FOLDER).glob("*.ckpt")):
        with np.load(io.BytesIO(path.read_bytes()[:-32])) as members:
            states[path.name] = {name: members[name] for name in members.files}
    return states


def _is_finite(state: dict[str, Any]) -> bool:
    return all(np.isfinite(each).all() for each in state.values() if each.dtype.kind == "f")


@each_engine
@pytest.mark.timeout(600)
def test_a_gradient_that_is_not_finite_fails_the_run_which_goes_on_from_the_last_finite_state(
    name: str, program: Program, tmp_path: Path
) -> None:
    whole, run = program.train(tmp_path / "whole", name), tmp_path / "run"
    assert whole.status == 0, whole.errors
    program.order(24, math.nan)  # in the middle of the second epoch
    _require_failure(program.train(run, name), ["loss", "step 25"] if name == "torch" else AT_THE_END)
    program.order(37 - 19, math.inf)  # in its last step, whose loss does not show it
    _require_failure(program.resume(run), AT_THE_END)
    done = program.resume(run)
    assert done.status == 0, done.errors
    assert read_summary(run)["weights_checksum"] == read_summary(whole.folder)["weights_checksum"]
    assert all(map(_is_finite, _kept(run).values()))


AT_THE_END = ["_weight", "step 37", "epoch 2", "rank 0, 1"]
"""What is told of a gradient that no loss has shown before the evaluation."""


def _require_failure(failed: FinishedRun, words: Sequence[str]) -> None:
    """Check that a run has failed with a line with the words, and has kept the state after the first epoch alone."""
    assert failed.status == 1, failed.output + failed.errors
    assert "Traceback" not in failed.errors
    failure = read_summary(failed.folder)["failure"]
    assert all(each in failure for each in ("not finite", *words, "--resume", "schedule.base_lr")), failure
    states = _kept(failed.folder)
    assert list(states) == ["step-00000019.ckpt"]
    assert all(map(_is_finite, states.values()))
