"""Measure what sums of gradients in 16 bits lose, for docs/engines.md: python -m tests.train.engine.sums."""

from collections.abc import Callable
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float32]]
Rounding = Callable[[Vector], Vector]

NODE, ELEMENTS = 8, 8192
RANKS, DEVIATIONS = (8, 64, 128, 512, 1024, 2048, 4096), (0.1, 1.0, 10.0)


def to_bfloat16(values: Vector) -> Vector:
    """Return the nearest bfloat16 numbers, ties to even, as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def to_float16(values: Vector) -> Vector:
    """Return the nearest float16 numbers as float32."""
    return values.astype(np.float16).astype(np.float32)


def ring(rows: Vector, rounding: Rounding) -> Vector:
    """Return the sum of the rows one after another, rounded after each addition."""
    total: Vector = rows[0]
    for row in rows[1:]:
        total = rounding(total + row)
    return total


def tree(rows: Vector, rounding: Rounding) -> Vector:
    """Return the sum of the rows of each node as a ring, then of the nodes in pairs."""
    sums = [ring(rows[first : first + NODE], rounding) for first in range(0, len(rows), NODE)]
    while len(sums) > 1:
        sums = [ring(np.stack(sums[first : first + 2]), rounding) for first in range(0, len(sums), 2)]
    return sums[0]


def main() -> None:
    """Print a row for each number of ranks and each deviation, in percent."""
    draw = np.random.default_rng(0)
    print("ranks  deviation  bfloat16: ring  tree  float16: ring  bfloat16 in float32")
    for ranks in RANKS:
        for deviation in DEVIATIONS:
            values = (1 + deviation * draw.standard_normal((ranks, ELEMENTS))).astype(np.float32)
            exact = values.sum(axis=0, dtype=np.float64)
            halves, floats = to_bfloat16(values), to_float16(values)
            sums = (
                ring(halves, to_bfloat16),
                tree(halves, to_bfloat16),
                ring(floats, to_float16),
                halves.sum(axis=0, dtype=np.float32),
            )
            errors = [100 * np.linalg.norm(each - exact) / np.linalg.norm(exact) for each in sums]
            print(f"{ranks:5}  {deviation:9}  ", *(f"{error:6.2f}" for error in errors))


if __name__ == "__main__":
    main()
