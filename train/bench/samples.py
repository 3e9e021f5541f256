"""What a bench and a rank that it starts tell each other: lines of JSON, one for each alternative.

Imports the standard library only: another program is measured with what it imports.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from train.rank.identity import Identity

Figures = Mapping[str, float]
"""Name of a figure -> value. A name ends with the unit: ``step_ms``, ``images_per_s``, ``input_wait_fraction``."""

_TAIL_LINES = 12
"""Lines of a program's output that a message shows."""

_LINE_START = '{"alternative":'
# The indented lines of a traceback are source code, which may name an error that did not happen.
_ERROR = re.compile(r"^(?=\S).*(error|exception|fatal|no module named)", re.IGNORECASE)


class MeasurementFailed(RuntimeError):
    """A program that was to be measured failed; the text says which, with its first error and its last lines."""

    @property
    def short(self) -> str:
        """The text in one line: how the program ended, the first error that it wrote, and its last lines."""
        first, *lines = str(self).splitlines()
        if not lines:
            return first
        cause = [line for line in lines if _ERROR.search(line)][:1]
        return " / ".join(dict.fromkeys([first.rpartition(" ended with ")[2], *cause, *lines[-2:]]))


class MeasurementRefused(MeasurementFailed):
    """A program that was to be measured was refused before it began; the text is the program's own line."""


def write_samples(identity: Identity, alternative: str, samples: Sequence[Figures]) -> None:
    """Write the samples of one alternative as a line to standard output; ranks other than 0 write nothing."""
    if identity.rank == 0:
        sys.stdout.write(json.dumps({"alternative": alternative, "samples": list(samples)}) + "\n")
        sys.stdout.flush()


def read_samples(output: str) -> dict[str, list[Figures]]:
    """Return alternative -> samples, from the whole lines of `write_samples` among all output of a job.

    Launchers put a rank's name before each line, such as ``[1,0]<stdout>:`` (horovodrun, mpirun).
    """
    found = {}
    for line in output.splitlines():
        _, start, rest = line.partition(_LINE_START)
        with suppress(ValueError):  # A program that goes on may be writing the last line.
            told = json.loads(start + rest)
            found[told["alternative"]] = told["samples"]
    return found


def excerpt(output: str) -> str:
    """Return the first line of a program's output that names an error, if one does, and the last lines."""
    lines = output.splitlines()
    early = next((line for line in lines[:-_TAIL_LINES] if _ERROR.search(line)), None)
    return "\n".join([*([early, "..."] if early else []), *lines[-_TAIL_LINES:]])


def end_peer(barrier: Callable[[], object]) -> NoReturn:
    """End a rank of another program with status 0, once its samples are written.

    Horovod fails if the connections to a rank close while it still takes part in a last sum, and PyTorch at times
    aborts while it ends the threads of Gloo. Neither concerns the samples. So ranks wait for each other once more,
    however that ends, and then leave out what libraries do at the end of a process.

    Args:
        barrier: Returns when all ranks have called it.
    """
    with suppress(Exception):
        barrier()
    sys.stdout.flush()
    os._exit(0)
