"""The weights with which a run begins, as ``--from RUN|FILE`` names them."""

import json
import re
from contextlib import suppress
from pathlib import Path

from configs.errors import UserError
from configs.reading import is_file, is_folder
from logs.folder import RunFolder

_EXPORTED = "network.onnx"


def starting_weights(start_from: Path | None) -> list[str]:
    """Return ``--from`` as words ``a.b=c`` that change a recipe, as ``--set`` takes them.

    Args:
        start_from: The folder of a run or of an export, or a file of weights; relative paths start in the current
            folder. If None, there is nothing to change.

    Raises:
        UserError: There are no weights, or they cannot be read.
    """
    if start_from is None:
        return []
    # Not resolve(): another node may reach the file by the same link, and not by its target.
    return [f"model.parameters={json.dumps(str(_weights_file(start_from).absolute()), ensure_ascii=False)}"]


def _weights_file(path: Path) -> Path:
    """Return the checkpoint of a run that is taken elsewhere, or else its export, or the file itself."""
    if is_file(path):
        return path
    if not is_folder(path):
        shown, num_urls = re.subn(r"^(\w+:)/", r"\1//", str(path))  # A path keeps one slash of a row.
        remedy = "download it, then give the file" if num_urls else "give the folder of a run or a file of weights"
        raise UserError(f"--from: no such file or folder: {shown}; {remedy}")
    folder = RunFolder(path)
    is_rehearsal = False
    with suppress(UserError):  # A checkpoint is of use without its run's settings, too.
        is_rehearsal = folder.is_begun and folder.cluster.rehearsal is not None
    if is_rehearsal:
        raise UserError(f"--from {path}: is a rehearsal, which trains no network; give the folder of a run")
    checkpoint, missing = folder.checkpoints.trained()
    for found in (checkpoint, path / "export" / _EXPORTED, path / _EXPORTED):
        if found is not None and is_file(found):
            return found
    missing = missing if folder.is_begun else "no run and no export in it"
    raise UserError(f"--from {path}: {missing}; give the folder of a run that has ended, or a file of weights")
