"""Shell scripts that stand in for programs which are not here, or may not be asked."""

from pathlib import Path


def write_program(path: Path, lines: str) -> Path:
    """Write an executable of these lines of shell, in a folder that is made if it is missing; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
