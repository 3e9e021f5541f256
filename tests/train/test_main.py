"""A rank's process: whatever it is doing when it is told to stop, it says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from configs.load import ROOT

_TOLD_WHILE_IMPORTING = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Tell(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "train.build":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Tell())
from train.__main__ import main
main(sys.argv[1:])
"""


def test_a_rank_told_to_stop_while_it_imports_the_program_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TOLD_WHILE_IMPORTING, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (75, "")
    row = json.loads((tmp_path / "failure_0.json").read_text())
    assert (row["message"], row["status"], row["second_hand"]) == ("stopped by SIGTERM", 75, True)
