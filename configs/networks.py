"""The networks by name: the module that has the layers, and the image sizes that the network takes.

A new network is registered by a row of `NETWORKS`; docs/extending.md has a worked example.
"""

from collections.abc import Mapping
from typing import NamedTuple


class NetworkEntry(NamedTuple):
    """A network of the registry.

    Attributes:
        module: Module with a function ``add_layers(name, rows)``, see `train.networks.arch`.
        smallest: Smallest side of the square input, px.
        largest: Largest side of the square input, px.
        blocks: Residual blocks of each stage; empty if ``model.residual`` does not apply.
        is_pooled: Whether a global pool makes the shapes of all weights independent of the image size.
    """

    module: str
    smallest: int
    largest: int
    blocks: tuple[int, ...] = ()
    is_pooled: bool = True


BACKBONE = "backbone"
"""All layers but the classifier, in ``model.frozen``."""

_CLASSIC, _RESNET = "train.networks.classic", "train.networks.resnet"

NETWORKS: Mapping[str, NetworkEntry] = {
    "resnet18": NetworkEntry(_RESNET, 8, 1024, (2, 2, 2, 2)),
    "resnet34": NetworkEntry(_RESNET, 8, 1024, (3, 4, 6, 3)),
    "resnet50": NetworkEntry(_RESNET, 8, 1024, (3, 4, 6, 3)),
    "resnet101": NetworkEntry(_RESNET, 8, 1024, (3, 4, 23, 3)),
    "resnet152": NetworkEntry(_RESNET, 8, 1024, (3, 8, 36, 3)),
    "resnext50_32x4d": NetworkEntry(_RESNET, 8, 1024, (3, 4, 6, 3)),
    "resnet8": NetworkEntry(_RESNET, 8, 64, (1, 1, 1)),
    "resnet20": NetworkEntry(_RESNET, 8, 64, (3, 3, 3)),
    "resnet32": NetworkEntry(_RESNET, 8, 64, (5, 5, 5)),
    "resnet56": NetworkEntry(_RESNET, 8, 64, (9, 9, 9)),
    "alexnet": NetworkEntry(_CLASSIC, 63, 1024, is_pooled=False),
    "googlenet": NetworkEntry(_CLASSIC, 8, 1024),
    "densenet121": NetworkEntry(_CLASSIC, 29, 1024),
    "mobilenet_v2": NetworkEntry("train.networks.mobilenet", 8, 1024),
    "mnist_small_cnn": NetworkEntry(_CLASSIC, 28, 28, is_pooled=False),
    "mnist_large_cnn": NetworkEntry(_CLASSIC, 28, 28, is_pooled=False),
}
"""Name -> network. Below the smallest size of AlexNet and DenseNet, a pooling layer would have no pixel left."""
