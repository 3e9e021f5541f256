"""A run's whole state, kept while it goes on and put back later: a resumed run goes on bit for bit.

What follows from the seed is not kept: weights and synthetic images draw from streams named after what they are for,
and no code here uses MXNet's or NumPy's global generators. The streams that move on are DALI's, and DALI gives them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from configs.errors import UserError
from configs.plan import BEGINNING, Position, RunPlan
from configs.resume_check import require_same
from data.input.batches import TrainingSource
from logs.checkpoints import Checkpoint, read, write
from train.comm.communicator import Communicator

__all__ = ["CheckpointWriter", "Checkpoints", "Keeper", "NoCheckpoints", "NullWriter", "Origin", "weights_of"]

logger = logging.getLogger(__name__)

Collect = Callable[[], Checkpoint]


class Keeper(Protocol):
    """What the loop tells whoever keeps its state; every rank calls each verb at the same point."""

    def evaluated(self, source: TrainingSource, at: Position) -> None:
        """Keep the state after an evaluation, if one is due."""

    def stopped(self, source: TrainingSource, at: Position) -> None:
        """Keep the state now, and come back when it is safe on the disk."""


class NoCheckpoints:
    """The null twin."""

    def evaluated(self, source: TrainingSource, at: Position) -> None:
        """Keep nothing."""

    def stopped(self, source: TrainingSource, at: Position) -> None:
        """Keep nothing."""


class Writer(Protocol):
    """Where states go: a folder on rank 0, nowhere on the others."""

    def write(self, step: int, collect: Collect) -> None:
        """Take the state that ``collect`` gives, and come back before it is written."""

    def wait(self) -> None:
        """Come back when everything is written; raises what writing raised."""


class NullWriter:
    """The writer of every rank but 0."""

    def write(self, step: int, collect: Collect) -> None:
        """Collect nothing: what rank 0 has of the common state is enough."""

    def wait(self) -> None:
        """Nothing is under way."""


class CheckpointWriter:
    """Writes in a thread of its own, one state after the other.

    Args:
        run_folder: Whose ``checkpoints`` it fills.
        keep: How many to leave there.
    """

    def __init__(self, run_folder: Path, keep: int) -> None:
        self._run_folder, self._keep = run_folder, keep
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Path] | None = None

    def write(self, step: int, collect: Collect) -> None:
        """Copy the state to the host, and leave the rest to the thread; waits for the one before."""
        self.wait()
        self._pending = self._thread.submit(write, self._run_folder, step, collect(), keep=self._keep)

    def wait(self) -> None:
        """Wait for the last one."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


