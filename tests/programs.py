"""Programs that tests start in this program's folder, and wait for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from configs.load import ROOT


def run_program(*command: str | Path, check: bool = False, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and return its exit status and what it printed; the options are `subprocess.run`'s."""
    return subprocess.run(command, check=check, **{"cwd": ROOT, "capture_output": True, "text": True, **options})


def python(*words: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the interpreter of the tests, see `run_program`."""
    return run_program(sys.executable, *words, **options)
