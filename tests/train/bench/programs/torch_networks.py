"""Runs under the Python of the peers: builds the network of each request, and writes the logits."""

import sys
from pathlib import Path

import numpy as np
import torch

from train.bench.programs.pytorch_peer import TableNetwork
from train.networks.arch import build_network


def main(folder: Path) -> None:
    """Write logits to ``NAME.npy`` for each ``NAME.npz`` of images and of parameters in the order of the table."""
    for asked in folder.glob("*.npz"):
        request = np.load(asked)
        images = request["images"]
        table = build_network(asked.stem, num_classes=10, image_size=images.shape[2], input_channels=images.shape[1])
        network = TableNetwork(table).eval()
        parameters = list(network.parameters())
        assert len(parameters) == len(request.files) - 1
        with torch.no_grad():
            for number, parameter in enumerate(parameters):
                parameter.copy_(torch.from_numpy(request[str(number)]))
            np.save(asked.with_suffix(".npy"), network(torch.from_numpy(images)).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
