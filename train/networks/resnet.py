"""Residual networks. Pure.

*Sources*: He et al., arXiv:1512.03385 (tables 1 and 6); version 1.5 strides in the 3x3 convolution of a bottleneck
and in its projection, not in the first 1x1 (the MLPerf reference). ResNeXt: Xie et al., arXiv:1611.05431 (table 1).
`Rows.residual` may replace layers of these papers; programs without pydantic leave its keys out.
"""

from functools import partial

from configs.networks import NETWORKS
from train.networks.arch import Rows

_BASIC = ("resnet18", "resnet34")
_SMALL = ("resnet8", "resnet20", "resnet32", "resnet56")
_GROUPS = {"resnext50_32x4d": 32}
"""Name -> groups of the 3x3 convolutions in the bottlenecks; 1 for other networks."""


def add_layers(name: str, rows: Rows) -> str:
    """Add the rows of the network before the classifier and return the name of the last one."""
    first_width, rows.activation = 16 if name in _SMALL else 64, rows.residual.get("activation", "relu")
    make = _basic if name in (*_BASIC, *_SMALL) else partial(_bottleneck, groups=_GROUPS.get(name, 1))
    last = rows.conv_bn("stem", "data", 16, kernel=3, relu=True) if name in _SMALL else _stem(rows)
    for stage, blocks in enumerate(NETWORKS[name].blocks):
        for block in range(1, blocks + 1):
            stride = 2 if stage and block == 1 else 1
            last = make(rows, f"stage{stage + 1}_block{block}", last, first_width << stage, stride)
    return rows.add("pool", "global_pool", last)


def _stem(rows: Rows) -> str:
    """Add the first layers of a network for photographs."""
    if rows.residual.get("stem") == "deep":
        last = rows.conv_bn("stem_conv1", "data", 32, kernel=3, stride=2, relu=True)
        last = rows.conv_bn("stem_conv2", last, 32, kernel=3, relu=True)
        last = rows.conv_bn("stem_conv3", last, 64, kernel=3, relu=True)
    else:
        last = rows.conv_bn("stem", "data", 64, kernel=7, stride=2, relu=True)
    if rows.residual.get("blur") == "convolutions_and_max_pool":
        return _blurred(rows, "stem_pool", rows.add("stem_pool", "max_pool", last, kernel=3), stride=2)
    return rows.add("stem_pool", "max_pool", last, kernel=3, stride=2)


def _basic(rows: Rows, name: str, source: str, width: int, stride: int) -> str:
    inner = _conv3x3(rows, f"{name}_conv1", source, width, stride)
    inner = rows.conv_bn(f"{name}_conv2", inner, width, kernel=3, ends_block=True)
    return _join(rows, name, source, inner, width, stride)


def _bottleneck(rows: Rows, name: str, source: str, width: int, stride: int, groups: int) -> str:
    # With 32 groups of 4 channels, twice the channels cost as much as one group.
    inner_width = width if groups == 1 else 2 * width
    inner = rows.conv_bn(f"{name}_conv1", source, inner_width, relu=True)
    inner = _conv3x3(rows, f"{name}_conv2", inner, inner_width, stride, groups)
    inner = rows.conv_bn(f"{name}_conv3", inner, 4 * width, ends_block=True)
    return _join(rows, name, source, inner, 4 * width, stride)


def _conv3x3(rows: Rows, name: str, source: str, width: int, stride: int, groups: int = 1) -> str:
    """Add a 3x3 convolution, its batch norm and a ReLU, with the stride of the block."""
    if stride != 1 and rows.residual.get("stride") == "pool":
        last = rows.conv_bn(name, source, width, kernel=3, groups=groups, relu=True)
        return rows.add(f"{name}_pool", "avg_pool", last, kernel=2, stride=2, padding=0)
    if stride != 1 and rows.residual.get("blur", "none") != "none":
        source = _blurred(rows, name, source, stride=1)
    return rows.conv_bn(name, source, width, kernel=3, stride=stride, groups=groups, relu=True)


def _join(rows: Rows, name: str, source: str, inner: str, width: int, stride: int) -> str:
    """Add the shortcut: the identity, or a projection where the shape changes (option B of the paper)."""
    if name in rows.residual.get("squeeze_excitation", ()):
        inner = _excited(rows, name, inner)
    shortcut = source
    if stride != 1 or rows.channels[source] != width:
        projection = f"{name}_projection"
        if stride != 1 and rows.residual.get("shortcut") == "pooled":
            shortcut, stride = rows.add(f"{projection}_pool", "avg_pool", source, kernel=2, stride=2, padding=0), 1
        elif stride != 1 and rows.residual.get("blur", "none") != "none":
            # A 1x1 convolution reads every other pixel alone, so the others need not be blurred.
            shortcut, stride = _blurred(rows, projection, source, stride=2), 1
        shortcut = rows.conv_bn(projection, shortcut, width, stride=stride)
    rows.add(f"{name}_add", "add", inner, shortcut)
    return rows.activated(name, f"{name}_add")


def _excited(rows: Rows, name: str, source: str) -> str:
    """Add squeeze and excitation with ratio 4 (Hu et al., arXiv:1709.01507), whose dense layers read a single pixel."""
    width = rows.channels[source]
    squeezed = rows.conv_relu(f"{name}_squeeze", rows.add(f"{name}_squeeze_pool", "global_pool", source), width // 4)
    excited = rows.add(f"{name}_excitation", "conv", squeezed, out_channels=width, has_bias=True)
    gate = rows.add(f"{name}_gate", "sigmoid", excited)
    return rows.add(f"{name}_product", "multiply", source, gate)


def _blurred(rows: Rows, name: str, source: str, *, stride: int) -> str:
    """Add a blur of each channel by [1 2 1]^T [1 2 1] / 16, with zeros around the image (Zhang, arXiv:1904.11486).

    [1 2 1] / 4 is [1 1] / 2 applied twice, so two average pools of 2x2 pixels do what the filter does.
    """
    once = rows.add(f"{name}_blur1", "avg_pool", source, kernel=2, padding=1)
    return rows.add(f"{name}_blur2", "avg_pool", once, kernel=2, stride=stride, padding=0)
