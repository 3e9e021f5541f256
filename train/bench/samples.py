"""How a bench's ranks tell their samples: a line of JSON an alternative. Imports nothing that a peer may lack."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from train.rank.identity import Identity

__all__ = ["samples_of", "tell"]

_MARK = '{"alternative":'


def tell(identity: Identity, alternative: str, samples: Sequence[Mapping[str, float]]) -> None:
    """Write one line with an alternative's samples, on rank 0."""
    if identity.rank == 0:
        sys.stdout.write(json.dumps({"alternative": alternative, "samples": list(samples)}) + "\n")
        sys.stdout.flush()


def samples_of(said: str) -> dict[str, list[Mapping[str, float]]]:
    """Find what `tell` wrote among all that a job wrote: samples by alternative."""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith(_MARK)]
    return {line["alternative"]: line["samples"] for line in lines}
