"""Measured rates of this machine: arithmetic, memory, and the ways between two ranks; and the machine they make.

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
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.load import ROOT, parse_yaml
from configs.schema import Cluster
from train.comm.shared_sum import create_memory
from train.sim.constants import Constants
from train.sim.fit.measured_sums import measure_sums
from train.sim.hardware import Accelerator, Machine
from train.sim.processors import THIS_MACHINE
from train.sim.topology import SharedSums

_REPEATS = 50
_PART_S = 1.0
"""Time that each process spends on a part, products or copies, so that all of them are at the same part."""
_QUIET = 0.9
"""Smallest share of a core that each process must get."""
_SIDE = 512
_COPY_BYTES = 32 << 20
_MESSAGE_BYTES = 4 << 20
_CPU = {"plain_efficiency": 0.4, "memory_efficiency": 0.8, "kernel_s": 40e-6, "launch_s": 0.0, "tail": 0.0}
"""Constants of a CPU, which are assumed and not measured: the rate of oneDNN's convolutions relative to the measured
matrix product, the time of an operator in MXNet's engine, and others."""
_CYCLE_CPU_S = 1e-4
"""Core time of one cycle of an idle Horovod thread, for two ranks with Gloo. Measured: 0.065 to 0.11 of a core at a
cycle of 1 ms, 0.015 of a core at 10 ms."""
_DECODE_S, _DECODE_PIXEL_S = 80e-6, 31e-9
"""Core time of DALI for an image, and for each pixel of the crop. Measured: 82 us at 32 px, 1.65 ms at 224 px."""
_RATES = ("cores", "flops", "link_bytes_per_s", "memory_bytes_per_s", "sum_bucket_s", "sum_bytes_per_s")
"""Keys that a description must have."""


def measure_process(rank: int, peer: int, memory: int) -> dict[str, float]:
    """Return the float32 FLOP/s of a matrix product and the bytes/s of a copy in this process, and those of a sum.

    Products and copies take a second each, of which the median counts. ``core_share`` is the share of a core that the
    process had meanwhile.

    Args:
        rank: 0 or 1, see `train.sim.fit.measured_sums.measure_sums`.
        peer: Open socket to the other process.
        memory: Open file that both share.
    """
    left = np.random.default_rng(0).standard_normal((_SIDE, _SIDE), dtype=np.float32)
    wall_s, own_s = time.perf_counter(), time.process_time()
    product_s = _median_s(lambda: left @ left)
    core_share = (time.process_time() - own_s) / (time.perf_counter() - wall_s)
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    copy_s = _median_s(lambda: np.copyto(target, source))
    sums = measure_sums(rank, socket.socket(fileno=peer), memory)
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


def measure_machine() -> dict[str, float]:
    """Return the rates of the slower of two concurrent processes, the rate of the loopback, and the cores.

    ``core_share`` is the share of a core that the slower process had.

    Raises:
        UserError: A measuring process failed.
    """
    found = _measure_processes()
    worst = {key: (max if key.endswith("_s") and not key.endswith("per_s") else min) for key in found[0]}
    slowest = {key: choose(each[key] for each in found) for key, choose in worst.items()}
    return {**slowest, "link_bytes_per_s": _loopback(), "cores": float(os.cpu_count() or 1)}


