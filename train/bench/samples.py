"""Samples from the ranks of a bench to the bench: one line of JSON for each alternative, on standard output.

Imports nothing that the environment of a peer may lack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from train.rank.identity import Identity

__all__ = ["read_samples", "write_samples"]

_LINE_START = '{"alternative":'


def write_samples(identity: Identity, alternative: str, samples: Sequence[Mapping[str, float]]) -> None:
    """Write the samples of one alternative as a line to standard output; ranks other than 0 write nothing."""
    if identity.rank == 0:
        sys.stdout.write(json.dumps({"alternative": alternative, "samples": list(samples)}) + "\n")
        sys.stdout.flush()


def read_samples(output: str) -> dict[str, list[Mapping[str, float]]]:
    """Return alternative -> samples, from the lines of `write_samples` among all output of a job."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith(_LINE_START)]
    return {line["alternative"]: line["samples"] for line in lines}
