"""A run that something happens to: started, watched, resumed, and compared with an undisturbed one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from configs.load import ROOT
from logs.checkpoints import list_checkpoints
from tests.launch.disturbed import Way
from tests.launch.scheduled import ranks
from tests.runs import read_summary, train_command

__all__ = ["GIVE_UP_S", "SETTINGS", "Incident", "Scene", "Told"]

SETTINGS = [
    "model.name=resnet8", "model.image_size=16", "run.epochs=4", "run.eval_every_epochs=1", "run.eval_first_epoch=1",
    "run.target_top1=null", "run.log_every_steps=3", "schedule.warmup_epochs=1", "cluster.watchdog_s=10",
]  # fmt: skip
"""Four epochs of 19 steps, with a checkpoint after each."""

GIVE_UP_S = 300


class Told(NamedTuple):
    """How an incident ended: exit status, seconds from the incident to the end of all processes, message."""

    status: int
    seconds: float | None
    message: str


@dataclass
class Scene:
    """A run that something happens to.

    Attributes:
        way: How it is started.
        folder: The run folder.
        data: The folder of data sets.
        checksum: Of the weights of an undisturbed run.
        variables: Environment variables of the run.
        processes: All launchers so far.
    """

    way: Way
    folder: Path
    data: Path
    checksum: str
    variables: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def output(self) -> Path:
        """What the newest launcher prints."""
        return self.folder.parent / f"output-{len(self.processes)}"

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the run, or start it once more."""
        command = train_command(self.folder, *SETTINGS, f"cluster.paths.data={self.data}", *self.way.settings)
        variables = {**os.environ, **self.variables}
        with (self.folder.parent / f"output-{len(self.processes) + 1}").open("wb") as output:
            launcher = subprocess.Popen([*command, *words], cwd=ROOT, env=variables, stdout=output, stderr=output)
        self.processes.append(launcher)
        return launcher

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the run and wait for its first checkpoint."""
        launcher = self.start(*words)
        self.wait_until(lambda: bool(list_checkpoints(self.folder)))
        return launcher

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that the newest launcher's run does."""
        give_up = time.monotonic() + GIVE_UP_S
        while not is_so():
            assert time.monotonic() < give_up, self.output.read_text(encoding="utf-8")
            assert self.processes[-1].poll() is None, self.output.read_text(encoding="utf-8")
            time.sleep(0.005)

    def end(self, launcher: subprocess.Popen[bytes]) -> tuple[int, float]:
        """Wait until the launcher and all ranks have ended; return the launcher's status and how long it took."""
        begin = time.monotonic()
        status = launcher.wait(timeout=GIVE_UP_S)
        while ranks(self.folder):
            assert time.monotonic() < begin + GIVE_UP_S, "ranks are left"
            time.sleep(0.02)
        return status if status >= 0 else 128 - status, time.monotonic() - begin

    def line(self, words: str) -> str:
        """Return the first line of the newest output that holds the words."""
        text = self.output.read_text(encoding="utf-8")
        found = next((line for line in text.splitlines() if words in line), None)
        assert found is not None, text
        return found

    def require_the_same_end(self) -> None:
        """Check that the run has ended well, with the bits of an undisturbed run."""
        summary = read_summary(self.folder)
        assert (summary["status"], summary["weights_checksum"]) == ("success", self.checksum), summary

    def resume(self) -> Told:
        """Give ``train --resume`` and check the bits at the end."""
        command = [sys.executable, "-I", "-m", "launch", "train", "--resume", str(self.folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=GIVE_UP_S)
        assert done.returncode == 0, done.stderr
        self.require_the_same_end()
        return Told(0, None, next(line for line in done.stderr.splitlines() if line.startswith("resumes from ")))

    def clean_up(self) -> None:
        """Kill what a failed test has left."""
        for pid in (*(each.pid for each in self.processes if each.poll() is None), *ranks(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Incident(NamedTuple):
    """An incident, with the titles of what it tells, one after the other."""

    titles: tuple[str, ...]
    play: Callable[[Scene], Iterator[Told]]
    ways: tuple[Way, ...]
