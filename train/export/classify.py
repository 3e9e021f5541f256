"""Classify images with the network in the folder of this file: python classify.py IMAGE ...

Needs NumPy, Pillow and onnxruntime. network.json says what is done to an image before the network sees it; this file
does it. `./run.sh export` puts a copy beside every network.onnx; `./run.sh predict` uses the same code.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnxruntime
    from PIL import Image, ImageOps
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"error: {error}; pip install numpy pillow onnxruntime")


class Classifier:
    """An exported network with its description.

    Args:
        folder: The folder of ``network.onnx`` and ``network.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.network: dict[str, Any] = json.loads((folder / "network.json").read_text(encoding="utf-8"))
        path = str(folder / self.network["onnx"]["file"])
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def probabilities(self, files: Sequence[Path | str]) -> np.ndarray:
        """Return the probability of each class for each image, [N, classes].

        With softmax, the probabilities of an image add up to 1. With sigmoid, each class has one of its own.
        """
        images = np.stack([input_of(file, self.network) for file in files])
        logits = self._logits(images)
        if self.network.get("average_over_flips"):
            logits = (logits + self._logits(images[..., ::-1])) / 2
        if self.network["activation"] == "sigmoid":
            return np.asarray(0.5 + 0.5 * np.tanh(logits / 2))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def _logits(self, images: np.ndarray) -> np.ndarray:
        (logits,) = self._session.run(None, {self.network["onnx"]["input"]: images})
        return np.asarray(logits, np.float64)

    def class_name(self, number: int) -> str:
        """Return the name of a class; its number if it has none."""
        names = self.network["class_names"] or []
        return str(names[number] if number < len(names) else number)


def input_of(file: Path | str, network: dict[str, Any]) -> np.ndarray:
    """Return an image file as the network's input, [C, H, W] float32: as an evaluation during the training saw it."""
    with Image.open(file) as image:
        values = _pixels(image, network)
    values = _resized_centre(values, network["resize"], network["crop"]["side"])
    mean, std = (np.asarray(network[key], np.float32) for key in ("mean", "std"))
    values = ((values - mean) / std).transpose(2, 0, 1)
    missing = network["input"][1] - len(values)  # a fourth channel is 0
    return np.ascontiguousarray(np.pad(values, ((0, missing), (0, 0), (0, 0))), np.float32)


def _pixels(image: Image.Image, network: dict[str, Any]) -> np.ndarray:
    """Return an image as it was packed and decoded, [H, W, C], 0 to 255."""
    packed_side, is_grey = network["packed"]["shorter_side"], network["channels"] == "grey"
    if packed_side is not None:
        image = ImageOps.exif_transpose(image)
    elif is_grey:
        image.draft("L", image.size)  # a JPEG has its own grey
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion would cut off at 255
        image = Image.fromarray(np.rint(np.asarray(image, np.float64) / 257).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")  # without this step, Pillow warns of a palette with transparent colours
    if image.mode != "L" or not is_grey:
        image = image.convert("RGB")
    if packed_side is not None and packed_side != min(image.size):
        scale = packed_side / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    if not is_grey:
        return pixels
    if pixels.ndim > 2:  # noqa: PLR2004
        # BT.601. A packed image is a JPEG, whose grey is rounded; that of a PNG is cut off.
        pixels = (pixels @ np.array([299, 587, 114]) + (0 if packed_side is None else 500)) // 1000
    return pixels[:, :, None]


def _resized_centre(pixels: np.ndarray, resize: dict[str, Any], side: int) -> np.ndarray:
    """Return the central square of an image [H, W, C] that is scaled to a shorter side, all in pixels.

    The interpolation is linear between the four nearest pixels, without antialiasing. Both sides have the same scale,
    also where the longer side is rounded, and the centres of both images coincide. With a ``central_share``, each side
    has a scale of its own, which makes this share of it the side of the square.
    """
    central, shorter_side = resize.get("central_share"), min(pixels.shape[:2])
    for axis, length in enumerate(pixels.shape[:2]):
        scale = resize["shorter_side"] / shorter_side if central is None else side / (central * length)
        scaled = int(length * scale + 0.5) if central is None else side
        first = (scaled - side + 1) // 2
        at = (first + np.arange(side) + 0.5 - scaled / 2) / scale + length / 2 - 0.5
        before = np.floor(at).astype(int)
        share = np.expand_dims(at - before, (1, 2) if axis == 0 else (0, 2)).astype(np.float32)
        low, high = (np.take(pixels, np.clip(each, 0, length - 1), axis) for each in (before, before + 1))
        pixels = low * (1 - share) + high * share
    return np.asarray(np.floor(pixels + 0.5))


def main(files: Sequence[str]) -> None:
    """Print the three most probable classes of each image.

    Raises:
        SystemExit: A file is missing or no image; it is named.
    """
    classifier = Classifier(Path(__file__).parent)
    for file in files:
        try:
            (row,) = classifier.probabilities([file])
        except (OSError, SyntaxError) as error:  # the latter from Pillow, of a damaged PNG
            sys.exit(f"error: {file}: {getattr(error, 'strerror', None) or 'no image that Pillow can read'}")
        best = [f"{classifier.class_name(int(each))} {row[each]:.4f}" for each in row.argsort()[::-1][:3]]
        print(f"{file}: {', '.join(best)}")


if __name__ == "__main__":
    main(sys.argv[1:])
