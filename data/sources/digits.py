"""digits: scikit-learn's 8x8 handwritten digits, enlarged to 32 px; every third is kept for evaluation.

--size enlarges them to another size, --quality sets the JPEG quality.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from data.images import DEFAULT_QUALITY
from data.sources.image_source import (
    Settings,
    Source,
    array_split,
    check_size,
    fingerprint,
    sha256_of,
)

LAYOUT = "digits"
OPTIONS = ("size", "quality")

_SIZE = 32
_EVALUATION_STRIDE = 3


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return name == "digits"


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`."""
    table = _read_table()
    quality, size = settings.quality or DEFAULT_QUALITY, settings.size or _SIZE
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.uint8)
    check_size(size, images.shape[1])
    is_eval = np.arange(len(images)) % _EVALUATION_STRIDE == _EVALUATION_STRIDE - 1
    return Source(
        kind="digits",
        description=f"scikit-learn's digits, {size} px, JPEG quality {quality}, every third for evaluation",
        fingerprint=fingerprint("digits", sha256_of(images), sha256_of(labels), size, quality),
        class_names=tuple("0123456789"),
        train=array_split(images[~is_eval], labels[~is_eval], size, quality),
        eval=array_split(images[is_eval], labels[is_eval], size, quality),
    )


def _read_table() -> np.ndarray:
    """Return the digits as scikit-learn keeps them: a row of 64 pixels from 0 to 16 and the label for each image.

    The file is read without importing scikit-learn, which takes 1.4 s of processor time.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
