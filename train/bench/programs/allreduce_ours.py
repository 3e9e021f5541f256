"""One rank of ``bench allreduce``: sums of float32 buffers of several sizes over all ranks, in turn."""

import argparse
import os
import sys
import time
from collections.abc import Sequence

import numpy as np

from configs.load import load_cluster
from train.bench.samples import write_samples
from train.comm.communicator import connector
from train.engine.protocol import open_engine
from train.rank.identity import read_identity
from train.rank.startup import Ledger

_SAMPLE_BYTES, _MOST_IN_A_SAMPLE = 32 << 20, 20
"""A sample of a small buffer repeats its reduction: a single one takes less time than the ranks need to meet."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the milliseconds of one allreduce of each size, with one sample in each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--rounds", type=int, required=True, help="rounds that count, after one that does not")
    parser.add_argument("sizes", nargs="+", type=int, help="bytes of a rank's buffer")
    options = parser.parse_args(arguments)
    cluster, identity = load_cluster(options.cluster, options.overrides), read_identity(os.environ)
    engine = open_engine(cluster, identity)
    communicator = connector(cluster.communication)(identity, Ledger())
    buffers = {size: engine.from_host(np.zeros(size // 4, np.float32)) for size in options.sizes}
    samples: dict[int, list[dict[str, float]]] = {size: [] for size in buffers}
    for number in range(1 + options.rounds):
        for size, buffer in buffers.items():
            repeats = max(1, min(_MOST_IN_A_SAMPLE, _SAMPLE_BYTES // size))
            engine.wait_all()
            communicator.gather("begin", 0)
            begin = time.perf_counter()
            for _ in range(repeats):
                communicator.reduce(f"allreduce of {size}", [buffer])
                communicator.complete()
                engine.wait_all()
            own_s = (time.perf_counter() - begin) / repeats
            slowest_s = max(communicator.gather("took", round(1e9 * own_s))) / 1e9
            if number:
                samples[size].append({"allreduce_ms": 1e3 * slowest_s})
    for size, rounds in samples.items():
        write_samples(identity, str(size), rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
