"""What happens to a run besides a fault in one phase: second starts, restarts, signals, disks. Each is tried for real.

Every incident ends with the run's own end, if need be after ``--resume``, and with the bits of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
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
from tests.launch.disturbed import WAYS, Way
from tests.launch.scheduled import ranks
from tests.runs import read_summary, train_command

__all__ = ["INCIDENTS", "SETTINGS", "Incident", "Told"]

SETTINGS = [
    "model.name=resnet8", "model.image_size=16", "run.epochs=4", "run.eval_every_epochs=1", "run.eval_first_epoch=1",
    "run.target_top1=null", "run.log_every_steps=3", "schedule.warmup_epochs=1", "cluster.watchdog_s=10",
]  # fmt: skip
"""Four epochs of 19 steps, with a checkpoint after each."""

_GIVE_UP_S = 120
_STALE_S = 70
_PAUSE_S = 15


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
        give_up = time.monotonic() + _GIVE_UP_S
        while not is_so():
            assert time.monotonic() < give_up, self.output.read_text(encoding="utf-8")
            assert self.processes[-1].poll() is None, self.output.read_text(encoding="utf-8")
            time.sleep(0.005)

    def end(self, launcher: subprocess.Popen[bytes]) -> tuple[int, float]:
        """Wait until the launcher and all ranks have ended; return the launcher's status and how long it took."""
        begin = time.monotonic()
        status = launcher.wait(timeout=_GIVE_UP_S)
        while ranks(self.folder):
            assert time.monotonic() < begin + _GIVE_UP_S, "ranks are left"
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
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_GIVE_UP_S)
        assert done.returncode == 0, done.stderr
        self.require_the_same_end()
        return Told(0, None, next(line for line in done.stderr.splitlines() if line.startswith("resumes from ")))

    def clean_up(self) -> None:
        """Kill what a failed test has left."""
        for pid in (*(each.pid for each in self.processes if each.poll() is None), *ranks(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _second_start(scene: Scene) -> Iterator[Told]:
    first = scene.begin()
    begin = time.monotonic()
    status = scene.start().wait(timeout=_GIVE_UP_S)
    assert (status, first.poll()) == (2, None)
    yield Told(status, time.monotonic() - begin, scene.line("error: "))
    assert scene.end(first)[0] == 0
    scene.require_the_same_end()


def _owner_elsewhere(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    launcher.kill()
    scene.end(launcher)
    claim = scene.folder / "claims" / "1.json"
    record = json.loads(claim.read_text(encoding="utf-8"))
    claim.write_text(json.dumps({**record, "host": "beta", "boot": "another"}), encoding="utf-8")
    status, seconds = scene.end(scene.start())
    assert status == 2
    yield Told(status, seconds, scene.line("error: "))
    os.utime(claim, (time.time() - _STALE_S,) * 2)
    status, _ = scene.end(scene.start())
    assert status == 0
    yield Told(status, None, scene.line("takes over from"))
    scene.require_the_same_end()


def _killed_rank_with_restarts(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin("--max-restarts", "2")
    os.kill(ranks(scene.folder)[-1], signal.SIGKILL)
    status, _ = scene.end(launcher)
    assert status == 0
    yield Told(status, None, scene.line("restart 1 of at most 2"))
    scene.require_the_same_end()


def _signalled(number: signal.Signals, status: int) -> Callable[[Scene], Iterator[Told]]:
    def play(scene: Scene) -> Iterator[Told]:
        launcher = scene.begin()
        launcher.send_signal(number)
        ended = scene.end(launcher)
        assert ended[0] == status
        message = "" if number == signal.SIGKILL else str(read_summary(scene.folder)["failure"])
        yield Told(*ended, message)
        yield scene.resume()

    return play


def _frozen_launcher(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    children = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=False)
    own = [int(pid) for pid in children.stdout.split()] if scene.way.launcher != "local" else []
    for pid in (launcher.pid, *own):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(_PAUSE_S)
    for pid in (*own, launcher.pid):
        os.kill(pid, signal.SIGCONT)
    status, _ = scene.end(launcher)
    assert status == 0
    yield Told(status, None, scene.line("MLPerf training 4.0.0 log check"))
    scene.require_the_same_end()


def _cut_data(scene: Scene) -> Iterator[Told]:
    path = scene.data / "digits" / "train.rec"
    content = path.read_bytes()
    launcher = scene.begin()
    os.truncate(path, 4096)
    status, seconds = scene.end(launcher)
    assert status == 1
    failure = str(read_summary(scene.folder)["failure"])
    assert "train.rec has 4,096 bytes" in failure
    yield Told(status, seconds, failure)
    path.write_bytes(content)
    yield scene.resume()


def _disk_errors(error: str, target: str, times: int, status: int) -> Callable[[Scene], Iterator[Told]]:
    """Return the incident that the writes of files with ``target`` in their path fail with ``error``."""

    def play(scene: Scene) -> Iterator[Told]:
        library = scene.folder.parent / "failing_disk.so"
        source = Path(__file__).with_name("failing_disk.cc")
        subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        trigger = scene.folder.parent / "fails"
        scene.variables = {"LD_PRELOAD": str(library), "FAIL_ERRNO": error, "FAIL_PATH": target,
                           "FAIL_TIMES": str(times), "FAIL_WHILE": str(trigger)}  # fmt: skip
        launcher = scene.begin()
        trigger.touch()
        ended = scene.end(launcher)
        assert ended[0] == status, scene.output.read_text(encoding="utf-8")
        if status == 0:
            yield Told(0, None, scene.line("no checkpoint after step"))
            scene.require_the_same_end()
        else:
            yield Told(*ended, str(read_summary(scene.folder)["failure"]))
            yield scene.resume()

    return play


def _deleted_folder(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    shutil.rmtree(scene.folder)
    status, seconds = scene.end(launcher)
    assert status == 1
    assert "Traceback" not in scene.output.read_text(encoding="utf-8")
    yield Told(status, seconds, scene.line("was deleted during the run"))


class Incident(NamedTuple):
    """An incident, with the titles of what it tells, one after the other."""

    titles: tuple[str, ...]
    play: Callable[[Scene], Iterator[Told]]
    ways: tuple[Way, ...]


_ONE_NODE = tuple(way for way in WAYS if way.nodes == 1 and not way.in_slurm and way.engine == "mxnet")
_LOCAL = _ONE_NODE[:1]
INCIDENTS = (
    Incident(("a second start in the folder of a run that goes on",), _second_start, _ONE_NODE),
    Incident(
        ("a start in the folder of a run on another node", "the same, 60 s after that run's last sign of life"),
        _owner_elsewhere,
        _LOCAL,
    ),
    Incident(("kill -9 of a rank, with `--max-restarts 2`",), _killed_rank_with_restarts, _ONE_NODE),
    Incident(
        ("kill -9 of `./run.sh train`", "the same, then `--resume`"), _signalled(signal.SIGKILL, 137), _ONE_NODE
    ),
    Incident(
        ("SIGUSR1 to `./run.sh train`, a notice of the time limit", "the notice, then `--resume`"),
        _signalled(signal.SIGUSR1, 75),
        _ONE_NODE,
    ),
    Incident(("Ctrl-C", "Ctrl-C, then `--resume`"), _signalled(signal.SIGINT, 130), _ONE_NODE),
    Incident(
        (f"kill -STOP of `./run.sh train` and of the launcher, kill -CONT after {_PAUSE_S} s",),
        _frozen_launcher,
        _ONE_NODE,
    ),
    Incident(("the packed images are cut short", "the images put back, then `--resume`"), _cut_data, _ONE_NODE),
    Incident(
        ("a checkpoint's write fails with EIO",), _disk_errors("EIO", "/checkpoints/", 1, 0), _ONE_NODE
    ),
    Incident(
        ("every checkpoint's write fails with ESTALE (NFS)",), _disk_errors("ESTALE", "/checkpoints/", 1000, 0), _LOCAL
    ),
    Incident(
        ("the log's write fails with EIO", "the disk mended, then `--resume`"),
        _disk_errors("EIO", "/result_0.txt", 1, 1),
        _ONE_NODE,
    ),
    Incident(("the run folder is deleted",), _deleted_folder, _LOCAL),
)  # fmt: skip
