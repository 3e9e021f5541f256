"""The machines that a study's runs measured, in words that give no name away."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logs.environment import ENVIRONMENT_FILE
from logs.study.cells import ScalingRow


def machines(rows: Sequence[ScalingRow], runs: Path) -> list[str]:
    """Return each kind of machine once, as ``AMD EPYC, 2 cores``; runs that recorded none are left out.

    Args:
        rows: The study's rows.
        runs: Folder of the runs' folders.
    """
    folders = [runs / row.folder for row in rows if row.basis == "measured" and row.folder]
    return list(dict.fromkeys(words for folder in folders if (words := _in_words(folder / ENVIRONMENT_FILE))))


def _in_words(file: Path) -> str:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    cores, gpus = found.get("usable_cores"), found.get("gpus") or []
    names = [str(gpu["name"]) for gpu in gpus if isinstance(gpu, dict) and gpu.get("name")]
    kinds = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    return ", ".join(
        [*([str(found["cpu"])] if found.get("cpu") else []), *([f"{cores} cores"] if cores else []), *kinds]
    )
