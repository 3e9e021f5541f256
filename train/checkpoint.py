"""Checkpoints: the whole state of a run, written while the run goes on and restored later, bit for bit.

State that follows from the seed is not kept. Weights and synthetic images draw from streams named after their purpose,
and no code uses a framework's or NumPy's global generators. DALI's streams have a state, which DALI itself provides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import UserError
from configs.ideas import IDEAS
from configs.ideas.part import Part
from configs.plan import BEGINNING, Position, RunPlan
from configs.resume_check import RANKS, require_unchanged
from data.input.batches import TrainingSource
from logs.checkpoints import CheckpointFolder, DamagedCheckpoint, SavedState, read, step_of
from train.best_checkpoint import BestMark
from train.comm.communicator import Communicator
from train.engine.protocol import Array

if TYPE_CHECKING:
    from train.engine.build import ModelParts
    from train.evaluate import Score

logger = logging.getLogger(__name__)

Collect = Callable[[], SavedState]


class CheckpointWriter:
    """Writes checkpoints in a thread of its own, one after the other.

    Args:
        folder: The checkpoints of the run. If None, as on every rank but 0, nothing is written.
        keep: Number of newest checkpoints to keep.
    """

    def __init__(self, folder: CheckpointFolder | None, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Path] | None = None
        self._step = 0
        self._written: int | None = None

    def write(self, step: int, collect: Collect, *, mark: str | None = None) -> None:
        """Copy the state that ``collect`` returns to the host and let the thread write it; waits for the one before.

        The error of the previous checkpoint is reported, and does not keep this one from being written.
        """
        if self._folder is None:
            return
        try:
            self.wait()
        except UserError as error:
            logger.warning("no checkpoint after step %d: %s", self._step, error)
        self._step = step
        self._pending = self._thread.submit(self._folder.write, step, collect(), keep=self._keep, mark=mark)

    def wait(self) -> None:
        """Wait until everything is written; raises the error of the last write if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            self._written = self._step

    def has_written(self, step: int) -> bool:
        """Return whether the newest checkpoint that was written is that of ``step``; true where nothing is written."""
        return self._folder is None or self._written == step


