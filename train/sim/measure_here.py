"""Measured rates of this machine: arithmetic, memory, and the connection between two ranks.

Two processes measure at the same time with one thread each, as two ranks would compute, so that each measures its part
of what the ranks share.
"""

import json
import os
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.load import ROOT
from configs.machine_limits import usable_cores
from configs.programs import Program, command_of

_PART_S = 1.0
"""Time that each process spends on a part, products or copies: much more than it may start after the other one."""
_SIDE = 512
_COPY_BYTES = 32 << 20
_LOOPBACK_BYTES = 200 << 20


def measure_process() -> dict[str, float]:
    """Return the float32 FLOP/s of a matrix product and the bytes/s of a copy in this process.

    Products and copies take a second each, of which the median counts. ``core_share`` is the share of a core that the
    process had while it multiplied.
    """
    left = np.random.default_rng(0).standard_normal((_SIDE, _SIDE), dtype=np.float32)
    wall_s, own_s = time.perf_counter(), time.process_time()
    product_s = _median_s(lambda: left @ left)
    core_share = (time.process_time() - own_s) / (time.perf_counter() - wall_s)
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    copy_s = _median_s(lambda: np.copyto(target, source))
    rates = {"flops": 2.0 * _SIDE**3 / product_s, "memory_bytes_per_s": 2.0 * _COPY_BYTES / copy_s}
    return {**rates, "core_share": core_share}


def _median_s(action: Callable[[], Any]) -> float:
    """Return the median time of an action that is repeated for a while.

    The shortest time would be one in which another process had not begun, or waited: two processes on the two threads
    of one core would each seem to have the core.
    """
    times, begin = [], time.perf_counter()
    while time.perf_counter() < begin + _PART_S:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_machine() -> dict[str, float]:
    """Return the rates of the slower of two concurrent processes, the rate of the loopback, and the cores.

    ``core_share`` is the share of a core that the slower process had.

    Raises:
        UserError: A measuring process failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(command_of(Program.MEASURE), stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        for _ in range(2)
    ]
    outputs = [(child.communicate()[0], child.returncode) for child in children]
    if any(status for _, status in outputs):
        raise UserError("--calibrate-here: a measuring process failed; its message is above")
    found = [json.loads(text) for text, _ in outputs]
    slowest = {key: min(each[key] for each in found) for key in found[0]}
    return {**slowest, "link_bytes_per_s": _loopback(), "cores": usable_cores()}


def _loopback() -> float:
    """Return the bytes/s of a local TCP connection, which Gloo uses between the ranks of one machine."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        connection, _ = server.accept()
        sender = threading.Thread(target=out.sendall, args=[bytes(_LOOPBACK_BYTES)])
        buffer, received, start = bytearray(1 << 20), 0, time.perf_counter()
        with connection:
            sender.start()
            while received < _LOOPBACK_BYTES:
                received += connection.recv_into(buffer)
        spent = time.perf_counter() - start
        sender.join()
    return received / spent


if __name__ == "__main__":
    print(json.dumps(measure_process()))
