"""Samples from the ranks of a bench to the bench: one line of JSON for each alternative, on standard output.

Imports nothing that the environment of a peer may lack.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from train.rank.identity import Identity

_TAIL_LINES = 12
"""Lines of a job's output that a message shows."""

_LINE_START = '{"alternative":'


class MeasurementFailed(RuntimeError):
    """A job that was to be measured failed; the text says which, with its last lines."""


def write_samples(identity: Identity, alternative: str, samples: Sequence[Mapping[str, float]]) -> None:
    """Write the samples of one alternative as a line to standard output; ranks other than 0 write nothing."""
    if identity.rank == 0:
        sys.stdout.write(json.dumps({"alternative": alternative, "samples": list(samples)}) + "\n")
        sys.stdout.flush()


def end_peer(meet: Callable[[], object]) -> NoReturn:
    """End a rank of another program with status 0, once its samples are written.

    Horovod fails if the connections to a rank close while it still takes part in a last sum, and PyTorch at times
    aborts while it ends the threads of Gloo. Neither concerns the samples. So ranks meet once more, without a look at
    how that ends, and then leave out what libraries do at the end of a process.

    Args:
        meet: Returns when all ranks have called it.
    """
    with suppress(Exception):
        meet()
    sys.stdout.flush()
    os._exit(0)


def read_samples(output: str) -> dict[str, list[Mapping[str, float]]]:
    """Return alternative -> samples, from the lines of `write_samples` among all output of a job.

    Launchers put a rank's name before each line, such as ``[1,0]<stdout>:`` (horovodrun, mpirun).

    Raises:
        MeasurementFailed: The output has no samples.
    """
    found = {}
    for line in output.splitlines():
        _, start, rest = line.partition(_LINE_START)
        if start:
            told = json.loads(start + rest)
            found[told["alternative"]] = told["samples"]
    if not found:
        tail = "\n".join(output.splitlines()[-_TAIL_LINES:])
        raise MeasurementFailed(f"the ranks ended without a measurement:\n{tail}")
    return found
