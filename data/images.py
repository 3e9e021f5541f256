"""What an image file means to this program: which files are images, and which pixels each of them stands for.

The rules are those of docs/images.md. DALI decodes by the same rules during training (`data.input.pipeline`); a test
compares both of its versions with this module, pixel by pixel. Imports nothing of ours but `configs.errors`,
`configs.reading` and `data.recordio`.
"""

import io
import logging
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from configs.errors import UserError
from configs.reading import Unreadable, may_pass, patiently
from data.recordio import StoredRecord

FORMATS = ("JPEG", "PNG")
"""Formats that may be packed, recognised by content. A file with several pictures stands for its first one."""

DEFAULT_QUALITY = 95
"""JPEG quality if the user names none."""

MOST_PIXELS = 178_956_970
"""Pixels of an image at most: Pillow's limit against decompression bombs, 0.5 GB of colours."""

_SIXTEEN_BITS = 65_535 / 255

_PNG_SHAPE = re.compile(r"IHDR(0300000[01]\.*PLTE|0[0246]00000[01]\.*(PLTE)?)\.*(IDAT)+\.*IEND")
"""Chunks of a PNG, with a dot for each that a reader may skip, and after IHDR its last bytes in hexadecimal: the colour
type, of which 3 needs a palette, and the methods. *Source*: the PNG specification, sections 5.6 and 11.2."""
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row, and steps, of the passes of an interlaced PNG. *Source*: the specification, section 8.2."""
_PNG_SIGNATURE_BYTES, _JPEG_SIGNATURE_BYTES = 8, 2
_FILL, _START_OF_SCAN = b"\xff", b"\xda"
"""Bytes of a JPEG's markers."""
_COLOURS = 3
_MOST_INFLATED_BYTES = 1 << 20
"""Bytes that are inflated at once, so that a small file cannot fill the memory."""

Image.MAX_IMAGE_PIXELS = MOST_PIXELS // 2  # Pillow warns above this number, and refuses above the double.
warnings.filterwarnings("ignore", module=r"PIL\.")  # of Exif that is cut off or has several orientations, for example
logging.getLogger("PIL").setLevel(logging.WARNING)


def image_problem(file: BinaryIO, *, is_decoded: bool = True) -> str | None:
    """Return why a file cannot be packed and trained on; None if it can.

    Args:
        file: The opened file.
        is_decoded: Whether to decode the pixels too, which finds truncated and damaged files.

    Raises:
        OSError: The disk or the file server fails.
    """
    try:
        with Image.open(file) as image:
            # Pillow calls a JPEG with several pictures, as some cameras write it, MPO.
            if image.format not in (*FORMATS, "MPO"):
                return f"is a {image.format} image, allowed: JPEG or PNG; convert it"
            if is_decoded:
                image.load()
                _require_png(file) if image.format == "PNG" else _require_jpeg(file)
    except UnidentifiedImageError:
        return "is neither a JPEG nor a PNG image" if file.seek(0, io.SEEK_END) else "is empty"
    except Image.DecompressionBombError:
        return f"is a giant image, allowed: {MOST_PIXELS:,} pixels; make it smaller"
    except Exception as error:  # What Pillow raises depends on the place of the damage.
        if isinstance(error, OSError) and may_pass(error):  # of the disk, not of the image
            raise
        return f"cannot be decoded: {str(error) or type(error).__name__}"
    return None


def _require_png(file: BinaryIO) -> None:
    """Raise ValueError if libpng, with which DALI decodes, refuses a PNG that Pillow has decoded."""
    file.seek(_PNG_SIGNATURE_BYTES)
    shape, kind, header, pixels, inflated = "", "", b"", zlib.decompressobj(), 0
    while kind != "IEND":
        length, name = int.from_bytes(file.read(4), "big"), file.read(4)
        content, checksum = file.read(length), file.read(4)
        kind = name.decode("latin-1")
        if not kind:
            raise ValueError("its chunk IEND is missing")
        if kind[0].isupper() and checksum != zlib.crc32(name + content).to_bytes(4, "big"):
            raise ValueError(f"its chunk {kind} is cut off or has a wrong checksum")
        shape += "." if kind[0].islower() else kind + (content[9:].hex() if kind == "IHDR" else "")
        shape += "?" if kind == "PLTE" and (len(content) % _COLOURS or not content) else ""
        while kind == "IDAT" and content and not pixels.eof:
            inflated += len(pixels.decompress(content, _MOST_INFLATED_BYTES))
            content = pixels.unconsumed_tail
        header = content if kind == "IHDR" else header
    if not _PNG_SHAPE.fullmatch(shape):
        raise ValueError("a chunk is missing, unknown or out of place")
    if not pixels.eof or inflated < _png_bytes(header):
        raise ValueError("its pixels are cut off")


def _png_bytes(header: bytes) -> int:
    """Return the bytes of all rows of a PNG; each begins with the number of its filter."""
    width, height, depth, colour, _, _, is_interlaced = struct.unpack(">2I5B", header)
    bits = depth * _PNG_CHANNELS[colour]
    passes = _PNG_PASSES if is_interlaced else ((0, 0, 1, 1),)
    sizes = ((-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes)
    return sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns)


