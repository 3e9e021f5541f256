"""Where a run's images come from on this rank: a packed data set, or synthetic ones that touch no disk."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from configs.errors import UserError
from configs.load import resolve_path
from configs.plan import RunPlan
from configs.schema import Cluster, Recipe
from data.cache import clear_dataset
from data.input.kept_batches import KeptBatches
from data.stage import Staged, stage
from data.verify import check_dataset
from train.comm.communicator import Communicator
from train.rank.identity import Identity
from train.rank.imports import dali_without_manual

if TYPE_CHECKING:
    from data.input.batches import EvaluationSource, TrainingSource

logger = logging.getLogger(__name__)

__all__ = ["Images", "PackedImages", "SyntheticImages", "images_of", "local_folder", "require_cold"]


class Prepared(NamedTuple):
    """What is known of a data set that lies ready.

    Attributes:
        checksums: Of its records, which tell it from any other.
        is_cold: As far as this rank looked, no image is left in memory.
    """

    checksums: dict[str, str]
    is_cold: bool


class Images(Protocol):
    """A run's images as one rank sees them."""

    def load(self) -> None:
        """Import what reads them; comes before Horovod is imported."""

    def prepare(self) -> Prepared:
        """Check that they are there, bring them here and, once a host, drop what memory holds of them."""

    def open_training(self, state: bytes = b"") -> TrainingSource:
        """Open this rank's stream of micro-batches, where one stood with this ``state``.

        Reads nothing before the first epoch begins.
        """

    def open_evaluation(self) -> EvaluationSource:
        """Open this rank's shard of the evaluation images."""

    def close(self) -> None:
        """Need them no longer; a copy on this host's disk that is not to be kept goes with its last user."""


class _Placed:
    """What every kind of images knows: the run, and this rank's place in it."""

    def __init__(self, recipe: Recipe, cluster: Cluster, plan: RunPlan, identity: Identity) -> None:
        self._recipe, self._cluster, self._identity = recipe, cluster, identity
        self._batch_size = plan.per_rank_batch_size
        self._batches_per_epoch = -(-plan.samples_per_rank // plan.per_rank_batch_size)
        self._folder = resolve_path(cluster.paths.data) / recipe.data.name

    def _place(self) -> dict[str, Any]:
        return {
            "batch_size": self._batch_size,
            "rank": self._identity.rank,
            "world_size": self._identity.world_size,
            "device_id": self._identity.local_rank if self._cluster.device == "gpu" else None,
        }


class PackedImages(_Placed):
    """Images in RecordIO, read by DALI."""

    _staged: Staged | None = None

    def load(self) -> None:
        """Import DALI.

        Horovod loads its library with RTLD_GLOBAL, and a DALI loaded after it takes C++ symbols from there: the
        first exception inside DALI, a corrupt JPEG say, then ends the process with "free(): invalid size" instead
        of a message (Horovod 0.28.1, DALI 1.34.0).
        """
        with dali_without_manual():
            import data.input.pipeline  # noqa: F401, PLC0415 (slow)

    def prepare(self) -> Prepared:
        """Check the data set against the recipe; the first rank of each host drops its pages from memory.

        Raises:
            UserError: The data set is missing, damaged or another one, or cannot be copied to this host.
        """
        manifest = check_dataset(self._folder, self._recipe.data, self._recipe.model.num_classes)
        if self._cluster.paths.stage is not None:
            self._staged = stage(self._folder, local_folder(self._cluster.paths.stage))
            self._folder = self._staged.folder
            if self._staged.copied_s is not None:
                logger.info("data set copied to %s in %.1f s", self._folder, self._staged.copied_s)
        left = clear_dataset(self._folder) if self._identity.local_rank == 0 else None
        if left is not None:
            logger.warning("%s: no cache_clear in the log, for its pages were not cleared: %s", self._folder, left)
        checksums = {"train.rec": manifest.train.rec_sha256, "eval.rec": manifest.eval.rec_sha256}
        return Prepared(checksums, is_cold=left is None)

    def open_training(self, state: bytes = b"") -> TrainingSource:
        """See `Images`."""
        from data.input.packed import open_training  # noqa: PLC0415 (imports DALI)

        open_stream = partial(open_training, self._recipe, self._cluster.engine, self._folder, **self._place())
        if not self._recipe.data.keep_batches:
            return open_stream(state=state)
        return KeptBatches(open_stream(), self._batches_per_epoch, batches_given=int(state or 0))

    def open_evaluation(self) -> EvaluationSource:
        """See `Images`."""
        from data.input.packed import open_evaluation  # noqa: PLC0415

        return open_evaluation(self._recipe, self._cluster.engine, self._folder, **self._place())

    def close(self) -> None:
        """See `Images`."""
        if self._staged is not None:
            self._staged.release(keep=self._cluster.paths.keep_stage)


class SyntheticImages(_Placed):
    """Seeded images made in memory."""

    def load(self) -> None:
        """Nothing but MXNet is needed."""

    def prepare(self) -> Prepared:
        """Nothing lies on a disk or in memory, and all follows from the recipe."""
        return Prepared({}, is_cold=True)

    def open_training(self, state: bytes = b"") -> TrainingSource:
        """See `Images`."""
        from data.input.synthetic import open_synthetic_training  # noqa: PLC0415 (imports MXNet)

        return open_synthetic_training(self._recipe, self._cluster.engine, state=state, **self._place())

    def open_evaluation(self) -> EvaluationSource:
        """See `Images`."""
        from data.input.synthetic import open_synthetic_evaluation  # noqa: PLC0415

        return open_synthetic_evaluation(self._recipe, self._cluster.engine, **self._place())

    def close(self) -> None:
        """Nothing is held."""


def local_folder(path: str) -> Path:
    """Find the folder of ``cluster.paths.stage`` on this host, whose variables may be the job's own.

    Raises:
        UserError: A variable is not set.
    """
    expanded = os.path.expandvars(path)
    if "$" in expanded:
        raise UserError(
            f"cluster.paths.stage: {path} names a variable that is not set on this host; set it or the path"
        )
    return resolve_path(expanded)


def images_of(recipe: Recipe, cluster: Cluster, plan: RunPlan, identity: Identity) -> Images:
    """Choose by the recipe's source."""
    kind = SyntheticImages if recipe.data.source == "synthetic" else PackedImages
    return kind(recipe, cluster, plan, identity)


def require_cold(communicator: Communicator, *, is_cold: bool) -> None:
    """Refuse a run whose log says that caches were cleared where some host's were not.

    Raises:
        UserError: On all ranks alike.
    """
    first, *others = communicator.gather("cleared caches", int(is_cold))
    if first and not all(others):
        ranks = ", ".join(str(rank) for rank, is_clear in enumerate(others, 1) if not is_clear)
        raise UserError(
            f"the log says cache_clear, but the hosts of ranks {ranks} hold images in memory; end what reads the data "
            f"set there, or set cluster.paths.stage to a folder on their own disks"
        )
