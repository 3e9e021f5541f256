"""Files that appear whole or not at all, small JSON files that may be damaged, and disks in trouble in one line."""

import errno
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from configs.errors import UserError
from configs.reading import Unreadable, file_of, patiently, read_bytes
from configs.sync import sync

_WRITABLE = 0o222
_DAMAGED = "repeat the run, or remove the file"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_Kind = TypeVar("_Kind")


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise a `UserError` that names ``path`` if the operating system refuses to write.

    A file system may answer with any number, which is told in the kernel's words.

    Raises:
        UserError: In place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        remedy = "free some space or inodes" if error.errno in _FULL else "check the path, the disk and the file server"
        words = f"cannot be written: {reason}; {remedy}, or choose another place (of runs: paths.runs)"
        raise UserError(f"{path}: {words}") from error


def require_replaceable(option: str, file: Path, read: Iterable[Path | str]) -> None:
    """Refuse an output file that is one of those ``read``, is no regular one, or cannot be written.

    Raises:
        UserError: Names option and file.
    """
    found = file_of(file)
    # The mode decides and not os.access, because root may write to any file.
    is_odd = found.exists() and not (found.is_file() and found.stat().st_mode & _WRITABLE)
    if is_odd or (os.path.lexists(file) and found in {file_of(Path(path)) for path in read}):
        what = "which is read by this command, write-protected, or no regular file"
        raise UserError(f"{option}: got {file}, {what}; give another file name")
    if not os.access(next(filter(os.path.exists, found.absolute().parents)), os.W_OK):
        raise UserError(f"{option}: got {file}, in a folder or on a disk that cannot be written; give another place")


def sync_path(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk and survive a power failure.

    Raises:
        OSError: The disk is in trouble.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def strict_json(value: Any) -> Any:
    """Return ``value`` in a form that strict JSON can hold.

    NumPy scalars and paths become plain values; NaN and infinity become None. Bytes of a path or a variable that are no
    UTF-8 become escapes.
    """
    if isinstance(value, dict):
        return {strict_json(str(key)): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, str | os.PathLike):
        return _utf8(os.fspath(value)).decode()
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path, remedy: str | None = None) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: The file.
        remedy: What a user should do if the file cannot be used. If None, what helps if it is a file of a run.

    Raises:
        Unreadable: The file is there, and cannot be read.
        UserError: The path is no file, or holds something else.
    """
    try:
        tree = json.loads(read_bytes(path).decode("utf-8"), parse_constant=_refuse_constant)
        if not isinstance(tree, dict):
            raise ValueError("it has no JSON object")
    except Unreadable:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", str(error))
        helps = _DAMAGED if os.path.lexists(path) else "give the folder of a run of this program"
        raise UserError(f"{path}: cannot be read ({reason}); {remedy or helps}") from None
    return tree


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(read_bytes(file)).hexdigest()


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def read_as(kind: type[_Kind], path: Path) -> _Kind:
    """Return the JSON object in a file as a dataclass or another type; keys that the type lacks are ignored.

    Raises:
        Unreadable: The file is there, and cannot be read.
        UserError: The path is no file, or holds something else.
    """
    return checked(kind, json.dumps(read_object(path)), str(path))


def checked(kind: type[_Kind], text: str | bytes, where: str) -> _Kind:
    """Return JSON as a dataclass or another type; keys that the type lacks are ignored.

    Args:
        kind: The type.
        text: The JSON.
        where: The file, and the line in it.

    Raises:
        UserError: The text is something else.
    """
    try:
        found: _Kind = adapter_of(cast(Any, kind)).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        problem = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise UserError(f"{where}: is damaged ({problem}); {_DAMAGED}") from None
    return found


@cache  # making one takes 3 ms, and studies and reports read hundreds of files
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what validates a type, made once."""
    return TypeAdapter(kind)


def found_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that its reader can do without; empty if it is missing or damaged.

    Raises:
        Unreadable: The file is there, and cannot be read; its reader may write it anew, without what it held.
    """
    try:
        return read_object(path)
    except Unreadable:
        raise
    except UserError:
        return {}


@contextmanager
def dispensable() -> Iterator[None]:
    """Make a warning of a file that cannot be written, where the file is worth less than the run."""
    try:
        yield
    except UserError as error:
        sys.stderr.write(f"warning: {error}\n")


@contextmanager
def whole_file(path: Path, *, is_private: bool = False, makes_folder: bool = False) -> Iterator[BinaryIO]:
    """Yield a new file, which gets the name ``path`` when the block has ended and all bytes are on the disk.

    Readers see the whole old file or the whole new file, also after a crash. After an error, the old file stays and the
    new one is gone. A device or a pipe is written as it is.

    Args:
        path: The final name.
        is_private: Whether only the owner may read the file.
        makes_folder: Whether the folder is made if it is missing.

    Raises:
        UserError: The disk is full or in trouble, or writing is not permitted.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    mode = 0o600 if is_private else 0o666
    with explain_disk_errors(path):
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        is_device = patiently(path, path.is_char_device)
        if is_device or (path.is_symlink() and path.is_fifo()):  # /dev/null, /dev/stdout of a pipe
            with path.open("wb") as file:
                yield file
            return
        try:
            # Not fchmod: vfat and CIFS refuse it, because the mount decides who can read.
            with open(partial, "w+b", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if is_private and os.fstat(file.fileno()).st_mode & 0o077:
                    words = "other users can read it, because its file system keeps no permissions of files"
                    sys.stderr.write(f"warning: {path}: {words}\n")
                yield file
                file.flush()
                sync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Return whether a file has the name of one that `whole_file` has not finished."""
    return re.fullmatch(r"\..+\.\d+", path.name) is not None


def write_json(path: Path, value: Any, *, is_private: bool = False) -> None:
    """Write ``value`` to ``path`` as strict JSON; see `whole_file`."""
    write_text(path, json.dumps(strict_json(value), indent=2, allow_nan=False) + "\n", is_private=is_private)


def write_text(path: Path, text: str, *, is_private: bool = False, makes_folder: bool = False) -> None:
    """Write ``text`` to ``path``; see `whole_file`."""
    with whole_file(path, is_private=is_private, makes_folder=makes_folder) as file:
        file.write(_utf8(text))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
