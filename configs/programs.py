"""The modules that are started as processes of their own with ``python -m``, and the command line that starts each.

A started module is a string, so import contracts cannot see the dependency. This table is the only place for such
strings besides the table of verbs in ``run.sh``, and a test finds every module of both. Imports the standard library
only.
"""

import os
import sys
from enum import Enum, unique
from pathlib import Path


@unique
class Program(Enum):
    """A started module: the member names the role, the value is the module."""

    RANK = "train"
    TRAIN_VERB = "launch"
    PREPARE_VERB = "data"
    SIMULATE_VERB = "train.sim"
    MEASURE = "train.sim.measure_here"
    DOCTOR_VERB = "launch.doctor"
    PROBE = "launch.doctor.probe"
    ACCEPT_VERB = "launch.accept"
    FORKS = "train.forks"
    PARAMETER_SERVER = "train.comm.server"
    LOCAL_LAUNCHER = "launch.start.local"
    RANKS_LAUNCHER = "launch.start.ranks"
    HOROVODRUN = "launch.start.horovodrun"
    NVML = "logs.nvml"
    RENDEZVOUS = "launch.start.rendezvous"
    JOB = "launch.submit.job"
    TRACKER = "logs.track"
    REACH = "launch.submit.reach"
    BENCH_RANK = "train.bench.rank"


def command_of(program: Program, *arguments: str, python: Path | str = sys.executable) -> list[str]:
    """Return the command line that starts ``program``.

    With ``-I``, Python ignores PYTHONPATH and the current folder, in which a ``train.py`` of the user's would be taken
    for ours. Only a process that PYTHONPATH leads to this program starts others without it.

    Args:
        program: The module to start.
        arguments: The module's own arguments.
        python: The interpreter; by default the one that runs this process.
    """
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    leads_here = any(Path(folder).resolve() == Path(__file__).resolve().parents[1] for folder in folders if folder)
    is_isolated = bool(sys.flags.ignore_environment) or not leads_here
    # -u, because -I ignores PYTHONUNBUFFERED, and the output of a process that is killed must not be lost.
    flags = ["-I", "-u"] if is_isolated else ["-u"]
    return [str(python), *flags, "-m", program.value, *arguments]
