"""The networks of the founding documents' benchmarks: AlexNet, GoogLeNet, DenseNet-121, two CNNs for MNIST. Pure.

Each function adds the layers before the classifier and returns the name of the last of them.
"""

from train.networks.arch import Rows

_INCEPTION = {
    "inception3a": (64, 96, 128, 16, 32, 32),
    "inception3b": (128, 128, 192, 32, 96, 64),
    "inception4a": (192, 96, 208, 16, 48, 64),
    "inception4b": (160, 112, 224, 24, 64, 64),
    "inception4c": (128, 128, 256, 24, 64, 64),
    "inception4d": (112, 144, 288, 32, 64, 64),
    "inception4e": (256, 160, 320, 32, 128, 128),
    "inception5a": (256, 160, 320, 32, 128, 128),
    "inception5b": (384, 192, 384, 48, 128, 128),
}
"""Widths of #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool projection (table 1 of the paper)."""

_DENSE_BLOCKS = (6, 12, 24, 16)
_GROWTH = 32


def _alexnet(rows: Rows) -> str:
    """Krizhevsky, arXiv:1404.5997, as Gluon's model zoo has it: one tower, no local response norm."""
    last = rows.conv_relu("conv1", "data", 64, kernel=11, stride=4, padding=2)
    last = rows.add("pool1", "max_pool", last, kernel=3, stride=2, padding=0)
    last = rows.conv_relu("conv2", last, 192, kernel=5)
    last = rows.add("pool2", "max_pool", last, kernel=3, stride=2, padding=0)
    for number, width in ((3, 384), (4, 256), (5, 256)):
        last = rows.conv_relu(f"conv{number}", last, width, kernel=3)
    last = rows.add("pool5", "max_pool", last, kernel=3, stride=2, padding=0)
    for number in (6, 7):
        last = rows.dense_relu(f"dense{number}", last, 4096)
        last = rows.add(f"dropout{number}", "dropout", last, rate=0.5)
    return last


def _googlenet(rows: Rows) -> str:
    """Szegedy et al., arXiv:1409.4842, table 1, without auxiliary heads and local response norm (tf_cnn_benchmarks)."""
    last = rows.conv_relu("conv1", "data", 64, kernel=7, stride=2)
    last = rows.add("pool1", "max_pool", last, kernel=3, stride=2)
    last = rows.conv_relu("conv2_reduce", last, 64)
    last = rows.conv_relu("conv2", last, 192, kernel=3)
    last = rows.add("pool2", "max_pool", last, kernel=3, stride=2)
    for name, widths in _INCEPTION.items():
        last = _inception(rows, name, last, widths)
        if name in ("inception3b", "inception4e"):
            last = rows.add(f"{name}_pool", "max_pool", last, kernel=3, stride=2)
    return rows.add("dropout", "dropout", rows.add("pool", "global_pool", last), rate=0.4)


def _inception(rows: Rows, name: str, source: str, widths: tuple[int, ...]) -> str:
    one, reduce3, three, reduce5, five, projection = widths
    by_one = rows.conv_relu(f"{name}_1x1", source, one)
    by_three = rows.conv_relu(f"{name}_3x3_reduce", source, reduce3)
    by_three = rows.conv_relu(f"{name}_3x3", by_three, three, kernel=3)
    by_five = rows.conv_relu(f"{name}_5x5_reduce", source, reduce5)
    by_five = rows.conv_relu(f"{name}_5x5", by_five, five, kernel=5)
    pooled = rows.add(f"{name}_pooled", "max_pool", source, kernel=3)
    pooled = rows.conv_relu(f"{name}_projection", pooled, projection)
    return rows.add(name, "concat", by_one, by_three, by_five, pooled)


def _densenet121(rows: Rows) -> str:
    """Huang et al., arXiv:1608.06993, table 1: growth 32, bottlenecks of 128, compression 0.5."""
    last = rows.conv_bn("stem", "data", 2 * _GROWTH, kernel=7, stride=2, relu=True)
    last = rows.add("stem_pool", "max_pool", last, kernel=3, stride=2)
    for block, layers in enumerate(_DENSE_BLOCKS, start=1):
        for layer in range(1, layers + 1):
            name = f"block{block}_layer{layer}"
            inner = _bn_relu_conv(rows, f"{name}_conv1", last, 4 * _GROWTH)
            inner = _bn_relu_conv(rows, f"{name}_conv2", inner, _GROWTH, kernel=3)
            last = rows.add(name, "concat", last, inner)
        if block < len(_DENSE_BLOCKS):
            last = _bn_relu_conv(rows, f"transition{block}", last, rows.channels[last] // 2)
            last = rows.add(f"transition{block}_pool", "avg_pool", last, kernel=2, stride=2)
    last = rows.add("last_relu", "relu", rows.add("last_bn", "bn", last))
    return rows.add("pool", "global_pool", last)


def _bn_relu_conv(rows: Rows, name: str, source: str, width: int, kernel: int = 1) -> str:
    last = rows.add(f"{name}_relu", "relu", rows.add(f"{name}_bn", "bn", source))
    return rows.add(name, "conv", last, out_channels=width, kernel=kernel)


def _mnist_small_cnn(rows: Rows) -> str:
    """Add one 3x3 convolution and a dense layer of 64."""
    last = rows.conv_relu("conv1", "data", 32, kernel=3)
    return rows.dense_relu("dense1", rows.add("pool1", "max_pool", last, kernel=2, stride=2), 64)


def _mnist_large_cnn(rows: Rows) -> str:
    """Add three 3x3 convolutions and two dense layers of 512."""
    last = "data"
    for number, width in enumerate((128, 256, 512), start=1):
        last = rows.conv_relu(f"conv{number}", last, width, kernel=3)
        last = rows.add(f"pool{number}", "max_pool", last, kernel=2, stride=2)
    return rows.dense_relu("dense2", rows.dense_relu("dense1", last, 512), 512)


_BUILDERS = {
    "alexnet": _alexnet,
    "googlenet": _googlenet,
    "densenet121": _densenet121,
    "mnist_small_cnn": _mnist_small_cnn,
    "mnist_large_cnn": _mnist_large_cnn,
}
"""Name -> function that adds the rows before the classifier. *Source* of the last two: the data-parallel benchmark on
MNIST in PyTorch and TensorFlow; its PyTorch version pads (402,442 and 4,104,202 parameters on one channel of 28 px)."""


def add_layers(name: str, rows: Rows) -> str:
    """Add the rows of the network before the classifier and return the name of the last one."""
    return _BUILDERS[name](rows)
