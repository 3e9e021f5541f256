"""Files that ``torch.save`` has written, read without PyTorch: tensors in plain containers. No code of a file is run.

The pickle in such a file names functions and classes. Here PyTorch's function that makes a tensor is one that notes
where the numbers are, and everything else is a class that does nothing. So what lies beside the weights is passed over,
whatever it is: an `argparse.Namespace`, Lightning's hyperparameters, the state of an optimizer.

*Source*: torch/serialization.py of PyTorch 2.13, ``_save`` (an archive, since 1.6) and ``_legacy_save``.
"""

import logging
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from configs.arguments import printable
from configs.errors import UserError

logger = logging.getLogger(__name__)

LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""Beginning of a file that PyTorch has written before 1.6, or by ``_use_new_zipfile_serialization=False``."""

_PICKLE = "data.pkl"
_HOLDERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
"""Keys of the weights in a checkpoint, the best first: of two, EMA weights are those that were evaluated."""

_NUMBERS = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "|i1", "ByteStorage": "|u1",
    "BoolStorage": "|b1", "UntypedStorage": "|u1",
}  # fmt: skip
"""Name of a storage's class -> type of the numbers; an untyped one has those of 8 bits, which NumPy lacks."""

_SAVE = "save model.state_dict() by torch.save"


def bfloat16_as_float32(raw: bytes) -> bytes:
    """Return numbers of bfloat16, the upper half of a float32, which NumPy lacks."""
    return (np.frombuffer(raw, "<u2").astype("<u4") << 16).tobytes()


class _Storage(NamedTuple):
    kind: str
    key: str


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, read_storage: Callable[[str], bytes]) -> np.ndarray:
        """Return the numbers, of which NumPy refuses those outside the storage, unless it is empty."""
        raw, number = read_storage(self.storage.key), np.dtype(_NUMBERS[self.storage.kind])
        if not raw and 0 not in self.shape:
            raise ValueError("a storage is empty")
        if self.storage.kind == "BFloat16Storage":
            raw, number = bfloat16_as_float32(raw), np.dtype("<f4")
        strides = [each * number.itemsize for each in self.strides]
        return np.ndarray(self.shape, number, raw, self.offset * number.itemsize, strides).copy()


class _Passed:
    """Stands for an object of any class or function: it takes whatever a file does with it, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "_Passed":
        return super().__new__(cls)

    def __call__(self, *_: Any) -> "_Passed":
        return self

    __setstate__ = __setitem__ = append = extend = add = __call__


def _rebuilt(storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *more: Any) -> Any:
    """Return a tensor; after its gradient and hooks, a view of negated numbers says so, and is passed over."""
    return _Tensor(storage, offset, shape, strides) if isinstance(storage, _Storage) and not more[2:] else _Passed()


class _Unpickler(pickle.Unpickler):
    """Makes plain containers, `_Tensor` and `_Passed`.

    What a file may call is made anew for each file, so that no file can change it for the next one.

    Attributes:
        storages: Those that the file names, by key.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global name of the pickle, none of which is imported."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):  # with a type that a storage of torch 1 lacks
            return lambda *words: _rebuilt(*words[:6])
        if module in ("torch", "torch.storage") and name in _NUMBERS:
            return name
        return type(name, (_Passed,), {"__module__": module})

    def persistent_load(self, identity: Any) -> Any:
        """Return a storage, or a class whose source a file of an old version has."""
        what, kind, key = identity[:3]
        if what != "storage":
            return kind
        return self.storages.setdefault(key, _Storage(kind, key)) if kind in _NUMBERS else _Passed()


def read_pytorch(path: Path) -> dict[str, np.ndarray]:
    """Return the named tensors of a state, or of the state in a checkpoint; the log says which of several was taken.

    Raises:
        UserError: The file is no state, but a whole model or a program.
        Exception: The file is damaged; of which type the error is depends on the content.
    """
    with path.open("rb") as file:
        if file.read(len(LEGACY)) == LEGACY:
            return _read_legacy(path, file)
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if any(name.endswith(("/constants.pkl", "/archive_format")) for name in names):
                raise UserError(f"{path}: is a program (TorchScript or torch.export), not weights; {_SAVE}")
            root = next((name for name in names if name.endswith(f"/{_PICKLE}")), _PICKLE).removesuffix(_PICKLE)
            if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
                raise UserError(f"{path}: was written by a big-endian machine; {_SAVE} on this one")
            with archive.open(root + _PICKLE) as pickled:
                content = _Unpickler(pickled).load()
            return _tensors(path, content, lambda key: archive.read(f"{root}data/{key}"))


def _read_legacy(path: Path, file: BinaryIO) -> dict[str, np.ndarray]:
    """Read the header's version and types, the content, the order of the storages, and where each of them is."""
    _, _ = _Unpickler(file).load(), _Unpickler(file).load()
    unpickler = _Unpickler(file)
    content, places = unpickler.load(), {}
    for key in _Unpickler(file).load():
        width = np.dtype(_NUMBERS[unpickler.storages[key].kind]).itemsize
        size = width * int.from_bytes(file.read(8), "little")
        places[key] = file.tell(), size
        file.seek(size, 1)

    def storage(key: str) -> bytes:
        begin, size = places[key]
        file.seek(begin)
        return file.read(size)

    return _tensors(path, content, storage)


def _tensors(path: Path, content: Any, read_storage: Callable[[str], bytes]) -> dict[str, np.ndarray]:
    """Read the tensors of a state, or of the first holder of one.

    Raises:
        UserError: There are none.
    """
    held = content if isinstance(content, Mapping) else {}
    holders = [key for key in _HOLDERS if isinstance(held.get(key), Mapping | _Passed)]
    state = content[holders[0]] if holders else content
    if isinstance(state, _Passed):
        made = printable(f"{type(state).__module__}.{type(state).__name__}")
        raise UserError(f"{path}: holds a whole model ({made}), which only the model's own code can read; {_SAVE}")
    items = state.items() if isinstance(state, Mapping) else ()
    tensors = {name: each for name, each in items if isinstance(name, str) and isinstance(each, _Tensor)}
    if not tensors:
        raise UserError(f"{path}: holds no named tensors, alone or as {', '.join(_HOLDERS)}; {_SAVE}")
    if holders:
        logger.info("%s: the weights are those of %s (found: %s)", path, holders[0], ", ".join(holders))
    return {name: each.read(read_storage) for name, each in tensors.items()}
