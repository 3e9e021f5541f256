"""bfloat16 on a CPU: which processors compute in it, the leave to use AMX, and the casts in a network's graph."""

import ctypes
import os
from collections.abc import Collection
from typing import Any

import mxnet as mx
import numpy as np

from configs.errors import UserError
from configs.registry import CAST_FLAGS

_NUMBER = np.dtype([("bfloat16", np.uint16)])
"""MXNet's Python name of the type."""

_AMX = "amx_bf16"
_LIMIT, _WITH_AMX = "DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX"
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
"""Number of the system call on x86-64, its request (Linux, asm/prctl.h), and the state of AMX's tiles."""


def prepare_bfloat16(flags: Collection[str]) -> None:
    """Let oneDNN compute in bfloat16 on this CPU, with AMX where the CPU has it. Call it before the first operator.

    oneDNN 2.4 takes AMX only if ``DNNL_MAX_CPU_ISA`` names it, and does not ask the kernel for the tile registers,
    without which the first tile instruction ends the process by SIGILL. A value that the variable has already stays.

    Args:
        flags: Instruction sets of the CPU, by Linux's names; see `logs.environment.cpu_flags`.

    Raises:
        UserError: The CPU lacks an instruction set that MXNet needs for bfloat16.
    """
    if missing := sorted(CAST_FLAGS - set(flags)):
        raise UserError(
            f"cluster.engine.precision: bfloat16: MXNet needs AVX-512 for it, and this machine's CPU has no "
            f"{', '.join(missing)}; allowed here: float32"
        )
    if _AMX in flags and _may_use_tiles():
        os.environ.setdefault(_LIMIT, _WITH_AMX)


def _may_use_tiles() -> bool:
    """Ask the kernel for AMX's tile registers, for all threads of this process, and return whether it gives them."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0)


def as_bfloat16(symbol: Any) -> Any:
    """Return the symbol of a float32 symbol's values in bfloat16; its gradient is cast back to float32."""
    return mx.sym.amp_cast(symbol, dtype=_NUMBER)


def as_float32(symbol: Any) -> Any:
    """Return the symbol of a bfloat16 symbol's values in float32; its gradient is cast back to bfloat16."""
    return mx.sym.amp_cast(symbol, dtype="float32")
