"""What the tests of real schedulers share: a short run, handed over through the real door, and waiting for it."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.limits import kill_processes_with, processes_like
from tests.programs import run_program

_GIVE_UP_S = 300
SYNTHETIC = [
    "run.target_top1=null", "data.source=synthetic", "data.eval_samples=64", "model.name=resnet8",
    "model.image_size=16", "run.log_every_steps=5",
]  # fmt: skip

SLOW_STEPS = [
    "model.name=resnet56", "model.image_size=64", "batch.global_size=1024", "data.train_samples=12288",
    "run.eval_every_epochs=1", "run.eval_first_epoch=1", "run.log_every_steps=1",
]  # fmt: skip
"""Epochs of 12 steps, of which each takes a V100 0.16 s."""


def asleep(cluster: str) -> str:
    """Return a cluster of V100, in whose rehearsals ranks sleep through a step.

    However busy the machine is, whoever watches a job with `SLOW_STEPS` has the time to look, and it costs nothing.
    """
    return f"{cluster}device: gpu\n".replace("262144", "262144, backend: gloo").replace(
        "node: {cores: 1", "node: {cores: 1, gpu: V100-SXM2-16GB"
    )


def asleep_alone(cluster: str) -> str:
    """Return such a cluster of one rank, which imports no framework: enough where nothing depends on other ranks."""
    alone = re.sub(r"(num_nodes|ranks_per_node): \d", r"\1: 1", asleep(cluster))
    return alone.replace("backend: gloo", "kind: none")


@contextmanager
def slurm(nodes: int = 2) -> Iterator[None]:
    """Run a Slurm of virtual nodes while the block runs; those with odd and with even numbers are at two switches."""
    commands = ["sbatch", "salloc", "srun", "scontrol", "slurmctld", "slurmd"]
    with _scheduler("slurm", commands, 1 + nodes, lambda folder, _: {"SLURM_CONF": str(folder / "slurm.conf")}):
        yield


@contextmanager
def grid_engine() -> Iterator[None]:
    """Run a Grid Engine of this one machine while the block runs."""

    def variables(folder: Path, ports: list[str]) -> dict[str, str]:
        return {"SGE_ROOT": str(folder), "SGE_QMASTER_PORT": ports[0], "SGE_EXECD_PORT": ports[1]}

    with _scheduler("gridengine", ["qsub", "qconf", "sge_qmaster", "sge_execd"], 2, variables):
        yield


@contextmanager
def _scheduler(
    name: str, commands: list[str], num_ports: int, variables: Callable[[Path, list[str]], dict[str, str]]
) -> Iterator[None]:
    """Start ``NAME.sh``'s scheduler in a folder of its own, with its clients' variables; skip where it is not.

    Its ports are any that are free, so that several schedulers may run on one machine.
    """
    missing = [command for command in commands if shutil.which(command) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"{name} is not installed here ({', '.join(missing)})" if missing else f"{name}'s daemons need root"
        )
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    script = Path(__file__).parent / f"{name}.sh"
    ports = _free_ports(num_ports)
    with pytest.MonkeyPatch.context() as patch:
        clients = variables(folder, ports)
        for variable, value in (clients | {"TEST_PORTS": " ".join(ports)}).items():
            patch.setenv(variable, value)
        try:
            subprocess.run([script, "start", folder], check=True, capture_output=True, timeout=60)
            yield
        finally:
            subprocess.run([script, "stop", folder], check=False, capture_output=True, timeout=60)
            kill_processes_with(clients)  # of jobs that have not ended
            shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [str(each.getsockname()[1]) for each in sockets]


def submit(cluster: str, folder: Path, *words: str, overrides: list[str]) -> str:
    """Submit the digits; give the job's number."""
    place = folder.parent / "cluster.yaml"
    place.write_text(cluster, encoding="utf-8")
    sets = [word for each in [*SYNTHETIC, *overrides] for word in ("--set", each)]
    command = [sys.executable, "-I", "-m", "launch.submit", "digits", "--cluster", str(place), "--run-dir", str(folder)]
    done = run_program(*command, *sets, *words)
    assert done.returncode == 0, done.stderr
    number = re.search(r"^digits: job (\d+), \d ranks? on", done.stdout, re.MULTILINE)
    assert number, done.stdout
    return number[1]


def wait_until(is_so: Callable[[], bool], log: Path, every_s: float = 0.1) -> None:
    """Wait for what a job does, looking so often; fails with what it printed, and what its scheduler says."""
    give_up = time.monotonic() + _GIVE_UP_S
    while not is_so():
        assert time.monotonic() < give_up, _standing(log)
        time.sleep(every_s)


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
    return processes_like(rf"^[^ ]*python[^ ]* -I -u -m train {folder}$")


def ask(*command: str) -> str:
    """Give what a scheduler's client says."""
    return run_program(*command, timeout=30).stdout
