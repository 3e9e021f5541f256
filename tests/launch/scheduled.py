"""What the tests of real schedulers share: a short run, handed over through the real door, and waiting for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs.load import ROOT

_GIVE_UP_S = 300
SYNTHETIC = ["run.target_top1=null", "data.source=synthetic", "model.name=resnet8", "run.log_every_steps=5"]


@contextmanager
def scheduler(name: str, commands: list[str], variables: Callable[[Path], Mapping[str, str]]) -> Iterator[None]:
    """Start ``NAME.sh``'s scheduler in a folder of its own, with its clients' variables; skip where it is not."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"{name} is not installed here ({', '.join(missing)})" if missing else f"{name}'s daemons need root"
        )
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    script = Path(__file__).parent / f"{name}.sh"
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables(folder).items():
            patch.setenv(variable, value)
        try:
            subprocess.run([script, "start", folder], check=True, capture_output=True, timeout=60)
            yield
        finally:
            subprocess.run([script, "stop", folder], check=False, capture_output=True, timeout=60)
            shutil.rmtree(folder, ignore_errors=True)


def submit(cluster: str, folder: Path, *words: str, overrides: list[str]) -> str:
    """Submit the digits; give the job's number."""
    place = folder.parent / "cluster.yaml"
    place.write_text(cluster, encoding="utf-8")
    sets = [word for each in [*SYNTHETIC, *overrides] for word in ("--set", each)]
    command = [sys.executable, "-I", "-m", "launch.submit", "digits", "--cluster", str(place), "--run-dir", str(folder)]
    done = subprocess.run([*command, *sets, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number = re.search(r"^digits: job (\d+), 2 ranks", done.stdout)
    assert number, done.stdout
    return number[1]


def wait_until(is_so: Callable[[], bool], log: Path) -> None:
    """Wait for what a job does; fails with what it printed, and what its scheduler says."""
    give_up = time.monotonic() + _GIVE_UP_S
    while not is_so():
        assert time.monotonic() < give_up, _standing(log)
        time.sleep(0.1)


def _standing(log: Path) -> str:
    printed = log.read_text(encoding="utf-8") if log.exists() else "no output\n"
    questions = (["scontrol", "show", "jobs"], ["scontrol", "show", "nodes"], ["qstat", "-f"])
    return printed + "".join(ask(*words) for words in questions if shutil.which(words[0]))


def has_begun(folder: Path) -> bool:
    """Tell whether the run in ``folder`` trains."""
    log = folder / "result_0.txt"
    return log.exists() and "epoch_start" in log.read_text(encoding="utf-8")


def ranks(folder: Path) -> list[int]:
    """List the ranks of the run in ``folder``, whoever started them; launchers carry a rank's command line too."""
    pattern = rf"^[^ ]*python[^ ]* -I -u -m train {folder}$"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def ask(*command: str) -> str:
    """Give what a scheduler's client says."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout
