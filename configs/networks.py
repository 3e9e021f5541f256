"""The networks by name, and the images that each takes. The layers are in `train.networks.arch`."""

from __future__ import annotations

__all__ = ["IMAGE_SIZES", "NETWORKS", "networks_for"]

_ANY, _SMALL, _MNIST = (8, 1024), (8, 64), (28, 28)

IMAGE_SIZES = {
    **dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"), _ANY),
    **dict.fromkeys(("resnet8", "resnet20", "resnet32", "resnet56"), _SMALL),
    "alexnet": (63, 1024),
    "googlenet": _ANY,
    "densenet121": (29, 1024),
    **dict.fromkeys(("mnist_small_cnn", "mnist_large_cnn"), _MNIST),
}
"""Name -> smallest and largest side of the square input, px. Below AlexNet's and DenseNet's nothing is left to pool."""

NETWORKS = tuple(IMAGE_SIZES)


def networks_for(image_size: int) -> list[str]:
    """List the networks that take images of ``image_size`` px."""
    return [name for name, (least, most) in IMAGE_SIZES.items() if least <= image_size <= most]
