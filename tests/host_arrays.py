"""`Arrays` in NumPy, for tests of images that train nothing."""

from typing import Any

import numpy as np


class HostArrays:
    """See `data.input.batches.Arrays`."""

    def from_host(self, values: np.ndarray) -> Any:
        return values

    def from_dali(self, tensor: Any, *, is_on_host: bool) -> Any:
        return np.array(tensor if is_on_host else tensor.as_cpu())

    def take(self, array: Any, rows: np.ndarray) -> Any:
        return array[rows]