@dataclass
class Checkpoints:
    """Writes the checkpoints of a run. Every rank calls each verb at the same point of the run.

    Attributes:
        model: What has the state: the network, the optimizer and what the recipe's ideas compute.
        communicator: Gathers the state that each rank has of its own.
        writer: Writes the checkpoints on rank 0, nothing on the other ranks.
        fixed_settings: Recipe, ranks and data; a resumed run must have the same.
        every_epochs: Smallest distance of two periodic checkpoints. If None, there are no periodic ones.
        saved: Position of the last checkpoint; at first the position where the run began.
        on_save: Called before a checkpoint is collected, which may take long.
        changes: What differs from the settings with which the run was begun.
        mark: Says which evaluations have a marked checkpoint.
        stall_s: Seconds for which training has waited for checkpoints after evaluations.
    """

    model: ModelParts
    communicator: Communicator
    writer: CheckpointWriter
    fixed_settings: Mapping[str, Any]
    every_epochs: int | None
    saved: Position
    on_save: Callable[[], object]
    changes: tuple[str, ...] = ()
    mark: BestMark = field(default_factory=BestMark)
    stall_s: float = 0.0

    def evaluated(self, source: TrainingSource, at: Position, score: Score | None = None) -> None:
        """Keep the state after an evaluation, if a checkpoint is due or ``score`` gives it a mark.

        If the state cannot be written, the run goes on without it.
        """
        mark = self.mark.of(at, score)
        if mark is None and (self.every_epochs is None or at.epoch - self.saved.epoch < self.every_epochs):
            return
        begin = time.perf_counter()
        self._save(at, source.state(), has_common_statistics=True, mark=mark)
        self.stall_s += time.perf_counter() - begin

    def stopped(self, source: TrainingSource, at: Position) -> None:
        """Keep the state in the middle of an epoch or after one; all ranks wait until it is on the disk.

        Raises:
            UserError: The disk is full.
        """
        self._save(at, source.state(), has_common_statistics=False)
        self.writer.wait()
        self.communicator.gather("checkpoint written", at.step)

    def finished(self, at: Position, failure: str | None = None, score: Score | None = None) -> str | None:
        """Keep the trained network at the end of a run, without the ranks' places among the images.

        Args:
            at: The end.
            failure: Why the run failed, if it did.
            score: The last evaluation.

        Returns:
            Why the trained network is not on the disk; None if it is there, and on ranks that write nothing.
        """
        try:
            self._save(at, b"", has_common_statistics=True, failure=failure, mark=self.mark.of(at, score))
            self.writer.wait()
        except UserError as error:
            # The checkpoint after the last evaluation of a run has the same network.
            return None if self.writer.has_written(at.step) else str(error)
        return None

    def _save(
        self,
        at: Position,
        own: bytes,
        *,
        has_common_statistics: bool,
        failure: str | None = None,
        mark: str | None = None,
    ) -> None:
        """Gather the state that each rank has of its own, and hand the whole state to the writer.

        An evaluation averages the batch-norm statistics, its own and those that ideas evaluate, over the ranks, so that
        after an evaluation they are the same on every rank.
        """
        self.on_save()
        network, (weights, averaged) = self.model.network, _evaluated(self.model.parts)
        to_host = network.engine.to_host
        statistics = {f"statistics/{name}": each for name, each in network.read_statistics().items()}
        statistics |= {f"evaluated/{name}": to_host(each) for name, each in averaged.items()}
        kept = [b"".join(each.tobytes() for each in statistics.values())]
        if not has_common_statistics:
            kept = self.communicator.gather_bytes("checkpoint statistics", kept[0])
        data = self.communicator.gather_bytes("checkpoint data", own)

        def collect() -> SavedState:
            arrays = {f"weights/{name}": array for name, array in network.read_weights().items()}
            arrays |= {
                f"momenta/{number}": network.to_oihw(to_host(each))
                for number, each in enumerate(self.model.optimizer.momenta)
            }
            arrays |= {f"evaluated/{name}": network.to_oihw(to_host(each)) for name, each in weights.items()}
            rows = np.stack([np.frombuffer(each, np.float32) for each in kept])
            ends = np.cumsum([0, *(each.size for each in statistics.values())])
            for name, start, end in zip(statistics, ends, ends[1:], strict=False):
                arrays[name] = rows[:, start:end]
            arrays |= {f"data/{rank}": np.frombuffer(state, np.uint8) for rank, state in enumerate(data)}
            meta = {"settings": self.fixed_settings, "changes": self.changes, "epoch": at.epoch, "step": at.step}
            more = {} if failure is None else {"failure": failure}
            return SavedState({**meta, **more, **self.mark.facts}, arrays)

        self.saved = at
        self.writer.write(at.step, collect, mark=mark)


def weights_of(checkpoint: SavedState, rank: int | None = None) -> dict[str, np.ndarray]:
    """Return parameters (OIHW) and running statistics by name, float32.

    Args:
        checkpoint: A checkpoint; in one written in the middle of an epoch, the ranks' statistics differ.
        rank: The rank whose statistics are returned. If None, their mean, as an evaluation uses it.
    """
    rows = _below("statistics/", checkpoint)
    return _below("weights/", checkpoint) | {name: _of_rank(each, rank) for name, each in rows.items()}


