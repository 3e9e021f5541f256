"""LARS, SGD and Adam on a CPU in one pass over memory: by ``host_update.c``, where a C compiler makes it usable.

The operators of `train.engine.torch.optimizers` do the same anywhere, in several passes over each block. A rank takes
the way that it can, so both ways leave the same bits. The compiled file is kept in the folder of temporary files.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logs.environment import cpu_flags
from train.comm.neighbours import is_dense
from train.engine.protocol import TrainableNetwork

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_suffix(".c")
# The C file itself says which additions are fused with a multiplication: those that PyTorch's operators fuse.
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
_COMPILE_S = 60.0

_PIECE = np.dtype([
    (name, np.int64) for name in ("weight", "first", "second", "gradient", "copy", "size", "tensor", "is_half")
])  # fmt: skip
"""The ``piece`` of the C file."""

_PIECE_SIZE = 1 << 18
"""Most numbers of a piece; pieces are what threads share."""


def host_update(network: TrainableNetwork, moments: Sequence[Any]) -> "HostUpdate | None":
    """Return the update of a network; None on a GPU, for weights of other types, and where nothing can be compiled.

    Args:
        network: The network.
        moments: The float32 state of the optimizer: one or two tensors for each weight, stored as the weights are.
    """
    pairs = list(zip(network.weights, network.masters, strict=True))
    suits = all(weight is master or weight.dtype == torch.bfloat16 for weight, master in pairs)
    if not suits or pairs[0][0].is_cuda or (library := load_library()) is None:
        return None
    return HostUpdate(network, moments, library)


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled file; None, with a warning, where no compiler is, or what it makes cannot be loaded."""
    try:
        return ctypes.CDLL(str(_compiled()))
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        why = f"{error.cmd[0]} ended with status {error.returncode}" + (f" ({said[0]})" if said else "")
    except subprocess.TimeoutExpired as error:
        why = f"{error.cmd[0]} took more than {_COMPILE_S:g} s"
    except OSError as error:
        why = str(error)
    logger.warning(
        "%s: no compiled update of the weights, but PyTorch's operators, which take a third longer for the same bits: "
        "%s; a C compiler (cc, or CC) and a folder for programs (TMPDIR) are needed", platform.node(), why,
    )  # fmt: skip
    return None


def _compiled() -> Path:
    """Return the file, compiled now unless an earlier start has done so.

    Raises:
        OSError: There is no compiler, or no folder for what it makes.
        subprocess.SubprocessError: The compiler failed.
    """
    name = os.environ.get("CC", "cc")
    compiler = shutil.which(name)
    if compiler is None:
        raise FileNotFoundError(f"{name!r} is no program on the PATH")
    folder = Path(tempfile.gettempdir(), f"host_update_{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if (folder.lstat().st_uid, folder.lstat().st_mode & 0o077) != (os.getuid(), 0):
        raise PermissionError(f"{folder} is open to other users, who could put a library there")
    made_of = repr([_SOURCE.read_text(encoding="utf-8"), compiler, sorted(cpu_flags())])
    library = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        command = [compiler, *_FLAGS, "-o", str(made), str(_SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_S)
        made.replace(library)
    return library


class HostUpdate:
    """The update of a network's weights, and of their copies of 16 bits, by compiled loops.

    Args:
        network: The network, on a CPU; its weights are float32 or bfloat16.
        moments: The float32 state of the optimizer: one or two tensors for each weight, stored as the weights are.
        library: The compiled file.
    """

    def __init__(self, network: TrainableNetwork, moments: Sequence[Any], library: ctypes.CDLL) -> None:
        self._network, self._library = network, library
        pieces = [
            piece
            for index, (weight, master) in enumerate(zip(network.weights, network.masters, strict=True))
            for piece in _pieces(index, weight, [master, *moments[index :: len(network.masters)]])
        ]
        self._pieces = np.array(pieces, _PIECE)
        self._begins, self._tensors = self._pieces["gradient"].copy(), self._pieces["tensor"].copy()
        threads = torch.get_num_threads()
        done = np.cumsum(self._pieces["size"])
        ends = np.searchsorted(done, done[-1] * np.arange(threads) / threads)
        self._shares = list(pairwise([*ends.tolist(), len(pieces)]))
        self._pool = ThreadPoolExecutor(threads)

    def __call__(
        self, rule: str, numbers: Any, rates: Any, decays: Any, *, scale: float, is_decoupled: bool = False
    ) -> None:
        """Update all weights from the gradients that the network has now.

        Args:
            rule: ``momentum`` or ``adam``.
            numbers: The numbers of the step, float32; see the C file.
            rates: Learning rate of each tensor, float32; not for ``adam``, whose numbers have it.
            decays: What each tensor is multiplied by, float32.
            scale: Factor of the gradients; with ``momentum``, minus that.
            is_decoupled: Whether the decay is taken off the weights, not off the velocity or added to the gradient.
        """
        gradients = self._network.gradients
        places = np.array([gradient.data_ptr() for gradient in gradients])
        are_half = np.array([gradient.dtype == torch.bfloat16 for gradient in gradients], np.int64)
        self._pieces["is_half"] = are_half[self._tensors]
        self._pieces["gradient"] = places[self._tensors] + self._begins * (4 - 2 * self._pieces["is_half"])
        function = self._library[f"update_{rule}"]
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (numbers, rates, decays)]

        def update(begin: int, end: int) -> None:
            first = ctypes.c_void_p(self._pieces.ctypes.data + begin * _PIECE.itemsize)
            function(first, ctypes.c_int64(end - begin), *pointers, ctypes.c_float(scale), ctypes.c_int(is_decoupled))

        list(self._pool.map(lambda share: update(*share), self._shares))


def _pieces(index: int, weight: Any, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the pieces of a tensor, with the place in it instead of the gradient's address.

    Args:
        index: The tensor's number.
        weight: What the network computes with.
        arrays: The master and its moments, one or two.
    """
    master, size = arrays[0], arrays[0].numel()
    assert all(is_dense(each) and each.stride() == master.stride() for each in (weight, *arrays))
    floats = [*(each.data_ptr() for each in arrays), *[0] * (3 - len(arrays))]
    copy = 0 if weight is master else weight.data_ptr()
    return [
        (*(each + 4 * at for each in floats), at, copy and copy + 2 * at, min(_PIECE_SIZE, size - at), index, 0)
        for at in range(0, size, _PIECE_SIZE)
    ]