def _measure_processes() -> list[dict[str, float]]:
    """Return what each of two processes measures, which begin when both have imported what they need."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    code = f"import json, sys; from {__name__} import measure_process; print(flush=True); input(); "
    code += "print(json.dumps(measure_process(*map(int, sys.argv[1:]))))"
    pipe, children = subprocess.PIPE, []
    with ExitStack() as ours:
        memory = create_memory()
        ours.callback(os.close, memory)
        for rank, end in enumerate(socket.socketpair()):
            ours.enter_context(end)
            handed = (end.fileno(), memory)
            command = [sys.executable, "-c", code, str(rank), *map(str, handed)]
            children.append(
                subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT, pass_fds=handed
                )
            )
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        with suppress(BrokenPipeError):
            child.stdin.write("\n")
            child.stdin.flush()
    outputs = [(child.communicate()[0], child.returncode) for child in children]
    if any(status for _, status in outputs):
        raise UserError("--calibrate-here: a measuring process failed; its message is above")
    return [json.loads(text) for text, _ in outputs]


def _loopback() -> float:
    """Return the bytes/s of a local TCP connection, which Gloo uses between the ranks of one machine."""
    payload = bytes(_MESSAGE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            with socket.create_connection(server.getsockname()) as out:
                for _ in range(_REPEATS):
                    out.sendall(payload)

        sender = threading.Thread(target=send)
        sender.start()
        connection, _ = server.accept()
        buffer = bytearray(1 << 20)
        with connection:
            start, received = time.perf_counter(), 0
            while count := connection.recv_into(buffer):
                received += count
            spent = time.perf_counter() - start
        sender.join()
    return received / spent


def load_description(path: Path) -> dict[str, float]:
    """Read a file that ``./run.sh simulate --calibrate-here`` wrote; warn if other work had the cores meanwhile.

    Raises:
        UserError: There is no such file, or a rate is missing or not above 0.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError:
        raise UserError(
            f"{path}: this machine has not been measured; run ./run.sh simulate --calibrate-here first"
        ) from None
    if not isinstance(tree, dict) or not tree.keys() >= set(_RATES) or not all(float(tree[key]) > 0 for key in _RATES):
        raise UserError(
            f"{path}: {', '.join(_RATES)} must all be there and above 0; run ./run.sh simulate --calibrate-here again"
        )
    if (share := float(tree.get("core_share", 1))) < _QUIET:
        sys.stderr.write(
            f"warning: {path}: this machine seems slower than it is, since other work had {1 - share:.0%} of the cores "
            "while it was measured; run ./run.sh simulate --calibrate-here again when it is idle\n"
        )
    return {key: float(value) for key, value in tree.items()}


def machine_of_description(description: dict[str, float], cluster: Cluster) -> Machine:
    """Return the machine of a cluster of CPUs.

    Args:
        description: Of `load_description` or `train.sim.processors.rates_of_processor`.
        cluster: Has the ranks; on several nodes also the network cards, without which the link is taken for them.
    """
    link, node = description["link_bytes_per_s"], cluster.node
    nics, nic = max(1, node.nics), node.nic_bytes_per_s or link
    sums = None
    if cluster.communication.kind == "shared_memory":
        sums = SharedSums(description["sum_bytes_per_s"], description["sum_bucket_s"], description["cores"])
    accelerator = Accelerator(
        name=node.cpu or THIS_MACHINE,
        chip="cpu",
        peak=description["flops"],
        peak32=description["flops"],
        memory=description["memory_bytes_per_s"],
        cache=0.0,
        units=1,
        node=cluster.ranks_per_node,
        link=link,
        link_kind="memory",
        nics=nics,
        nic=nic,
    )
    return Machine(
        accelerator=accelerator,
        ranks=cluster.world_size,
        ranks_per_node=cluster.ranks_per_node,
        link_bytes_per_s=link,
        nics=nics,
        nic_bytes_per_s=nic,
        half=False,
        sums=sums,
    )


def cpu_constants(constants: Constants, description: dict[str, float], ranks: int, image_size: int) -> Constants:
    """Return the constants of a CPU.

    Decoding and Horovod's negotiation run in threads of their own. If there are fewer than two cores a rank, these
    threads take core time from compute. If there are fewer cores than ranks, the ranks take turns.

    Args:
        constants: Those of accelerators; some also apply to a CPU.
        description: Of `load_description`.
        ranks: Number of ranks.
        image_size: Side of the square input, px.
    """
    shared: dict[str, float] = {}
    if description["cores"] < 2 * ranks:
        shared = {"cycle_cpu_s": _CYCLE_CPU_S, "decode_s": _DECODE_S + _DECODE_PIXEL_S * image_size**2}
    return replace(constants, **_CPU, **shared, cores=description["cores"])
