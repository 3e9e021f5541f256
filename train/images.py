"""Where a run's images come from on this rank: a packed data set, or synthetic ones that touch no disk."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from configs.load import resolve_path
from configs.plan import RunPlan
from configs.schema import Cluster, Recipe
from data.cache import drop_pages
from data.kept import KeptBatches
from data.verify import check_dataset
from train.identity import Identity

if TYPE_CHECKING:
    from data.source import EvaluationSource, TrainingSource

__all__ = ["Images", "PackedImages", "SyntheticImages", "images_of"]


class Images(Protocol):
    """A run's images as one rank sees them."""

    def load(self) -> None:
        """Import what reads them; comes before Horovod is imported."""

    def prepare(self) -> dict[str, str]:
        """Check that they are there and, once a host, drop what memory holds of them; gives their checksums."""

    def open_training(self, state: bytes = b"") -> TrainingSource:
        """Open this rank's stream of micro-batches, where one stood with this ``state``.

        Reads nothing before the first epoch begins.
        """

    def open_evaluation(self) -> EvaluationSource:
        """Open this rank's shard of the evaluation images."""


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

    def load(self) -> None:
        """Import DALI.

        Horovod loads its library with RTLD_GLOBAL, and a DALI loaded after it takes C++ symbols from there: the
        first exception inside DALI, a corrupt JPEG say, then ends the process with "free(): invalid size" instead
        of a message (Horovod 0.28.1, DALI 1.34.0).
        """
        import data.pipeline  # noqa: F401, PLC0415 (slow)

    def prepare(self) -> dict[str, str]:
        """Check the data set against the recipe; the first rank of each host drops its pages from memory.

        Returns:
            What tells this data set from any other: the checksums of its records.

        Raises:
            UserError: The data set is missing, damaged or another one.
        """
        manifest = check_dataset(self._folder, self._recipe.data, self._recipe.model.num_classes)
        if self._identity.local_rank == 0:
            drop_pages([path for path in sorted(self._folder.iterdir()) if path.is_file()])
        return {"train.rec": manifest.train.rec_sha256, "eval.rec": manifest.eval.rec_sha256}

    def open_training(self, state: bytes = b"") -> TrainingSource:
        """See `Images`."""
        from data.pipeline import open_training  # noqa: PLC0415 (imports DALI)

        open_stream = partial(open_training, self._recipe, self._cluster.engine, self._folder, **self._place())
        if not self._recipe.data.keep_batches:
            return open_stream(state=state)
        return KeptBatches(open_stream(), self._batches_per_epoch, given=int(state or 0))

    def open_evaluation(self) -> EvaluationSource:
        """See `Images`."""
        from data.pipeline import open_evaluation  # noqa: PLC0415

        return open_evaluation(self._recipe, self._cluster.engine, self._folder, **self._place())


class SyntheticImages(_Placed):
    """Seeded images made in memory."""

    def load(self) -> None:
        """Nothing but MXNet is needed."""

    def prepare(self) -> dict[str, str]:
        """Nothing lies on a disk, and all follows from the recipe."""
        return {}

    def open_training(self, state: bytes = b"") -> TrainingSource:
        """See `Images`."""
        from data.synthetic import open_synthetic_training  # noqa: PLC0415 (imports MXNet)

        return open_synthetic_training(self._recipe, self._cluster.engine, state=state, **self._place())

    def open_evaluation(self) -> EvaluationSource:
        """See `Images`."""
        from data.synthetic import open_synthetic_evaluation  # noqa: PLC0415

        return open_synthetic_evaluation(self._recipe, self._cluster.engine, **self._place())


def images_of(recipe: Recipe, cluster: Cluster, plan: RunPlan, identity: Identity) -> Images:
    """Choose by the recipe's source."""
    kind = SyntheticImages if recipe.data.source == "synthetic" else PackedImages
    return kind(recipe, cluster, plan, identity)
