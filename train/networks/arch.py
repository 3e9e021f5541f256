"""Every network as a table of layers: shapes, multiply-adds, parameters. Pure: imports no framework.

An engine turns a table into a network, and the planner and the simulator read the same rows, so the three cannot
disagree. `configs.networks.NETWORKS` names the module that has the rows of each network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from configs.networks import NETWORKS
from configs.registry import module_of
from train.networks.table import Layer, Network, Parameter, Rows, float32_gradients, gradient_bytes

if TYPE_CHECKING:
    # The programs of the peers build the same networks in an environment without pydantic.
    from configs.schema import Model

__all__ = ["Layer", "Network", "Parameter", "build_network", "float32_gradients", "gradient_bytes", "network_of"]


def build_network(name: str, *, num_classes: int, image_size: int, input_channels: int = 3) -> Network:
    """Return the table of a network.

    Args:
        name: A key of `configs.networks.NETWORKS`. Its module has a function ``add_layers(name, rows)``, which adds the
            rows before the classifier and returns the name of the last of them.
        num_classes: Width of the classifier.
        image_size: Side of the square input, px.
        input_channels: 3; 4 where a zero channel pads the input for tensor cores; 1 for grey images.
    """
    rows = Rows(input_channels, image_size)
    modules = {key: entry.module for key, entry in NETWORKS.items()}
    rows.dense("classifier", module_of(modules, name).add_layers(name, rows), num_classes)
    return Network(name, image_size, input_channels, num_classes, tuple(rows.layers))


def network_of(model: Model) -> Network:
    """Return the table of the network that a recipe's block ``model`` describes."""
    return build_network(
        model.name, num_classes=model.num_classes, image_size=model.image_size, input_channels=model.input_channels
    )
