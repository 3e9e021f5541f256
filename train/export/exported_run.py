"""A run whose network is exported: settings, checkpoint, and what its data set says of the classes."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from configs.errors import UserError
from configs.load import resolve_path
from configs.lock import partial_folder
from configs.reading import Unreadable, exists, patiently
from configs.registry import has_engine, installed_engine
from configs.schema import Cluster, Recipe
from data.manifest import Manifest, load_manifest
from data.space import require_space
from logs.checkpoints import read
from logs.disk import explain_disk_errors, sync_path, write_json
from logs.folder import CONFIG_FILE, DATASET_FILE, RunFolder
from train.checkpoint import evaluated_weights
from train.engine.onnx_graph import write_onnx
from train.export.description import DESCRIPTION_FILE, describe, read_description
from train.export.formats import PREFIX, on_cpu
from train.networks.arch import network_of

_ONNX_FILE = f"{PREFIX}.onnx"
_PROGRAM = "classify.py"
_OWN_FORMATS = tuple(f"{PREFIX}{ending}" for ending in ("-symbol.json", "-0000.params", ".pt", ".pt2", ".safetensors"))
_PROBE_BYTES = 1 << 20
_ROOM = 3
"""Room for an export, in sizes of a checkpoint: up to four files of weights, where it holds weights and momenta."""

_TRIES = 5
_Result = TypeVar("_Result")

_FILES = (DESCRIPTION_FILE, _PROGRAM, _ONNX_FILE, *_OWN_FORMATS)


@dataclass(frozen=True)
class ExportedRun:
    """A run with a checkpoint.

    Attributes:
        folder: Of the run.
        recipe: Of the run, as its evaluations take it.
        cluster: Of the run, on a CPU (`on_cpu`), with the installed engine if its own is not installed here.
        checkpoint: The one that the run marks, or else the newest one that is not damaged.
    """

    folder: Path
    recipe: Recipe
    cluster: Cluster
    checkpoint: Path

    @classmethod
    def open(cls, path: Path, data: Path | None = None, *, is_last: bool = False) -> ExportedRun:
        """Find settings and checkpoint of a run.

        Args:
            path: The folder of the run.
            data: The folder of the packed data sets. If None, that of the run.
            is_last: Whether the newest checkpoint is taken, although another one is marked.

        Raises:
            UserError: The folder holds no run, a rehearsal, or no complete checkpoint.
        """
        folder = RunFolder(path)
        if not folder.is_begun:
            raise UserError(f"{path}: no {CONFIG_FILE} in it; give the folder of a run")
        recipe, cluster = folder.settings
        if cluster.rehearsal is not None:
            raise UserError(f"{path}: is a rehearsal, which trains no network; give the folder of a run")
        checkpoint, missing = folder.checkpoints.trained(is_last=is_last)
        if checkpoint is None:
            raise UserError(f"{path}: {missing}; a run writes one when it ends")
        if data is not None:
            paths = cluster.paths.model_copy(update={"data": str(data.absolute())})
            cluster = cluster.model_copy(update={"paths": paths})
        if not has_engine(cluster.engine.name):  # checkpoints hold weights of no engine
            engine = cluster.engine.model_copy(update={"name": installed_engine()})
            cluster = cluster.model_copy(update={"engine": engine})
        return cls(path, recipe.evaluated, on_cpu(cluster), checkpoint)

    @contextmanager
    def new_files(self, destination: Path | None = None) -> Iterator[Path]:
        """Yield an empty folder, whose files become those of the export when the block ends without an error.

        Until then an earlier export stays; afterwards none of its files is left, because they may be those of another
        checkpoint. ``network.json`` goes first and comes last, so that a reader finds a whole export or none.

        Args:
            destination: The folder of the export. If None, ``export`` in the run's folder.

        Raises:
            UserError: The folder cannot be made or written.
        """
        folder = destination or self.folder / "export"
        foreign = [folder / name for name in _FILES if destination and os.path.lexists(folder / name)]
        if foreign and not (folder / DESCRIPTION_FILE).is_file():
            raise UserError(f"--dest: {foreign[0]} is there already, and of no export; give another folder")
        files = ExitStack()
        try:
            str(folder).encode()  # MXNet and onnxruntime open no other path.
            partial = files.enter_context(partial_folder(folder, ".partial-"))
        except (OSError, UnicodeError) as error:
            remedy = f"export elsewhere: ./run.sh export {shlex.quote(str(self.folder))} --dest DIR"
            reason = getattr(error, "strerror", "its path is not UTF-8")
            raise UserError(f"{folder}: cannot be made: {reason}; {remedy}") from None
        with files:
            # PyTorch's writer of programs aborts the process where a disk becomes full (2.13).
            needed = _ROOM * patiently(self.checkpoint, self.checkpoint.stat).st_size + _PROBE_BYTES
            require_space(folder, needed, "an export", "or give --dest DIR on another disk")
            with _explained(folder, partial):
                yield partial
                for path in partial.iterdir():
                    sync_path(path)
                for name in _FILES:
                    (folder / name).unlink(missing_ok=True)
                for name in reversed(_FILES):
                    if (partial / name).exists():
                        (partial / name).replace(folder / name)

    def describe(self, destination: Path, score: dict[str, Any] | None) -> None:
        """Write ``network.json``, and ``classify.py`` if there is an ONNX file.

        Args:
            destination: The folder that `new_files` yields.
            score: Metric and counts of an evaluation. If None, there was none.

        Raises:
            UserError: The disk is full, or a file cannot be written.
        """
        onnx_file = file if (file := destination / _ONNX_FILE).is_file() else None
        if onnx_file:
            shutil.copyfile(Path(__file__).with_name(_PROGRAM), destination / _PROGRAM)
        content = describe(
            self.recipe, checkpoint=self.checkpoint.name, onnx_file=onnx_file, manifest=self.manifest, score=score
        )
        write_json(destination / DESCRIPTION_FILE, content)

    def onnx_export(self) -> tuple[Path, bool]:
        """Return the folder of an export with an ONNX file of the checkpoint; write one if there is none.

        No framework is imported, and nothing is evaluated.

        Returns:
            The folder, and whether it was written now.

        Raises:
            UserError: A file cannot be written.
        """
        folder = self.folder / "export"
        if self._is_current(folder):
            return folder, False
        with self.new_files() as partial:
            tensors, epsilon = evaluated_weights(read(self.checkpoint)), self.recipe.model.bn_epsilon
            write_onnx(network_of(self.recipe.model), tensors, epsilon, f"{partial}/{_ONNX_FILE}")
            self.describe(partial, None)
        return folder, True

    def _is_current(self, folder: Path) -> bool:
        try:
            found = read_description(folder)
        except Unreadable:
            raise
        except UserError:
            return False
        return found["checkpoint"] == self.checkpoint.name and found["onnx"] is not None

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of the run's data set: the run's own copy, or, where an older version trained, the data set's.

        None if there is neither, for example because the images are made in memory.
        """
        data = resolve_path(self.cluster.paths.data) / self.recipe.data.name
        for place in ((self.folder, DATASET_FILE), (data,)):
            try:
                return load_manifest(*place)
            except Unreadable:  # noqa: PERF203 (two files)
                raise
            except UserError:
                continue
        return None


def with_checkpoint(open_run: Callable[[], ExportedRun], work: Callable[[ExportedRun], _Result]) -> _Result:
    """Return what is made of a run's checkpoint; a run that goes on may remove it meanwhile, and then has another.

    Args:
        open_run: Chooses the checkpoint.
        work: Reads it.
    """
    for tries_left in reversed(range(_TRIES)):
        run = open_run()
        try:
            return work(run)
        except (OSError, UserError):
            if not tries_left or exists(run.checkpoint):
                raise
    raise AssertionError


@contextmanager
def _explained(folder: Path, partial: Path) -> Iterator[None]:
    """Say why files of an export cannot be written.

    Raises:
        UserError: A file cannot be written.
    """
    with explain_disk_errors(folder):
        try:
            yield
        except RuntimeError:  # MXNet's and PyTorch's own writers do not say what the disk answered, so it is asked.
            (partial / "probe").write_bytes(bytes(_PROBE_BYTES))
            sync_path(partial / "probe")
            raise
