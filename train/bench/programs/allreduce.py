"""One rank of ``bench allreduce``: sums of float32 buffers of several sizes over all ranks, in turn."""

import os
from collections.abc import Sequence

import numpy as np

from configs.load import load_cluster
from train.bench.samples import write_samples
from train.comm.communicator import connector
from train.engine.protocol import open_engine
from train.probe import allreduce_s
from train.rank.identity import read_identity
from train.rank.startup import Ledger

_SAMPLE_BYTES, _MOST_IN_A_SAMPLE = 32 << 20, 20
"""A sample of a small buffer repeats its reduction until it has summed so much, or so often."""


def main(cluster: str, overrides: Sequence[str], rounds: int, sizes: Sequence[int]) -> None:
    """Measure the milliseconds of one allreduce of each size, with one sample in each round.

    Args:
        cluster: A name or a file.
        overrides: Changes of the cluster.
        rounds: Rounds that count, after one that does not.
        sizes: Bytes of a rank's buffer, each.
    """
    place, identity = load_cluster(cluster, overrides), read_identity(os.environ)
    engine = open_engine(place, identity)
    communicator = connector(place.communication)(identity, Ledger())
    buffers = {size: engine.from_host(np.zeros(size // 4, np.float32)) for size in sizes}
    samples: dict[int, list[dict[str, float]]] = {size: [] for size in buffers}
    for _ in range(1 + rounds):
        for size, buffer in buffers.items():
            repeats = max(1, min(_MOST_IN_A_SAMPLE, _SAMPLE_BYTES // size))
            took_s = allreduce_s(engine, communicator, f"allreduce of {size}", buffer, repeats)
            samples[size].append({"allreduce_ms": 1e3 * took_s})
    for size, own in samples.items():
        write_samples(identity, str(size), own[1:])
