"""A description of this machine, measured: arithmetic, memory, and the path between two ranks.

The probes run in two processes at once with one thread each, as two ranks do, so that what they share is shared.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from configs.load import ROOT, parse_yaml
from train.sim.constants import Constants
from train.sim.hardware import Accelerator, Machine

__all__ = ["describe", "load_description", "machine_of_description", "on_cpu", "probe"]

_REPEATS = 50
_SIDE = 512
_COPY_BYTES = 32 << 20
_MESSAGE_BYTES = 4 << 20
_CPU = {"compute_efficiency": 0.6, "memory_efficiency": 0.8, "kernel_s": 40e-6, "launch_s": 0.0, "tail": 0.0}
"""Not measured: oneDNN's convolutions against the matrix product here, an operator's overhead in MXNet's engine."""
_CYCLE_CPU_S = 1e-4
"""An idle Horovod thread of two Gloo ranks: 0.065 to 0.11 of a core at a cycle of 1 ms, 0.015 at 10 ms."""
_DECODE_S, _DECODE_PIXEL_S = 80e-6, 31e-9
"""A core's time for an image and a pixel of its crop: DALI, 82 us at 32 px, 1.65 ms at 224 px."""


def probe() -> dict[str, float]:
    """Measure one process: float32 FLOP/s of a matrix product, bytes/s of a copy; the best of several."""
    left = np.random.default_rng(0).standard_normal((_SIDE, _SIDE), dtype=np.float32)
    product_s = _best(lambda: left @ left)
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    copy_s = _best(lambda: np.copyto(target, source))
    return {"flops": 2.0 * _SIDE**3 / product_s, "memory_bytes_per_s": 2.0 * _COPY_BYTES / copy_s}


def _best(action: Callable[[], Any]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def describe(processes: int = 2) -> dict[str, float]:
    """Measure ``processes`` ranks at once and the loopback path between two.

    Raises:
        UserError: A probe process failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        "import json; from train.sim.fit.this_machine import probe; print(json.dumps(probe()))",
    ]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        for _ in range(processes)
    ]
    outputs = [(child.communicate()[0], child.returncode) for child in children]
    if any(code for _, code in outputs):
        raise UserError("--calibrate-here: a probe failed; its message is above")
    found = [json.loads(text) for text, _ in outputs]
    slowest = {key: min(each[key] for each in found) for key in found[0]}
    return {**slowest, "link_bytes_per_s": _loopback(), "cores": float(os.cpu_count() or 1)}


def _loopback() -> float:
    """Give bytes/s through a local TCP connection, the way of Gloo between ranks of one machine."""
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
    """Read what `describe` measured.

    Raises:
        UserError: It is not there, or not such a file.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError:
        raise UserError(
            f"{path}: no description of this machine; measure it by ./run.sh simulate --calibrate-here"
        ) from None
    wanted = {"flops", "memory_bytes_per_s", "link_bytes_per_s"}
    if not isinstance(tree, dict) or not wanted <= tree.keys() or not all(float(tree[key]) > 0 for key in wanted):
        raise UserError(f"{path}: needs {', '.join(sorted(wanted))}, all above 0; run simulate --calibrate-here again")
    return {key: float(value) for key, value in tree.items()}


def machine_of_description(description: dict[str, float], ranks: int) -> Machine:
    """Make the machine that a CPU cluster file with ``ranks`` ranks means."""
    kind = Accelerator(
        "this machine", "cpu", description["flops"], description["flops"], description["memory_bytes_per_s"],
        0.0, 1, ranks, description["link_bytes_per_s"], "memory", 1, description["link_bytes_per_s"], known=False,
    )  # fmt: skip
    return Machine(kind, ranks, ranks, kind.link, 1, kind.nic, half=False)


def on_cpu(constants: Constants, description: dict[str, float], ranks: int, image_size: int) -> Constants:
    """Take the constants of a CPU in place of those fitted to accelerators.

    Input and negotiation have threads of their own; where cores do not outnumber ranks, they run in compute's time.
    """
    shared: dict[str, float] = {}
    if description.get("cores", 0.0) < 2 * ranks:
        shared = {"cycle_cpu_s": _CYCLE_CPU_S, "decode_s": _DECODE_S + _DECODE_PIXEL_S * image_size**2}
    return replace(constants, **_CPU, **shared, effects={})
