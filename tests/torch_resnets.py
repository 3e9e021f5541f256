"""ResNets as people write them in PyTorch, from the papers, with torchvision's names. Imports nothing of ours.

*Sources*: He et al., arXiv:1512.03385 (table 1 and section 4.2), with the strides of version 1.5; ResNet-D: He et al.,
arXiv:1812.01187 (figure 2), with the names of timm, which differ from torchvision's in stem and shortcut.
"""

from typing import Any

import torch
from torch import nn

BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
    "resnext50_32x4d": (3, 4, 6, 3),
}


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def randomize(network: nn.Module) -> None:
    """Draw the weights of all convolutions, and batch norms like a trained network's."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1)
                module.bias.normal_(0, 0.2)
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 2)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, width: int, stride: int, *, expansion: int, is_d: bool, groups: int) -> None:
        super().__init__()
        kernels = (1, 3, 1) if expansion > 1 else (3, 3)
        self.depth, outputs = len(kernels), width * expansion
        # 32 groups of 4 channels in the place of 64 (Xie et al., arXiv:1611.05431, table 1).
        inner = 2 * width if groups > 1 else width
        before = inputs
        for number, kernel in enumerate(kernels, 1):
            after = outputs if number == self.depth else inner
            is_strided = number == (2 if expansion > 1 else 1)
            split = groups if kernel > 1 else 1
            self.add_module(f"conv{number}", _conv(before, after, kernel, stride if is_strided else 1, split))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
            before = after
        self.downsample = None
        if stride != 1 or inputs != outputs:
            pool = [nn.Identity() if stride == 1 else nn.AvgPool2d(2)] if is_d else []
            self.downsample = nn.Sequential(
                *pool, _conv(inputs, outputs, 1, 1 if is_d else stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: Any) -> Any:
        inner = images
        for number in range(1, self.depth + 1):
            inner = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(inner))
            inner = inner if number == self.depth else inner.relu()
        return (inner + (images if self.downsample is None else self.downsample(images))).relu()


class ResNet(nn.Module):  # type: ignore[misc]
    """A network with random weights and running statistics, in inference.

    Args:
        name: A key of `BLOCKS`.
        num_classes: Outputs.
        is_d: Build ResNet-D.
    """

    def __init__(self, name: str, num_classes: int = 10, *, is_d: bool = False) -> None:
        super().__init__()
        width, expansion = 64, 1 if name in ("resnet18", "resnet34") else 4
        groups = 32 if "32x4d" in name else 1
        self.conv1 = _conv(3, 64, 7, 2)
        if is_d:
            first, second = (nn.Sequential(_conv(*each), nn.BatchNorm2d(32), nn.ReLU()) for each in _DEEP)
            self.conv1 = nn.Sequential(*first, *second, _conv(32, 64, 3))
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, number in enumerate(BLOCKS[name]):
            layer = nn.Sequential()
            for block in range(number):
                stride = 2 if stage and not block else 1
                layer.append(_Block(inputs, width << stage, stride, expansion=expansion, is_d=is_d, groups=groups))
                inputs = (width << stage) * expansion
            self.add_module(f"layer{stage + 1}", layer)
        self.fc = nn.Linear(inputs, num_classes)
        randomize(self)
        self.eval()

    def forward(self, images: Any) -> Any:
        values = nn.functional.max_pool2d(self.bn1(self.conv1(images)).relu(), 3, 2, 1)
        for stage in (1, 2, 3, 4):
            values = getattr(self, f"layer{stage}")(values)
        return self.fc(values.mean((2, 3)))


_DEEP = ((3, 32, 3, 2), (32, 32, 3))
