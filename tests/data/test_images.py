"""docs/images.md holds: which files are images, and which pixels they stand for, in packing and under DALI."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.__main__ import main
from data.images import read_image
from data.manifest import load_manifest
from tests.data.input.test_packed import evaluation, recipe_for
from tests.programs import Said

SIDE = 64
Y, X = np.mgrid[:SIDE, :SIDE]
RGB = np.stack([60 + 2 * X, 40 + 3 * Y, 100 + X + Y], axis=-1).clip(0, 255).astype(np.uint8)
ALPHA = (X * 4).astype(np.uint8)
PICTURE = Image.fromarray(RGB)


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _jpeg(image: Image.Image = PICTURE, **options: Any) -> bytes:
    return _saved(image, "JPEG", quality=95, subsampling=0, **options)


def _png(image: Image.Image, **options: Any) -> bytes:
    return _saved(image, "PNG", **options)


def _raw_png(
    depth: int, colour_type: int, pixels: np.ndarray, before: bytes = b"", *, width: int = SIDE, height: int = SIDE
) -> bytes:
    """Return a PNG of any depth, by hand: Pillow writes no 16-bit colours. *Source*: the PNG specification."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return _of_chunks(_chunk(b"IHDR", header), before, _chunk(b"IDAT", zlib.compress(rows)), END)


