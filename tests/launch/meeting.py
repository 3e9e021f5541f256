"""``python -m tests.launch.meeting FOLDER SETTING ...``: one of two ranks of PyTorch, and how long they took to meet.

PyTorch is imported before, and the clock starts when both ranks have done so.
"""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

from configs.load import load_cluster
from train.comm.communicator import connector
from train.rank.identity import read_identity
from train.rank.startup import Ledger


def main(folder: Path, settings: list[str]) -> None:
    """Wait for the other rank, connect, and write the sum of the ranks' numbers, the seconds, and Gloo's interface."""
    cluster, identity = load_cluster("laptop", settings), read_identity(os.environ)
    import_module("torch")
    (folder / f"ready-{identity.rank}").touch()
    while not all((folder / f"ready-{rank}").exists() for rank in range(identity.world_size)):
        time.sleep(0.05)
    begin = time.monotonic()
    communicator = connector(cluster.communication)(identity, Ledger())
    met = communicator.gather("numbers", identity.rank + 5)
    seconds = time.monotonic() - begin
    communicator.gather("all ranks are done", 0)
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "none")
    (folder / f"met-{identity.rank}").write_text(f"{sum(met)} {seconds:.2f} {interface}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
