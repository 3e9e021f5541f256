"""Measured rates of this machine: arithmetic, memory, and the ways between two ranks.

Two processes measure at the same time with one thread each, as two ranks would compute, so that each measures its part
of what the ranks share.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.load import ROOT
from configs.machine_limits import usable_cores
from train.comm.shared_sum import SharedMemory, create_memory
from train.comm.sum_thread import SumThread

_PART_S = 1.0
"""Time that each process spends on a part, products or copies, so that all of them are at the same part."""
_SIDE = 512
_COPY_BYTES = 32 << 20
_LOOPBACK_BYTES = 200 << 20
_BYTES_MOVED = 4
"""Bytes that each of two ranks reads and writes for a byte of a bucket, see `train.sim.collectives.shared_memory`."""
_BUCKETS, _BUCKET_BYTES = 16, 4 << 20
"""Together larger than most caches, as the gradients of a network are."""
_SMALL_BYTES = 64
_ROUNDS, _SMALL_ROUNDS = 12, 200


def measure_process(rank: int, peer: int, memory: int) -> dict[str, float]:
    """Return the float32 FLOP/s of a matrix product and the bytes/s of a copy in this process, and those of a sum.

    Products and copies take a second each, of which the median counts. ``core_share`` is the share of a core that the
    process had meanwhile.

    Args:
        rank: 0 or 1.
        peer: Open socket to the other process, for which this one waits before it measures.
        memory: Open file that both share.
    """
    other = socket.socket(fileno=peer)
    other.sendall(b"!")
    other.recv(1)
    left = np.random.default_rng(0).standard_normal((_SIDE, _SIDE), dtype=np.float32)
    wall_s, own_s = time.perf_counter(), time.process_time()
    product_s = _median_s(lambda: left @ left)
    core_share = (time.process_time() - own_s) / (time.perf_counter() - wall_s)
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    copy_s = _median_s(lambda: np.copyto(target, source))
    sums = _measure_sums(rank, other, memory)
    rates = {"flops": 2.0 * _SIDE**3 / product_s, "memory_bytes_per_s": 2.0 * _COPY_BYTES / copy_s}
    return {**rates, **sums, "core_share": core_share}


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


def _measure_sums(rank: int, peer: socket.socket, memory: int) -> dict[str, float]:
    """Return the bytes/s that this rank's thread reads and writes, and the seconds of a bucket of a few bytes.

    The other rank must call this at the same time.

    Args:
        rank: 0 or 1.
        peer: Connected with the other rank.
        memory: Open file of `train.comm.shared_sum.create_memory`, the same on both ranks.
    """
    thread, shared = SumThread({1 - rank: peer}), SharedMemory(memory, rank, world_size=2)
    sizes = [_SMALL_BYTES, *[_BUCKET_BYTES] * _BUCKETS]
    buckets = [shared.bucket([size // 4]) for size in sizes]
    arrays = [np.full(size // 4, 0.0, np.float32) for size in sizes]

    def seconds(numbers: range) -> float:
        """Return the time until buckets that are handed over at once are summed."""
        waiting, start = threading.Semaphore(0), time.perf_counter()
        for number in numbers:
            thread.sum(number, buckets[number], [arrays[number]], lambda _: waiting.release())
        for _ in numbers:
            waiting.acquire()
        return time.perf_counter() - start

    # The kernel gives the pages in the first round.
    large_s = statistics.median([seconds(range(1, _BUCKETS + 1)) for _ in range(_ROUNDS)][1:]) / _BUCKETS
    small_s = statistics.median(seconds(range(1)) for _ in range(_SMALL_ROUNDS))
    return {"sum_bytes_per_s": _BYTES_MOVED * _BUCKET_BYTES / (large_s - small_s), "sum_bucket_s": small_s}


def measure_machine() -> dict[str, float]:
    """Return the rates of the slower of two concurrent processes, the rate of the loopback, and the cores.

    ``core_share`` is the share of a core that the slower process had.

    Raises:
        UserError: A measuring process failed.
    """
    found = _measure_processes()
    # All values are rates, but for the time of a small bucket.
    slowest = {key: (max if key == "sum_bucket_s" else min)(each[key] for each in found) for key in found[0]}
    return {**slowest, "link_bytes_per_s": _loopback(), "cores": usable_cores()}


def _measure_processes() -> list[dict[str, float]]:
    """Return what each of two processes measures."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    code = f"import json, sys; from {__name__} import measure_process; "
    code += "print(json.dumps(measure_process(*map(int, sys.argv[1:]))))"
    children = []
    with ExitStack() as ours:
        memory = create_memory()
        ours.callback(os.close, memory)
        for rank, end in enumerate(socket.socketpair()):
            ours.enter_context(end)
            handed = (end.fileno(), memory)
            command = [sys.executable, "-I", "-c", code, str(rank), *map(str, handed)]
            children.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, pass_fds=handed)
            )
    outputs = [(child.communicate()[0], child.returncode) for child in children]
    if any(status for _, status in outputs):
        raise UserError("--calibrate-here: a measuring process failed; its message is above")
    return [json.loads(text) for text, _ in outputs]


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
