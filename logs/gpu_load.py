"""Load and energy of the GPUs that a run uses on this machine, from a process that asks NVML."""

import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from configs.programs import Program, command_of

_PATIENCE_S = 1.0
"""How long a sample waits for an answer, which takes some milliseconds, and its end for the end of the process.

A driver that keeps no state between processes may take seconds to start.
"""


class GpuLoad(NamedTuple):
    """The load of GPUs, and their counters of energy.

    Attributes:
        shares: The share of time (0 to 1) in which each GPU was busy, None for one that does not report it; empty if
            none reports it.
        memory_bytes: Memory in use on the GPUs, as far as they report it; None if none reports it.
        joules: What each GPU has used since its driver was loaded, None for one that does not report it; empty if
            nothing is known.
    """

    shares: Sequence[float | None] = ()
    memory_bytes: int | None = None
    joules: Sequence[float | None] = ()


@contextmanager
def gpu_meter(number: int, patience_s: float = _PATIENCE_S) -> Iterator[Callable[[], GpuLoad]]:
    """Yield the function that returns the load of the first GPUs that the ranks can see.

    Nothing is known without NVML, and while it does not answer.

    Args:
        number: Number of GPUs. If 0, no process is started.
        patience_s: How long each call waits for an answer.
    """
    if not number:
        yield GpuLoad
        return
    # A session of its own: Ctrl-C on the terminal is for the ranks. Its messages have no reader, because a process that
    # hangs would keep the launcher's standard error open.
    process = subprocess.Popen(
        command_of(Program.NVML, *_visible(number)), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    questions, answers = process.stdin, process.stdout
    assert questions is not None and answers is not None
    is_asked = False

    def read() -> GpuLoad:
        nonlocal is_asked
        if not is_asked:
            with suppress(OSError):  # The process may have ended.
                questions.write(b"\n")
        is_asked = not select.select([answers], [], [], patience_s)[0]
        line = b"" if is_asked else answers.readline()
        shares, used, joules = json.loads(line) if line else ([], [], [])
        known = [each for each in used if each is not None]
        is_busy_known = any(each is not None for each in shares)
        return GpuLoad(shares if is_busy_known else (), sum(known) if known else None, joules)

    try:
        yield read
    finally:
        process.kill()
        questions.close()
        answers.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)


def _visible(number: int) -> list[str]:
    """Return the GPUs of the first ``number`` local ranks as CUDA_VISIBLE_DEVICES names them: rank N uses the N-th.

    On machines with unlike GPUs, CUDA may count them in another order than NVML, unless CUDA_DEVICE_ORDER is
    PCI_BUS_ID.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(number)]
    return names[:number]
