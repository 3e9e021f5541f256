"""Every network as a table of layers: shapes, multiply-adds, parameters. Pure: imports no framework.

`train.engine.mxnet.network` turns a table into a network, and the planner and the simulator read the same
rows, so the three cannot disagree. The families' tables are in `train.networks`.
"""

from __future__ import annotations

from train.networks.classic import CLASSICS
from train.networks.resnet import RESNETS
from train.networks.table import Layer, Network, Parameter, Rows, gradient_bytes

__all__ = ["Layer", "Network", "Parameter", "build_network", "gradient_bytes"]

_FAMILIES = RESNETS | CLASSICS


def build_network(name: str, *, num_classes: int, image_size: int, input_channels: int = 3) -> Network:
    """Make a network's table.

    Args:
        name: One of `configs.networks.NETWORKS`.
        num_classes: Width of the classifier.
        image_size: Side of the square input, px.
        input_channels: 3; 4 where a zero channel pads the input for tensor cores; 1 for grey images.
    """
    rows = Rows(input_channels, image_size)
    rows.dense("classifier", _FAMILIES[name](rows), num_classes)
    return Network(name, image_size, input_channels, num_classes, tuple(rows.layers))
