"""The one place in which benches start programs: jobs of several ranks as users start them, and other commands."""

import json
import math
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from configs.arguments import override_words
from configs.errors import REFUSED_STATUS
from configs.interrupts import ended_with_parent, interrupt_left_to_child
from configs.load import ROOT, resolve_path
from configs.programs import Program, command_of
from configs.registry import packing_words
from configs.schema import Cluster, Recipe
from train.bench.samples import Figures, MeasurementFailed, MeasurementRefused, excerpt, read_samples

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
    """

    command: Sequence[str]
    status: int
    output: str
    begun_s: float
    took_s: float

    def check(self) -> "Finished":
        """Return the program itself.

        Raises:
            MeasurementRefused: The program was refused, for a reason of one line.
            MeasurementFailed: The exit status is not 0; the text is the program's last line if that names an error, or
                else has the first error and the last lines of the output.
        """
        last = (self.output.strip().splitlines() or [""])[-1]
        if self.status and last.startswith("error: "):
            kind = MeasurementRefused if self.status == REFUSED_STATUS else MeasurementFailed
            raise kind(last.removeprefix("error: "))
        if self.status:
            command = " ".join(self.command)
            raise MeasurementFailed(f"{command} ended with exit status {self.status}:\n{excerpt(self.output)}")
        return self

    @property
    def samples(self) -> dict[str, list[Figures]]:
        """Return alternative -> samples, see `train.bench.samples.read_samples`.

        Raises:
            MeasurementFailed: The output has no samples.
        """
        if not (found := read_samples(self.output)):
            raise MeasurementFailed(f"the ranks ended without a measurement:\n{excerpt(self.output)}")
        return found

    @property
    def sample(self) -> Figures:
        """Return the one sample of the one alternative."""
        ((sample,),) = self.samples.values()
        return sample


class Jobs:
    """Starts programs in the folder of this program, one after another."""

    def run(
        self, command: Sequence[str], timeout_s: float = math.inf, tell: Callable[[str], object] = lambda _: None
    ) -> Finished:
        """Run a program until it ends.

        Args:
            command: The command line.
            timeout_s: Seconds that the program may take.
            tell: Called with all output so far, again and again until the program has ended.

        Raises:
            MeasurementFailed: The time is over.
        """
        begun_s, begin = time.time(), time.monotonic()
        # A pipe would be kept open by whatever the program leaves behind.
        with interrupt_left_to_child(says_so=False), NamedTemporaryFile() as file:
            running = subprocess.Popen(ended_with_parent(command), cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            try:
                while running.returncode is None:
                    with suppress(subprocess.TimeoutExpired):
                        running.wait(_POLL_S)
                    output = Path(file.name).read_text(encoding="utf-8", errors="replace")
                    tell(output)
                    if running.returncode is None and time.monotonic() - begin > timeout_s:
                        raise MeasurementFailed(f"{' '.join(command)} took more than {timeout_s:g} s")
            finally:
                _end(running)
        return Finished(command, running.returncode, output, begun_s, time.monotonic() - begin)

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
        self, name: str, task: Mapping[str, Any], *, overrides: Sequence[str] = (), timeout_s: float = math.inf,
        tell: Callable[[str], object] = lambda _: None,
    ) -> Finished:  # fmt: skip
        """Start `train.bench.rank` once for each rank, as the ranks of a run start, and wait until all have ended.

        Args:
            name: See `train.bench.rank`.
            task: The arguments, or cases; values that JSON has. The ranks start on its ``cluster``, or ``laptop``, with
                those of its ``overrides`` that change a cluster.
            overrides: Further changes of the cluster, for a program that does not take them.
            timeout_s: See `run`.
            tell: See `run`.

        Raises:
            MeasurementFailed: A rank failed, or the time is over.
        """
        rank = command_of(Program.BENCH_RANK, name, json.dumps(task))
        place = [change for change in task.get("overrides", ()) if change.startswith("cluster.")]
        arguments = ["--cluster", task.get("cluster", "laptop"), *override_words([*place, *overrides]), "--", *rank]
        return self.run(command_of(Program.RANKS_LAUNCHER, *arguments), timeout_s, tell).check()

    def pack(self, recipe: Recipe, cluster: Cluster) -> Path:
        """Return the folder of a recipe's built-in data set; pack the data set first if it is not there yet.

        Raises:
            MeasurementFailed: The data set cannot be packed.
        """
        folder = resolve_path(cluster.paths.data) / recipe.data.name
        if not (folder / "manifest.json").is_file():
            arguments = packing_words(recipe.data, recipe.model.num_classes, folder)
            self.run(command_of(Program.PREPARE_VERB, "prepare", *arguments, "--no-recipe")).check()
        return folder


def _end(running: subprocess.Popen[bytes]) -> None:
    """Let a launcher end its ranks, which would keep the memory of a GPU from what is measured next; then kill it."""
    running.terminate()
    try:
        running.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()
