"""MobileNet v2: depthwise convolutions between a wide expansion and a narrow projection. Pure.

*Sources*: Sandler et al., arXiv:1801.04381 (tables 1 and 2); torchvision/models/mobilenetv2.py, for the dropout.
"""

from train.networks.arch import Rows

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, and stride of the first block (t, c, n and s of table 2)."""


def add_layers(_name: str, rows: Rows) -> str:
    """Add the rows of the network before the classifier and return the name of the last one."""
    rows.activation = "relu6"
    last, number = rows.conv_bn("stem", "data", 32, kernel=3, stride=2, relu=True), 0
    for expansion, width, blocks, first_stride in _STAGES:
        for block in range(blocks):
            number += 1
            last = _block(rows, f"block{number}", last, width, expansion, 1 if block else first_stride)
    last = rows.conv_bn("head", last, 1280, relu=True)
    return rows.add("dropout", "dropout", rows.add("pool", "global_pool", last), rate=0.2)


def _block(rows: Rows, name: str, source: str, width: int, expansion: int, stride: int) -> str:
    wide = expansion * rows.channels[source]
    inner = source if expansion == 1 else rows.conv_bn(f"{name}_expansion", source, wide, relu=True)
    inner = rows.conv_bn(f"{name}_depthwise", inner, wide, kernel=3, stride=stride, groups=wide, relu=True)
    is_residual = stride == 1 and rows.channels[source] == width
    inner = rows.conv_bn(f"{name}_projection", inner, width, ends_block=is_residual)
    return rows.add(f"{name}_add", "add", inner, source) if is_residual else inner
