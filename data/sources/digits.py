"""digits: scikit-learn's 8x8 handwritten digits, enlarged to 32 px; every third is kept for evaluation.

--size enlarges them to another size, --quality sets the JPEG quality.
"""

from __future__ import annotations

import numpy as np

from data.sources.image_source import (
    DEFAULT_QUALITY,
    Settings,
    Source,
    array_split,
    check_size,
    fingerprint,
    sha256_of,
)

__all__ = ["LAYOUT", "OPTIONS", "open_source", "recognises"]

LAYOUT = "digits"
OPTIONS = ("size", "quality")

_SIZE = 32
_EVALUATION_STRIDE = 3


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return name == "digits"


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 (takes a second)

    digits = load_digits()
    quality, size = settings.quality or DEFAULT_QUALITY, settings.size or _SIZE
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    check_size(size, images.shape[1])
    is_eval = np.arange(len(images)) % _EVALUATION_STRIDE == _EVALUATION_STRIDE - 1
    return Source(
        kind="digits",
        description=f"scikit-learn's digits, {size} px, JPEG quality {quality}, every third for evaluation",
        fingerprint=fingerprint("digits", sha256_of(images), sha256_of(labels), size, quality),
        class_names=tuple(str(digit) for digit in digits.target_names),
        train=array_split(images[~is_eval], labels[~is_eval], size, quality),
        eval=array_split(images[is_eval], labels[is_eval], size, quality),
    )