def _evaluated(parts: Sequence[Part]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what ideas evaluate in place of the network's own weights, and of its running statistics, by name."""
    weights = {name: each for part in parts for name, each in part.evaluated_weights.items()}
    return weights, {name: each for part in parts for name, each in part.evaluated_statistics.items()}


def evaluated_weights(checkpoint: SavedState) -> dict[str, np.ndarray]:
    """Return what an evaluation judges: what `weights_of` returns, or what the run's ideas have in place of it."""
    checkpoint = _renamed(checkpoint)
    return weights_of(checkpoint) | _replaced(checkpoint, None)


def _replaced(checkpoint: SavedState, rank: int | None) -> dict[str, np.ndarray]:
    """Return what ideas evaluate in place of weights and running statistics, by name; see `weights_of`."""
    statistics, evaluated = _below("statistics/", checkpoint), _below("evaluated/", checkpoint)
    return {name: _of_rank(each, rank) if name in statistics else each for name, each in evaluated.items()}


def _renamed(checkpoint: SavedState) -> SavedState:
    """Return a checkpoint in which the ideas' arrays have the names of today, whatever version wrote it."""
    settings = checkpoint.meta.get("settings")
    if not isinstance(settings, dict):
        return checkpoint
    names = {old: new for idea in IDEAS for old, new in idea.renamed(settings, [*checkpoint.arrays]).items()}
    return SavedState(checkpoint.meta, {names.get(name, name): each for name, each in checkpoint.arrays.items()})


def _of_rank(rows: np.ndarray, rank: int | None) -> np.ndarray:
    """Return a rank's row of statistics, which all ranks may share. If ``rank`` is None, the mean of the rows."""
    row: np.ndarray = rows.mean(axis=0) if rank is None else rows[rank if len(rows) > 1 else 0]
    return row


def _below(prefix: str, checkpoint: SavedState) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): each for name, each in checkpoint.arrays.items() if name.startswith(prefix)}


def _foreign(path: Path, problem: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"{path}: is no checkpoint of this run ({problem}); move it away to resume from the one before"
    )


def _problem_of(checkpoint: SavedState, shapes: Mapping[str, tuple[int, ...]] | None) -> str | None:
    """Return what is wrong with the arrays of a checkpoint; None if they can be a run's.

    Args:
        checkpoint: The checkpoint.
        shapes: See `InitialState.read`.
    """
    numbers = [name for name in checkpoint.arrays if not name.startswith("data/")]
    if wrong := [name for name in numbers if checkpoint.arrays[name].dtype.kind != "f"]:
        return f"{wrong[0]} has no real numbers"
    if wrong := [name for name, rows in _below("statistics/", checkpoint).items() if rows.ndim < 1 or not len(rows)]:
        return f"statistics/{wrong[0]} are those of no rank"
    own = _below("weights/", checkpoint) | _below("statistics/", checkpoint)
    evaluated = _below("evaluated/", checkpoint)
    if wrong := [name for name, each in evaluated.items() if name not in own or each.shape != own[name].shape]:
        return f"evaluated/{wrong[0]} is {evaluated[wrong[0]].shape}, which is not the shape of {wrong[0]}"
    found = {name: each.shape for name, each in weights_of(checkpoint).items()}
    if shapes is None or found == shapes:
        return None
    name = next(each for each in {**shapes, **found} if found.get(each) != shapes.get(each))
    return f"{name} is {found.get(name, 'missing')}, wanted {shapes.get(name, 'nothing')}"


