"""The one place in which benches start programs: jobs of several ranks as users start them, and other commands."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from threading import Thread
from typing import Any

from configs.arguments import override_words
from configs.errors import REFUSED_STATUS
from configs.interrupts import interrupt_left_to_child
from configs.load import ROOT, resolve_path
from configs.programs import Program, command_of
from configs.registry import packing_words
from configs.schema import Cluster, Recipe
from train.bench.samples import Figures, MeasurementFailed, MeasurementRefused, excerpt, read_samples, samples_in

_REQUIREMENTS = "train/bench/programs/requirements.txt"
_POLL_S = 0.1
_GRACE_S = 20.0
"""Seconds in which a program that took too long may end by itself."""


@dataclass(frozen=True)
class Finished:
    """A program that has ended.

    Attributes:
        command: The command line.
        status: The exit status.
        output: Standard output and standard error, mixed as they came.
        begun_s: When the command was given, Unix seconds.
        took_s: Seconds until its end.
        stop_s: Seconds from the moment when it was told to stop until its end; 0 if it was not.
    """

    command: Sequence[str]
    status: int
    output: str
    begun_s: float
    took_s: float
    stop_s: float = 0.0

    def check(self) -> "Finished":
        """Return the program itself.

        Raises:
            MeasurementRefused: The program was refused, for a reason of one line.
            MeasurementFailed: The exit status is not 0; the text has the first error and the last lines of the output.
        """
        last = (self.output.strip().splitlines() or [""])[-1]
        if self.status == REFUSED_STATUS and last.startswith("error: "):
            raise MeasurementRefused(last.removeprefix("error: "))
        if self.status:
            command = " ".join(self.command)
            raise MeasurementFailed(f"{command} ended with exit status {self.status}:\n{excerpt(self.output)}")
        return self

    @property
    def samples(self) -> dict[str, list[Figures]]:
        """Return alternative -> samples, see `train.bench.samples.read_samples`."""
        return read_samples(self.output)

    @property
    def sample(self) -> Figures:
        """Return the one sample of the one alternative."""
        ((sample,),) = self.samples.values()
        return sample


@dataclass(frozen=True)
class Jobs:
    """Starts programs in the folder of this program, one after another.

    Attributes:
        peers: Folder of the environment of the peers. It has NumPy 2, so it cannot be the one of this program.
    """

    peers: Path = ROOT / ".venv-peers"

    def run(
        self,
        command: Sequence[str],
        timeout_s: float | None = None,
        stop_when: Callable[[], bool] | None = None,
    ) -> Finished:
        """Run a program until it ends; see `lines`."""
        ended: list[Finished] = []
        for _ in self.lines(command, ended, timeout_s, stop_when):
            pass
        return ended[0]

    def lines(
        self,
        command: Sequence[str],
        ended: list[Finished],
        timeout_s: float | None = None,
        stop_when: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        """Run a program until it ends; yield each line of its output as it comes.

        Args:
            command: The command line.
            ended: Takes the program when it has ended.
            timeout_s: Seconds that the program may take; if None, any.
            stop_when: Asked again and again; once it returns True, the program is told to stop (SIGTERM). If None, the
                program ends by itself.

        Raises:
            MeasurementFailed: The time is over.
        """
        begun_s, begin, told = time.time(), time.monotonic(), list[float]()
        output: list[str] = []
        with (
            interrupt_left_to_child(says_so=False),
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running,
        ):
            if stop_when is not None:
                Thread(target=_stop, args=(running, stop_when, told), daemon=True).start()
            try:
                for line in _lines(running, None if timeout_s is None else begin + timeout_s):
                    output.append(line)
                    yield line
                running.wait()
            except TimeoutError:
                _end(running)
                raise MeasurementFailed(f"{' '.join(command)} took more than {timeout_s:g} s") from None
            except BaseException:
                running.kill()
                raise
        end = time.monotonic()
        times_s = begun_s, end - begin, end - (told or [end])[0]
        ended.append(Finished(command, running.returncode, "".join(output), *times_s))

    def train(self, recipe: str, overrides: Sequence[str], folder: Path, *options: str) -> Finished:
        """Train by the command that users give, ``./run.sh train``, into a new folder; the run may fail.

        Args:
            recipe: A name or a file.
            overrides: Changes of recipe and cluster.
            folder: The run folder.
            options: Further options of the command.
        """
        words = [recipe, *options, *override_words(overrides), "--run-dir", str(folder)]
        return self.run([str(ROOT / "run.sh"), "train", *words])

    def ranks(
        self,
        name: str,
        task: Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        timeout_s: float | None = None,
        is_peer: bool = False,
    ) -> Finished:
        """Start `train.bench.rank` once for each rank, as the ranks of a run start, and wait until all have ended.

        Args:
            name: A module of `train.bench.programs`.
            task: The arguments of the module's function ``main``; values that JSON has. The ranks start on its
                ``cluster``, or ``laptop``, with those of its ``overrides`` that change a cluster.
            overrides: Further changes of the cluster, for a program that does not take them.
            timeout_s: Seconds that the ranks may take; if None, any.
            is_peer: Start the program in the environment of the peers.

        Raises:
            MeasurementFailed: A rank failed.
        """
        return self.run(self._command_of_ranks(name, task, overrides, is_peer=is_peer), timeout_s).check()

    def cases(
        self, name: str, cases: Mapping[str, Mapping[str, Any]], overrides: Sequence[str], timeout_s: float
    ) -> Iterator[tuple[str, list[Figures]]]:
        """Measure cases one after another in one process of one rank; yield alternative and samples as they come.

        Args:
            name: A module of `train.bench.programs`.
            cases: Title -> the other arguments of the module's function ``main``.
            overrides: As for `ranks`.
            timeout_s: As for `ranks`.

        Raises:
            MeasurementFailed: A case ended the process, or the time is over.
        """
        command, ended = self._command_of_ranks("in_turn", {"name": name, "cases": cases}, overrides), list[Finished]()
        for line in self.lines(command, ended, timeout_s):
            yield from samples_in(line).items()
        ended[0].check()

    def _command_of_ranks(
        self, name: str, task: Mapping[str, Any], overrides: Sequence[str], *, is_peer: bool = False
    ) -> list[str]:
        # This program is not installed in the environment of the peers, so Python must look in the current folder.
        python = self.peers_python if is_peer else sys.executable
        words = [name, json.dumps(task)]
        rank = command_of(Program.BENCH_RANK, *words, python=python, is_isolated=False if is_peer else None)
        place = [change for change in task.get("overrides", ()) if change.startswith("cluster.")]
        arguments = ["--cluster", task.get("cluster", "laptop"), *override_words([*place, *overrides]), "--", *rank]
        return command_of(Program.RANKS_LAUNCHER, *arguments)

    def pack(self, recipe: Recipe, cluster: Cluster) -> Path:
        """Return the folder of a recipe's built-in data set; pack the data set first if it is not there yet.

        Raises:
            MeasurementFailed: The data set cannot be packed.
        """
        data, classes = recipe.data, recipe.model.num_classes
        folder = resolve_path(cluster.paths.data) / data.name
        if not (folder / "manifest.json").is_file():
            counts = {"train": data.train_samples, "eval": data.eval_samples, "classes": classes}
            arguments = packing_words(data.source, str(folder), **counts)
            self.run(command_of(Program.PREPARE_VERB, "prepare", *arguments, "--no-recipe")).check()
        return folder

    @property
    def peers_python(self) -> Path:
        """Return the interpreter of the environment of the peers, which is there once they are installed."""
        return self.peers / "bin" / "python"

    def install_peers(self) -> None:
        """Make the environment of the peers, or complete it."""
        self.run([sys.executable, "-m", "venv", str(self.peers)]).check()
        self.run([str(self.peers_python), "-m", "pip", "install", "--quiet", "-r", _REQUIREMENTS]).check()


def _lines(running: "subprocess.Popen[bytes]", end: float | None) -> Iterator[str]:
    """Yield the lines of a program's output as they come, and what follows the last one.

    Raises:
        TimeoutError: The moment ``end`` of the clock `time.monotonic` has come.
    """
    assert running.stdout is not None
    held, chunk = b"", b"\n"
    while chunk:
        left_s = None if end is None else max(0.0, end - time.monotonic())
        if not select([running.stdout], [], [], left_s)[0]:
            raise TimeoutError
        chunk = os.read(running.stdout.fileno(), 1 << 16)
        *lines, held = (held + chunk).split(b"\n")
        for line in [*(each + b"\n" for each in lines), *([] if chunk or not held else [held])]:
            yield line.decode(errors="replace")


def _stop(running: "subprocess.Popen[bytes]", is_ready: Callable[[], bool], told: list[float]) -> None:
    """Tell a program to stop as soon as it is ready, and note the moment."""
    while running.returncode is None and not told:
        if is_ready():
            told.append(time.monotonic())
            running.terminate()
        time.sleep(_POLL_S)


def _end(running: "subprocess.Popen[bytes]") -> None:
    """Let a launcher end its ranks, which would keep the memory of a GPU from what is measured next; then kill it."""
    running.terminate()
    try:
        running.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()