def _require_jpeg(file: BinaryIO) -> None:
    """Raise ValueError if nvImageCodec, with which DALI 2 decodes, refuses a JPEG that Pillow has decoded.

    Before the pixels, a segment begins where the one before it ends; libjpeg would look for the next one.
    """
    file.seek(_JPEG_SIGNATURE_BYTES)
    marker = b""
    while marker != _START_OF_SCAN:
        if file.read(1) != _FILL:
            raise ValueError("its header has a segment of a wrong length")
        while (marker := file.read(1)) == _FILL:
            pass
        file.seek(max(0, int.from_bytes(file.read(2), "big") - 2), io.SEEK_CUR)


class TarMember(NamedTuple):
    """An image in a tar, which is read where it lies, as if it were a file.

    Attributes:
        archive: The tar.
        name: The image's path in it; where the tar holds tars, those are folders of the path.
        offset: First byte of the image in the tar.
        size_bytes: Bytes of the image.
        label: First byte and bytes of the file of its label in the tar, if there is one.
    """

    archive: Path
    name: str
    offset: int
    size_bytes: int
    label: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.archive}: {self.name}"

    def read_bytes(self) -> bytes:
        """Return the bytes of the image, fewer if the tar has been cut off meanwhile."""
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size_bytes)


ImageFile = Path | TarMember | StoredRecord
"""Where an image of the user lies. Its text names it in messages."""


class Problem(NamedTuple):
    """What is wrong with an image, and whether that is its content, rather than a disk that does not give it."""

    text: str
    is_content: bool


def found_by(look: Callable[[], str | None], file: object) -> Problem | None:
    """Return what a look at an image finds; None if nothing is wrong.

    Args:
        look: Reads the image and returns what is wrong with it, or raises OSError, or ValueError.
        file: What is read, for messages.
    """
    try:
        return Problem(why, is_content=True) if (why := patiently(file, look)) else None
    except Unreadable as error:
        return Problem(error.reason, is_content=False)
    except ValueError as error:  # of what lies around the image
        return Problem(str(error), is_content=True)
    except OSError as error:
        return Problem(f"cannot be read: {error.strerror}", is_content=False)


def file_problem(file: ImageFile, *, is_decoded: bool) -> Problem | None:
    """Return what is wrong with an image file, see `image_problem`; None if nothing is."""

    def look() -> str | None:
        with _opened(file) as opened:
            return image_problem(opened, is_decoded=is_decoded)

    return found_by(look, file)


def _opened(file: ImageFile) -> BinaryIO:
    return file.open("rb") if isinstance(file, Path) else io.BytesIO(file.read_bytes())


def file_facts(path: ImageFile) -> tuple[int, bool, bool] | None:
    """Return shorter side, px, whether a tag turns the image, and whether it has alpha; None if it cannot be read."""

    def look() -> tuple[int, bool, bool]:
        with _opened(path) as file, Image.open(file) as image:
            is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
            return min(image.size), is_turned, image.has_transparency_data

    try:
        return patiently(path, look)
    except Exception:  # noqa: BLE001 (as above; `image_problem` tells what is wrong)
        return None


def read_image(path: ImageFile, size: int | None = None, quality: int = DEFAULT_QUALITY) -> bytes:
    """Return the bytes of an image file as they are or, if ``size`` is given, an upright JPEG of that shorter side.

    Args:
        path: A file, or an image in a tar.
        size: Shorter side, px.
        quality: JPEG quality.

    Raises:
        UserError: The file cannot be read or decoded, although `image_problem` has found nothing or was not asked.
    """
    try:
        content = patiently(path, path.read_bytes)
        if size is None:
            return content
        with Image.open(io.BytesIO(content)) as image:
            return encode_jpeg(resize_image(upright(image), size), quality)
    except Unreadable:
        raise
    except Exception as error:  # noqa: BLE001 (as above)
        reason = getattr(error, "strerror", None) or image_problem(io.BytesIO(content)) or error
        raise UserError(f"{path}: cannot be packed: {reason}; repair or remove it") from None


def upright(image: Image.Image) -> Image.Image:
    """Return an image as `to_rgb` does, turned and mirrored as its orientation tag (Exif) says."""
    return to_rgb(ImageOps.exif_transpose(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB of 8 bits: alpha is dropped, grey becomes three equal colours, 16 bits are scaled."""
    if image.mode.startswith("I"):  # Pillow's own conversion would cut off at 255.
        scaled = np.rint(np.asarray(image, np.float64) / _SIXTEEN_BITS)
        image = Image.fromarray(scaled.astype(np.uint8))
    if image.mode == "P":  # Without this step, Pillow warns of a palette with transparent colours.
        image = image.convert("RGBA")
    return image.convert("RGB")


def resize_image(image: Image.Image, size: int) -> Image.Image:
    """Return the image scaled by a bicubic filter so that its shorter side is ``size`` px."""
    scale = size / min(image.size)
    if scale == 1:
        return image
    width, height = image.size
    return image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """Return the image as a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