def _chunk(kind: bytes, content: bytes, wrong: int = 0) -> bytes:
    """Return a chunk of a PNG, whose checksum has ``wrong`` bits."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content) ^ wrong)


def _of_chunks(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _oriented(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif.tobytes()


def _grey(pixels: np.ndarray) -> np.ndarray:
    return np.repeat(np.asarray(pixels)[..., None], 3, axis=-1)


def _decoded(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


END = _chunk(b"IEND", b"")
JPEG, SIXTEEN = _jpeg(), (X * 1024).astype(">u2")
FOUR = np.asarray(X[:, ::2] // 4 << 4 | X[:, 1::2] // 4, np.uint8)
BLACK_AND_WHITE, PALETTE = PICTURE.convert("1"), PICTURE.quantize(64)
FIRST_AND_SECOND = {"save_all": True, "append_images": [Image.new("RGB", (SIDE, SIDE))]}
INTERLACED = _chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 1))
FIRST_AND_STEPS = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
PASSES = b"".join(b"\0" + row.tobytes() for y, x, dy, dx in FIRST_AND_STEPS for row in RGB[y::dy, x::dx])

PACKED: dict[str, tuple[bytes, np.ndarray]] = {
    "JPEG": (JPEG, _decoded(JPEG)),
    "JPEG, progressive": (_jpeg(progressive=True), _decoded(JPEG)),
    "JPEG, grey": (_jpeg(PICTURE.convert("L")), _decoded(_jpeg(PICTURE.convert("L")))),
    "JPEG, CMYK": (_jpeg(PICTURE.convert("CMYK")), _decoded(_jpeg(PICTURE.convert("CMYK")))),
    "JPEG, turned by its tag": (_jpeg(exif=_oriented(6)), _decoded(JPEG)),
    "JPEG, mirrored by its tag": (_jpeg(exif=_oriented(2)), _decoded(JPEG)),
    "JPEG, bytes after its end": (JPEG + b"and more" * 99, _decoded(JPEG)),
    "JPEG, noughts after its end": (JPEG + bytes(999), _decoded(JPEG)),
    "JPEG of two pictures (MPO)": (_saved(PICTURE, "MPO", quality=95, **FIRST_AND_SECOND), RGB),
    "PNG": (_png(PICTURE), RGB),
    "PNG, grey": (_png(Image.fromarray(RGB[..., 0])), _grey(RGB[..., 0])),
    "PNG, grey of 4 bits": (_raw_png(4, 0, FOUR), _grey(X // 4 * 17)),
    "PNG, black and white": (_png(BLACK_AND_WHITE), _grey(np.asarray(BLACK_AND_WHITE) * 255)),
    "PNG, palette": (_png(PALETTE), np.asarray(PALETTE.convert("RGB"))),
    "PNG, palette with a transparent colour": (_png(PALETTE, transparency=3), np.asarray(PALETTE.convert("RGB"))),
    "PNG, alpha": (_png(Image.fromarray(np.dstack([RGB, ALPHA]), "RGBA")), RGB),
    "PNG, grey with alpha": (_png(Image.fromarray(np.dstack([RGB[..., 0], ALPHA]), "LA")), _grey(RGB[..., 0])),
    "PNG, grey of 16 bits": (_raw_png(16, 0, SIXTEEN), _grey(SIXTEEN / 257)),
    "PNG, colours of 16 bits": (_raw_png(16, 2, (RGB * np.uint16(257)).astype(">u2")), RGB),
    "PNG, turned by its tag": (_png(PICTURE, exif=_oriented(6)), RGB),
    "PNG, a gamma": (_raw_png(8, 2, RGB, struct.pack(">I4sII", 4, b"gAMA", 100_000, 0x31E8965F)), RGB),
    "PNG, animated": (_png(PICTURE, **FIRST_AND_SECOND), RGB),
    "PNG, bytes after its end": (_png(PICTURE) + b"and more", RGB),
    "PNG, an unknown chunk": (_raw_png(8, 2, RGB, _chunk(b"noTe", b"may be skipped")), RGB),
    "PNG, interlaced": (_of_chunks(INTERLACED, _chunk(b"IDAT", zlib.compress(PASSES)), END), RGB),
    "PNG, a wrong checksum of a note": (_raw_png(8, 2, RGB)[: -len(END)] + _chunk(b"noTe", b"", 1) + END, RGB),
}
"""Kind of file -> its bytes and its pixels [H, W, 3], 0 to 255; every file can be packed."""

PNG = _png(PICTURE)
HEADER, PIXELS = _raw_png(8, 2, RGB)[8:33], zlib.compress(b"".join(b"\0" + row.tobytes() for row in RGB))
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "text": (b"no image", "is neither a JPEG nor a PNG image"),
    "GIF": (_saved(PICTURE, "GIF"), "is a GIF image, allowed: JPEG or PNG; convert it"),
    "TIFF": (_saved(Image.fromarray(RGB[..., 0].astype(np.float32)), "TIFF"), "is a TIFF image, allowed"),
    "giant": (_raw_png(8, 2, RGB, width=20_000, height=10_000), "is a giant image, allowed: 178,956,970 pixels"),
}  # fmt: skip
"""Kind of file -> its bytes and what is told; found in the header."""

DAMAGED: dict[str, tuple[bytes, str]] = {
    "JPEG, cut": (JPEG[: len(JPEG) * 6 // 10], "cannot be decoded: image file is truncated"),
    "JPEG, without its end": (JPEG[:-2], "cannot be decoded: image file is truncated"),
    "PNG, cut": (PNG[: len(PNG) * 6 // 10], "cannot be decoded: "),
    "PNG, a wrong byte": (PNG[:60] + bytes([PNG[60] ^ 255]) + PNG[61:], "cannot be decoded: "),
    # Pillow decodes the rest, and DALI does not.
    "JPEG, a segment of a wrong length": (JPEG[:2] + b"\xff\xfe\0\3ab" + JPEG[2:], "cannot be decoded: "),
    "PNG, a wrong checksum": (_of_chunks(HEADER, _chunk(b"IDAT", PIXELS, 1), END), "cannot be decoded: "),
    "PNG, without its end": (_of_chunks(HEADER, _chunk(b"IDAT", PIXELS)), "cannot be decoded: "),
    "PNG, pixels without their checksum": (
        _of_chunks(HEADER, _chunk(b"IDAT", PIXELS[:-4]), END),
        "cannot be decoded: ",
    ),
    "PNG, rows that are missing": (_raw_png(8, 2, RGB[:-1]), "cannot be decoded: its pixels are cut off"),
    "PNG, a row of an interlaced one that is missing": (
        _of_chunks(INTERLACED, _chunk(b"IDAT", zlib.compress(PASSES[: -1 - 3 * SIDE])), END),
        "cannot be decoded: its pixels are cut off",
    ),
    "PNG, no palette": (_raw_png(8, 3, RGB[..., 0]), "cannot be decoded: "),
    "PNG, a palette of two thirds": (_raw_png(8, 3, RGB[..., 0], _chunk(b"PLTE", b"rg")), "cannot be decoded: "),
    "PNG, two headers": (_raw_png(8, 2, RGB, HEADER), "cannot be decoded: "),
    "PNG, a chunk before its header": (_of_chunks(_chunk(b"CgBI", b""), _png(PICTURE)[8:]), "cannot be decoded: "),
    "PNG, an unknown chunk that counts": (_raw_png(8, 2, RGB, _chunk(b"NOTE", b"")), "cannot be decoded: "),
}
"""Kind of file -> its bytes and what is told; found by decoding."""


def _folder(root: Path, kinds: dict[str, tuple[bytes, Any]]) -> Path:
    """Make class folders with a class for each kind; the same files serve for training."""
    for split in ("train", "val"):
        for number, (content, _) in enumerate(kinds.values()):
            path = root / split / f"{number:02}" / "image.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
    return root


def _images(folder: Path, count: int) -> np.ndarray:
    """Return the evaluation images of a packed data set as DALI decodes them, [N, H, W, 3]."""
    (batch,) = evaluation(folder, recipe_for(count, count, [f"model.image_size={SIDE}"]), batch=count).batches()
    assert batch.labels.tolist() == list(range(count))
    return np.asarray(batch.images.transpose(0, 2, 3, 1))


@pytest.mark.medium
@pytest.mark.parametrize("size", [None, SIDE])
def test_every_kind_of_image_has_the_pixels_of_the_page_packed_as_it_is_and_with_a_size(
    tmp_path: Path, size: int | None
) -> None:
    words = [] if size is None else ["--size", str(size), "--quality", "100"]
    assert main(["prepare", str(_folder(tmp_path / "in", PACKED)), str(tmp_path / "out"), *words]) == 0
    images = _images(tmp_path / "out", len(PACKED))
    upright = {"turned": lambda pixels: np.rot90(pixels, -1), "mirrored": lambda pixels: pixels[:, ::-1]}
    wanted = {
        name: next((turn(pixels) for word, turn in upright.items() if size and word in name), pixels)
        for name, (_, pixels) in PACKED.items()
    }
    # The colours of a second JPEG are rounded again, and black and white have edges that no JPEG keeps.
    far = {
        name: np.abs(image - pixels).mean()
        for (name, pixels), image in zip(wanted.items(), images, strict=True)
        if np.abs(image - pixels).mean() > (1 if size is None else 3)
    }
    assert far == {}
    if size is None:
        assert len(load_manifest(tmp_path / "out").class_names) == len(PACKED)
        exact = {name for name in PACKED if "PNG" in name and "16 bits" not in name}
        assert [name for name, image in zip(PACKED, images, strict=True) if name in exact
                if np.abs(image - PACKED[name][1]).max() > 0] == []  # fmt: skip


@pytest.mark.parametrize("words", [["--no-decode"], []])
def test_what_is_no_image_is_refused_by_name_and_all_of_it_at_once(
    tmp_path: Path, said: Said, words: list[str]
) -> None:
    kinds = REFUSED if words else REFUSED | DAMAGED
    folder = _folder(tmp_path / "in", kinds)
    count = 2 * len(kinds)
    told = f"{folder}: {count} problems{', the first 20 shown' if count > 20 else ''}"
    packing = said(main, "prepare", folder, tmp_path / "out", "--workers", "1", *words, status=2)
    assert packing.err.splitlines()[-1].startswith(f"error: {told}; nothing was packed; --skip-bad leaves")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in"]
    checking = said(main, "prepare", "--check", folder, "--workers", "1", *words, status=1).out.splitlines()
    assert checking[:-1] == packing.out.splitlines()
    assert checking[-1] == told
    shown = "\n".join(checking)
    for number, (_, told) in enumerate(list(kinds.values())[:9]):
        assert f"{folder}/train/{number:02}/image.jpg: {told}" in shown


def test_damage_that_only_decoding_finds_is_left_to_verify_if_one_says_so(tmp_path: Path, said: Said) -> None:
    folder = _folder(tmp_path / "in", {"sound": (JPEG, None)} | DAMAGED)
    assert main(["prepare", str(folder), str(tmp_path / "out"), "--no-decode", "--workers", "1"]) == 0
    *findings, count = said(main, "prepare", "--verify", tmp_path / "out", "--workers", "1", status=1).out.splitlines()
    assert all(": cannot be decoded: " in line for line in findings)
    assert f": {2 * len(DAMAGED)} findings" in count


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [((20, 30), 40, (60, 40)), ((30, 20), 20, (20, 30)), ((20, 27), 10, (14, 10)), ((21, 28), 10, (13, 10))],
)
def test_an_image_is_scaled_by_pillows_bicubic_filter_to_the_shorter_side_and_encoded_with_the_quality(
    tmp_path: Path, shape: tuple[int, int], size: int, expected: tuple[int, int]
) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8))
    image.save(tmp_path / "a.png")
    for quality in (50, 95, 100):
        wanted = image if min(shape) == size else image.resize(expected, Image.Resampling.BICUBIC)
        assert read_image(tmp_path / "a.png", size, quality) == _saved(wanted, "JPEG", quality=quality)
