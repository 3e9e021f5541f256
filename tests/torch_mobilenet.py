"""MobileNet v2 as people write it in PyTorch, from the paper, with torchvision's names. Imports nothing of ours.

*Source*: Sandler et al., arXiv:1801.04381 (tables 1 and 2).
"""

from typing import Any

from torch import nn

from tests.torch_resnets import randomize

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _bounded(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide, self.is_residual = inputs * expansion, stride == 1 and inputs == outputs
        first = [] if expansion == 1 else [_bounded(inputs, wide, 1)]
        last = nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv = nn.Sequential(*first, _bounded(wide, wide, 3, stride, wide), *last)

    def forward(self, images: Any) -> Any:
        return images + self.conv(images) if self.is_residual else self.conv(images)


class MobileNet(nn.Module):  # type: ignore[misc]
    """The network with random weights and running statistics, in inference."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        features, inputs = [_bounded(3, 32, 3, 2)], 32
        for expansion, outputs, number, first_stride in _STAGES:
            for block in range(number):
                features.append(_Block(inputs, outputs, expansion, 1 if block else first_stride))
                inputs = outputs
        self.features = nn.Sequential(*features, _bounded(320, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        randomize(self)
        self.eval()

    def forward(self, images: Any) -> Any:
        """Give the logits."""
        return self.classifier(self.features(images).mean((2, 3)))