@dataclass(frozen=True)
class InitialState:
    """The state in which a run begins: that of its first step, or that of a checkpoint."""

    position: Position = BEGINNING
    checkpoint: SavedState | None = None
    changes: tuple[str, ...] = ()
    """What differs from the settings with which the run was begun."""
    has_own_states: bool = True
    """Whether each rank finds its own statistics and its own place among the images: not after a change of ranks."""
    path: Path = Path()
    """The file of the checkpoint."""
    ending: str | None = None
    """If the checkpoint is that of the run's end: why the run is not trained on if it is short of its target."""

    @classmethod
    def read(
        cls,
        path: Path | None,
        fixed_settings: Mapping[str, Any],
        plan: RunPlan,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> InitialState:
        """Read the checkpoint at ``path``, if there is one, and check that it belongs to this run.

        A run that was ended between its last step and its summary continues with its last evaluation: in the last
        epoch, of which no step is left. A longer run goes on from there.

        Args:
            path: The checkpoint. If None, the run begins at its first step.
            fixed_settings: Recipe, ranks and data of this run.
            plan: Epochs of this run.
            shapes: Name -> shape of each parameter and each running statistic. If None, they are not checked.

        Raises:
            UserError: The checkpoint is damaged or holds something else, or its recipe, ranks or data differ from this
                run's.
        """
        if path is None:
            return cls()
        checkpoint = read(path)
        meta = checkpoint.meta
        begun_with = meta.get("settings")
        epoch, step, earlier = meta.get("epoch"), meta.get("step"), meta.get("changes", ())
        if not isinstance(begun_with, dict) or not isinstance(earlier, list | tuple):
            raise _foreign(path, "it does not say of which run")
        if not (isinstance(epoch, int) and isinstance(step, int) and epoch > 0 and step == step_of(path)):
            raise _foreign(path, f"it says epoch {epoch!r}, step {step!r}")
        try:
            changes = require_unchanged(begun_with, fixed_settings, str(path), "the run of this checkpoint")
        except UserError as error:
            raise UserError(f"{error}; if the checkpoint is another run's, move it away") from None
        if problem := _problem_of(checkpoint, shapes):
            raise _foreign(path, problem)
        places = _below("data/", checkpoint)
        num_states = len(places)
        if num_states != dict(begun_with.get("cluster", {})).get(RANKS, num_states):
            raise _foreign(path, f"it has the states of {num_states} ranks only")
        has_own_states = num_states == plan.world_size
        has_ended = not any(place.size for place in places.values())  # see `Checkpoints.finished`
        is_longer = plan.epochs > dict(begun_with.get("run", {})).get("epochs", plan.epochs)
        ending = str(meta.get("failure") or f"the run had ended after step {step}") if has_ended else None
        position = Position(max(1, min(epoch - has_ended, plan.last_epoch)), step)
        return cls(
            position,
            checkpoint,
            (*map(str, earlier), *changes),
            has_own_states,
            path,
            None if is_longer else ending,
        )

    @property
    def resumed_from_step(self) -> int | None:
        """Return the number of steps done by earlier attempts, or None if this is the first attempt."""
        return None if self.checkpoint is None else self.position.step

    def weights(self, rank: int) -> dict[str, np.ndarray] | None:
        """Return the checkpoint's weights and the rank's statistics, or None if there is no checkpoint."""
        return None if self.checkpoint is None else weights_of(self.checkpoint, rank if self.has_own_states else None)

    def restore_optimizer(self, model: ModelParts, rank: int = 0) -> None:
        """Set the optimizer's state and what a rank's ideas evaluate to that of the checkpoint, if any, bit for bit.

        Raises:
            UserError: The checkpoint holds the state of another optimizer.
        """
        if self.checkpoint is None:
            return
        network, engine, (weights, statistics) = model.network, model.network.engine, _evaluated(model.parts)
        # Ideas compute nothing in a rehearsal, whose momenta are all momenta.
        checkpoint = _renamed(self.checkpoint) if weights else self.checkpoint
        saved, momenta = _below("momenta/", checkpoint), model.optimizer.momenta
        oihw = (network.to_oihw(np.broadcast_to(np.False_, each.shape)) for each in momenta)
        wanted = {str(number): each.shape for number, each in enumerate(oihw)}
        if {name: each.shape for name, each in saved.items()} != wanted:
            raise _foreign(self.path, "the optimizer's state has other shapes")
        for number, momentum in enumerate(momenta):
            engine.overwrite(momentum, engine.from_host(network.from_oihw(saved[str(number)])))
        held = weights | statistics
        found = _replaced(checkpoint, rank if self.has_own_states else None)
        if missing := held.keys() - found.keys():
            if missing != statistics.keys():
                raise _foreign(self.path, f"it has nothing that is evaluated in place of {min(missing)}")
            if rank == 0:
                words = (
                    "%s: version 0.1.0 kept no running statistics that are evaluated; they begin as the network's own"
                )
                logger.warning(words, self.path)
        for name, array in held.items():
            if name in found:
                engine.overwrite(array, engine.from_host(network.from_oihw(found[name])))

    def source_state(self, rank: int) -> bytes:
        """Return the state of the rank's source of images, empty if there is no checkpoint."""
        return self.checkpoint.arrays[f"data/{rank}"].tobytes() if self.checkpoint and self.has_own_states else b""
