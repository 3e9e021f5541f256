"""Residual networks. Pure.

*Sources*: He et al., arXiv:1512.03385 (tables 1 and 6); version 1.5 strides in the 3x3 convolution of a bottleneck
and in its projection, not in the first 1x1 (the MLPerf reference).
"""

from train.networks.arch import Rows

_BOTTLENECK = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
_BASIC = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
_SMALL = {"resnet8": 1, "resnet20": 3, "resnet32": 5, "resnet56": 9}


def add_layers(name: str, rows: Rows) -> str:
    """Add the rows of the network before the classifier and return the name of the last one."""
    return _small(name, rows) if name in _SMALL else _large(name, rows)


def _large(name: str, rows: Rows) -> str:
    """Add the layers before the classifier of a network for photographs."""
    stages = _BOTTLENECK.get(name) or _BASIC[name]
    make = _bottleneck if name in _BOTTLENECK else _basic
    last = rows.conv_bn("stem", "data", 64, kernel=7, stride=2, relu=True)
    last = rows.add("stem_pool", "max_pool", last, kernel=3, stride=2)
    for stage, blocks in enumerate(stages, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            last = make(rows, f"stage{stage}_block{block}", last, 32 << stage, stride)
    return rows.add("pool", "global_pool", last)


def _small(name: str, rows: Rows) -> str:
    """Add the layers before the classifier of a network for small images."""
    last = rows.conv_bn("stem", "data", 16, kernel=3, relu=True)
    for stage, width in enumerate((16, 32, 64), start=1):
        for block in range(1, _SMALL[name] + 1):
            last = _basic(rows, f"stage{stage}_block{block}", last, width, 2 if stage > 1 and block == 1 else 1)
    return rows.add("pool", "global_pool", last)


def _basic(rows: Rows, name: str, source: str, width: int, stride: int) -> str:
    inner = rows.conv_bn(f"{name}_conv1", source, width, kernel=3, stride=stride, relu=True)
    inner = rows.conv_bn(f"{name}_conv2", inner, width, kernel=3, ends_block=True)
    return _join(rows, name, source, inner, width, stride)


def _bottleneck(rows: Rows, name: str, source: str, width: int, stride: int) -> str:
    inner = rows.conv_bn(f"{name}_conv1", source, width, relu=True)
    inner = rows.conv_bn(f"{name}_conv2", inner, width, kernel=3, stride=stride, relu=True)
    inner = rows.conv_bn(f"{name}_conv3", inner, 4 * width, ends_block=True)
    return _join(rows, name, source, inner, 4 * width, stride)


def _join(rows: Rows, name: str, source: str, inner: str, width: int, stride: int) -> str:
    """Add the shortcut: the identity, or a projection where the shape changes (option B of the paper)."""
    shortcut = source
    if stride != 1 or rows.channels[source] != width:
        shortcut = rows.conv_bn(f"{name}_projection", source, width, stride=stride)
    rows.add(f"{name}_add", "add", inner, shortcut)
    return rows.add(f"{name}_relu", "relu", f"{name}_add")