@dataclass
class Checkpoints:
    """The keeper of a real run.

    Attributes:
        network: Weights and batch-norm statistics.
        optimizer: Its state, ``momenta``.
        communicator: Brings the ranks' own states together.
        writer: Where states go.
        whose: Recipe, ranks and data, compared before a resumption.
        every_epochs: Least distance of two periodic states; None: none are kept.
        saved: Where the last state stands; the run began there.
        alive: Told before anything that takes time.
    """

    network: Any
    optimizer: Any
    communicator: Communicator
    writer: Writer
    whose: Mapping[str, Any]
    every_epochs: int | None
    saved: Position
    alive: Callable[[], None]

    def evaluated(self, source: TrainingSource, at: Position) -> None:
        """Keep the state if one is due. A disk that is full costs the state, not the run."""
        if self.every_epochs is None or at.epoch - self.saved.epoch < self.every_epochs:
            return
        try:
            self._save(at, source.state(), has_common_statistics=True)
        except UserError as error:
            logger.warning("no checkpoint after step %d: %s", at.step, error)

    def stopped(self, source: TrainingSource, at: Position) -> None:
        """Keep the state wherever the run stands; all ranks wait until it is on the disk.

        Raises:
            UserError: The disk is full.
        """
        self._save(at, source.state(), has_common_statistics=False)
        self.writer.wait()
        self.communicator.gather("checkpoint written", at.step)

    def finished(self, at: Position) -> None:
        """Keep the trained network at the end of a run."""
        try:
            self._save(at, b"", has_common_statistics=True)
            self.writer.wait()
        except UserError as error:
            logger.warning("the trained network is not kept: %s", error)

    def _save(self, at: Position, own: bytes, *, has_common_statistics: bool) -> None:
        """Bring together what each rank has of its own, and hand all to the writer.

        An evaluation averages the statistics, so that right after one they are the same everywhere.
        """
        self.alive()
        statistics: dict[str, np.ndarray] = self.network.read_statistics()
        kept = [b"".join(each.tobytes() for each in statistics.values())]
        if not has_common_statistics:
            kept = self.communicator.gather_bytes("checkpoint statistics", kept[0])
        data = self.communicator.gather_bytes("checkpoint data", own)

        def collect() -> Checkpoint:
            arrays = {f"weights/{name}": array for name, array in self.network.read_weights().items()}
            arrays |= {f"momenta/{number}": each.asnumpy() for number, each in enumerate(self.optimizer.momenta)}
            rows = np.stack([np.frombuffer(each, np.float32) for each in kept])
            ends = np.cumsum([0, *(each.size for each in statistics.values())])
            for name, start, end in zip(statistics, ends, ends[1:], strict=False):
                arrays[f"statistics/{name}"] = rows[:, start:end]
            arrays |= {f"data/{rank}": np.frombuffer(state, np.uint8) for rank, state in enumerate(data)}
            return Checkpoint({"whose": self.whose, "epoch": at.epoch, "step": at.step}, arrays)

        self.saved = at
        self.writer.write(at.step, collect)


def weights_of(checkpoint: Checkpoint, rank: int | None = None) -> dict[str, np.ndarray]:
    """Give parameters (OIHW) and running statistics by name, float32.

    Args:
        checkpoint: Of a run that was stopped anywhere, in which the ranks' statistics differ.
        rank: Whose statistics; none: their mean, as an evaluation makes it.
    """
    weights = _below("weights/", checkpoint)
    for name, rows in _below("statistics/", checkpoint).items():
        weights[name] = rows.mean(axis=0) if rank is None else rows[rank if len(rows) > 1 else 0]
    return weights


def _below(prefix: str, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): each for name, each in checkpoint.arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Origin:
    """Where a run begins: at its beginning, or at what a checkpoint keeps."""

    position: Position = BEGINNING
    checkpoint: Checkpoint | None = None

    @classmethod
    def of(cls, path: Path | None, whose: Mapping[str, Any], plan: RunPlan) -> Origin:
        """Read a checkpoint, if there is one, and see that it is one of the same run.

        Raises:
            UserError: It is damaged, nothing is left to do, or the recipe, the ranks or the data are others.
        """
        if path is None:
            return cls()
        checkpoint = read(path)
        require_same(checkpoint.meta["whose"], whose, str(path))
        position = Position(checkpoint.meta["epoch"], checkpoint.meta["step"])
        if position.epoch > plan.last_epoch:
            raise UserError(f"{path}: the run has come to its last epoch, {plan.last_epoch}; start a new one")
        return cls(position, checkpoint)

    @property
    def resumed_from_step(self) -> int | None:
        """Give the steps that earlier attempts have done; None: there was none."""
        return None if self.checkpoint is None else self.position.step

    def weights(self, rank: int) -> dict[str, np.ndarray] | None:
        """Give what ``TrainedNetwork.load_weights`` takes; None: the recipe says what to begin with."""
        return None if self.checkpoint is None else weights_of(self.checkpoint, rank)

    def put_back(self, momenta: Sequence[Any]) -> None:
        """Set the optimizer's state to what was kept, bit for bit."""
        if self.checkpoint is None:
            return
        import mxnet as mx  # noqa: PLC0415 (slow)

        for number, momentum in enumerate(momenta):
            mx.nd.array(self.checkpoint.arrays[f"momenta/{number}"]).copyto(momentum)

    def source_state(self, rank: int) -> bytes:
        """Give what this rank's source of images said of itself."""
        return b"" if self.checkpoint is None else self.checkpoint.arrays[f"data/{rank}"].tobytes()
