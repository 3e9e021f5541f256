"""The images of a run on this rank: a data set on a disk, or synthetic images that touch no disk."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from configs.errors import UserError
from configs.load import resolve_path
from configs.plan import RunPlan
from configs.registry import ENGINES, require_reader
from configs.schema import Cluster, Recipe
from data.cache import clear_dataset
from data.input.cached_batches import CachedBatches
from data.manifest import Manifest
from data.shards import shard_range
from data.stage import Staged, stage
from data.verify import check_dataset
from train.comm.communicator import Communicator
from train.measure.chance import ClassCounts
from train.rank.identity import Identity
from train.rank.imports import dali_without_manual

if TYPE_CHECKING:
    from data.input.batches import Arrays, EvaluationSource, TrainingSource

logger = logging.getLogger(__name__)


class PreparedImages(NamedTuple):
    """Facts about a data set that is ready.

    Attributes:
        checksums: SHA-256 of the record files by name, which identify the data set.
        is_cold: Whether no image is in memory, as far as this rank has looked, and the log may say so.
        class_counts: Images of each class. If None, all classes are equally large, or an image has several labels.
        manifest: That of the data set. If None, the images are made in memory.
    """

    checksums: dict[str, str]
    is_cold: bool
    class_counts: ClassCounts | None = None
    manifest: Manifest | None = None


class Images:
    """The images of a run as one rank sees them: the run, and this rank's place in it; here seeded images in memory."""

    def __init__(self, recipe: Recipe, cluster: Cluster, plan: RunPlan, identity: Identity) -> None:
        self._recipe, self._cluster, self._identity = recipe, cluster, identity
        self._batch_size = plan.per_rank_batch_size
        self._batches_per_epoch = -(-plan.samples_per_rank // plan.per_rank_batch_size)
        self._folder = resolve_path(cluster.paths.data) / recipe.data.name

    def _shard_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return {
            "arrays": arrays,
            "batch_size": self._batch_size,
            "rank": self._identity.rank,
            "world_size": self._identity.world_size,
        }

    def load(self) -> None:
        """Import the libraries that read the images, beyond the framework; call it before Horovod is imported."""

    def prepare(self, begun_ns: int | None = None) -> PreparedImages:
        """Check the images, copy them to this host if asked for, and drop them from the page cache, once per host.

        Images that are made in memory have no checksums, since they follow from the recipe, and are cold. ``begun_ns``
        is that of `data.verify.check_dataset`.
        """
        return PreparedImages({}, is_cold=True)

    def open_training(self, arrays: Arrays, state: bytes = b"") -> TrainingSource:
        """Open this rank's stream of micro-batches; nothing is read before the first epoch begins.

        Args:
            arrays: The engine, which makes the arrays of the batches.
            state: State of a stream (`TrainingSource.state`) at which the new stream continues; empty for a new run.
        """
        from data.input.synthetic import open_synthetic_training  # noqa: PLC0415

        return open_synthetic_training(self._recipe, self._cluster.engine, state=state, **self._shard_arguments(arrays))

    def open_evaluation(self, arrays: Arrays) -> EvaluationSource:
        """Open this rank's shard of the evaluation images; ``arrays`` is the engine."""
        from data.input.synthetic import open_synthetic_evaluation  # noqa: PLC0415

        return open_synthetic_evaluation(self._recipe, self._cluster.engine, **self._shard_arguments(arrays))

    def close(self) -> None:
        """Release the images; the last user on a host removes the copy on the host's disk, unless it is kept."""


class PackedImages(Images):
    """Images on a disk, packed or in place, read by DALI."""

    _staged: Staged | None = None

    def _shard_arguments(self, arrays: Arrays) -> dict[str, Any]:
        device_id = self._identity.local_rank if self._cluster.device == "gpu" else None
        return {**super()._shard_arguments(arrays), "device_id": device_id}

    def load(self) -> None:
        """Import DALI, which must happen before Horovod is imported.

        Horovod loads its library with RTLD_GLOBAL, and a DALI loaded later takes C++ symbols from that library. The
        first exception inside DALI, for example a corrupt JPEG, then ends the process with "free(): invalid size"
        instead of a message (Horovod 0.28.1, DALI 1.34.0).

        Raises:
            UserError: This environment has no DALI.
        """
        require_reader(self._recipe.data.source)
        with dali_without_manual():
            import data.input.pipeline  # noqa: F401, PLC0415 (slow)

    def prepare(self, begun_ns: int | None = None) -> PreparedImages:
        """Check the data set against the recipe; the first rank of each host drops the data set from the page cache.

        Raises:
            UserError: The data set is missing or damaged, does not fit the recipe, or cannot be copied to this host.
        """
        is_first = self._identity.local_rank == 0
        data, num_classes = self._recipe.data, self._recipe.model.num_classes
        manifest = check_dataset(self._folder, data, num_classes, is_first=is_first, begun_ns=begun_ns)
        if self._cluster.paths.stage is not None:
            self._staged = stage(self._folder, local_folder(self._cluster.paths.stage))
            self._folder = self._staged.folder
            if self._staged.copied_s is not None:
                logger.info("data set copied to %s in %.1f s", self._folder, self._staged.copied_s)
        left = clear_dataset(self._folder) if is_first else None
        if left is not None and self._recipe.mlperf.submits:
            logger.warning(
                "%s: cache_clear is not logged, because the page cache could not be cleared: %s; for a log that passes "
                "MLPerf's check, set cluster.paths.stage to a folder on a local disk, or use a copy of your own",
                self._folder,
                left,
            )
        # A claim that other hosts may belie is worth the refusal of the run only if somebody wants the log.
        is_cold = left is None and (self._recipe.mlperf.submits or self._cluster.num_nodes == 1)
        checksums = {"train.rec": manifest.train.rec_sha256, "eval.rec": manifest.eval.rec_sha256}
        counts = ClassCounts(manifest.train.class_counts, manifest.eval.class_counts)
        return PreparedImages(checksums, is_cold, None if manifest.has_label_vectors else counts, manifest)

    def open_training(self, arrays: Arrays, state: bytes = b"") -> TrainingSource:
        """See `Images`."""
        from data.input.packed import open_training  # noqa: PLC0415 (imports DALI)

        open_stream = partial(
            open_training, self._recipe, self._cluster.engine, self._folder, **self._shard_arguments(arrays)
        )
        if not self._recipe.data.keep_batches:
            return open_stream(state=state)
        return CachedBatches(open_stream(), self._batches_per_epoch, batches_given=int(state or 0))

    def open_evaluation(self, arrays: Arrays) -> EvaluationSource:
        """See `Images`."""
        from data.input.packed import open_evaluation  # noqa: PLC0415

        return open_evaluation(self._recipe, self._cluster.engine, self._folder, **self._shard_arguments(arrays))

    def close(self) -> None:
        """See `Images`."""
        if self._staged is not None:
            self._staged.release(keep=self._cluster.paths.keep_stage)


class BlankImages(Images):
    """Blank batches, as many as the recipe's data set would give."""

    def open_training(self, arrays: Arrays, state: bytes = b"") -> TrainingSource:
        """See `Images`."""
        from data.input.synthetic import blank_batch, open_repeated  # noqa: PLC0415 (while nothing waits)

        return open_repeated(blank_batch(arrays), state)

    def open_evaluation(self, arrays: Arrays) -> EvaluationSource:
        """See `Images`."""
        from data.input.synthetic import open_blank_evaluation  # noqa: PLC0415

        shard = shard_range(self._recipe.data.eval_samples, self._identity.rank, self._identity.world_size)
        return open_blank_evaluation(arrays, shard, self._batch_size)


def local_folder(path: str) -> Path:
    """Return the folder of ``cluster.paths.stage`` on this host, with environment variables replaced.

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
    """Return the images that the recipe's ``data.source`` names, or blank ones for an engine that computes nothing."""
    kind = Images if recipe.data.source == "synthetic" else PackedImages
    return (kind if ENGINES[cluster.engine.name].computes else BlankImages)(recipe, cluster, plan, identity)


def require_cold(communicator: Communicator, *, is_cold: bool) -> None:
    """Refuse a run whose log claims ``cache_clear`` although the images are in memory on some host.

    Raises:
        UserError: The claim is false; raised on every rank.
    """
    first, *others = communicator.gather("cleared caches", int(is_cold))
    if first and not all(others):
        ranks = ", ".join(str(rank) for rank, is_clear in enumerate(others, 1) if not is_clear)
        raise UserError(
            f"the log says cache_clear, but the hosts of ranks {ranks} hold images in memory; stop the programs that "
            "read the data set there, or set cluster.paths.stage to a folder on their own disks"
        )
