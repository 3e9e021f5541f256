"""A run that something happens to: started, watched, resumed, and compared with an undisturbed one."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from configs.load import ROOT
from logs.folder import RunFolder
from tests.launch.faults.disturbed import Way
from tests.launch.machines import Machine, two_machines
from tests.launch.scheduled import ranks
from tests.limits import processes_like
from tests.runs import read_summary, train_command

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

    @property
    def settings(self) -> list[str]:
        """What is set for every run."""
        return [*SETTINGS, f"cluster.paths.data={self.data}", *self.way.settings]

    @property
    def job_log(self) -> str:
        """What the script of a submitted run has printed."""
        return (self.folder / "job.log").read_text(encoding="utf-8")

    def start(self, *words: str, in_terminal: bool = False) -> subprocess.Popen[bytes]:
        """Start the run, or start it once more.

        In a terminal, the terminal is returned, and the file ``status`` beside the run folder gets the exit status.
        """
        command = [*train_command(self.folder, *self.settings), *words]
        if in_terminal:
            # The outer shell ends with the terminal, as a login shell does; the inner one writes the status.
            status = shlex.quote(str(self.folder.parent / "status"))
            inside = f"(trap : HUP; {shlex.join(command)}; echo $? >{status}.new; mv {status}.new {status}); true"
            command = ["script", "--quiet", "--command", inside, "/dev/null"]
        variables = {**os.environ, **self.variables}
        with (self.folder.parent / f"output-{len(self.processes) + 1}").open("wb") as output:
            launcher = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
        self.processes.append(launcher)
        return launcher

    def submit(self, machine: Machine, *words: str, resume: bool = False) -> str:
        """Submit the run on a machine, or once more; return the number of its job."""
        two = ["cluster.num_nodes=2", "cluster.ranks_per_node=1"]
        sets = [word for each in [*self.settings, *two] for word in ("--set", each)]
        new = ["digits", "--cluster", "laptop", "--run-dir", str(self.folder), *sets, *words]
        command = ["-m", "launch.submit", "submit", *(["--resume", str(self.folder)] if resume else new)]
        done = machine.run(sys.executable, "-I", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("job ")[1].split(",")[0]

    def processes_left(self) -> bool:
        """Return whether a process on any machine has the run folder in its command line."""
        return bool(processes_like(str(self.folder)))

    def begin(self, *words: str, in_terminal: bool = False) -> subprocess.Popen[bytes]:
        """Start the run and wait for its first checkpoint."""
        launcher = self.start(*words, in_terminal=in_terminal)
        self.wait_until(lambda: bool(RunFolder(self.folder).checkpoints.files()))
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


def on_two_machines(scene: Scene, harm: Callable[[Mapping[str, Machine], str], None]) -> Iterator[Told]:
    """Submit the run to two machines, harm it after its first checkpoint, and submit it once more."""
    scene.data = Path(shutil.copytree(scene.data, scene.folder.parent / "data"))  # which the machines share
    with two_machines(scene.folder.parent) as machines:
        job = scene.submit(machines["alpha"], "--hosts", ",".join(machines))
        while not RunFolder(scene.folder).checkpoints.files():
            assert machines["alpha"].runs(job), scene.job_log
            time.sleep(0.05)
        begin = time.monotonic()
        harm(machines, job)
        while machines["alpha"].runs(job) or scene.processes_left():
            assert time.monotonic() < begin + GIVE_UP_S, "somebody is left"
            time.sleep(0.05)
        summary = scene.folder / "summary.json"
        failure = str(read_summary(scene.folder)["failure"]) if summary.exists() else ""
        yield Told(1 if failure else 137, time.monotonic() - begin, failure)
        machines["beta"].run("ip", "link", "set", "eth0", "up")
        job = scene.submit(machines["alpha"], resume=True)
        while machines["alpha"].runs(job):
            time.sleep(0.1)
        scene.require_the_same_end()
        yield Told(0, None, next(line for line in scene.job_log.splitlines() if line.startswith("resumes from ")))


def kill_script(machines: Mapping[str, Machine], job: str) -> None:
    """Kill the script that alpha runs."""
    machines["alpha"].run("kill", "-9", job)


def cut_network(machines: Mapping[str, Machine], _job: str) -> None:
    """Take beta off the network."""
    machines["beta"].run("ip", "link", "set", "eth0", "down")


def preload(scene: Scene, name: str, **variables: str) -> Path:
    """Change what the run gets from the C library, by ``NAME.cc``, while the file that is returned exists."""
    library, trigger = scene.folder.parent / f"{name}.so", scene.folder.parent / "trigger"
    source = Path(__file__).with_name(f"{name}.cc")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    scene.variables = {"LD_PRELOAD": str(library), "TRIGGER": str(trigger), **variables}
    return trigger
