"""Which additions and ReLUs become part of a batch norm: those behind one that nothing else reads."""

from collections import Counter

from train.networks.arch import Rows, build_network
from train.networks.fusion import fuse_norms


def test_in_resnet50_every_relu_and_addition_is_part_of_a_batch_norm() -> None:
    # He et al., table 1: 16 blocks of three convolutions, the stem and four projections; 49 ReLUs, 16 additions.
    network = build_network("resnet50", num_classes=1000, image_size=224)
    fused = fuse_norms(network.layers)
    kinds = Counter((row.kind.name, len(row.inputs)) for row in fused if row.kind.name.startswith("bn"))
    assert kinds == {("bn_relu", 1): 33, ("bn_relu", 2): 16, ("bn", 1): 4}
    assert {row.kind.name for row in fused} == {"conv", "bn", "bn_relu", "max_pool", "global_pool", "dense"}
    assert {each for row in fused for each in row.parameters} == {*network.parameters}


def test_another_activation_than_relu_is_no_part_of_a_batch_norm() -> None:
    rows = Rows(3, 8)
    for kind in ("relu6", "silu"):
        rows.activation = kind
        rows.conv_bn(kind, "data", 4, relu=True)
    assert [row.kind.name for row in fuse_norms(rows.layers)] == ["conv", "bn", "relu6", "conv", "bn", "silu"]


def test_every_row_follows_the_rows_that_it_reads_and_the_first_input_takes_an_addition() -> None:
    network = build_network("resnet50", num_classes=1000, image_size=224)
    made = {"data"}
    for row in fuse_norms(network.layers):
        assert made.issuperset(row.inputs), row.name
        made.add(row.name)
    last, projected = "stage1_block1_conv3", "stage1_block1_projection"
    (first_block,) = (row for row in fuse_norms(network.layers) if row.name == f"{last}_bn")
    assert first_block.inputs == (last, f"{projected}_bn")


def test_what_others_read_and_what_follows_no_batch_norm_stays_as_it_is() -> None:
    rows = Rows(3, 8)
    read_twice = rows.conv_bn("twice", "data", 4)
    rows.add("relu", "relu", read_twice)
    rows.add("doubled", "add", read_twice, read_twice)
    rows.add("sum", "add", "relu", "doubled")
    rows.add("after", "relu", rows.conv_relu("plain", "sum", 4))
    # A ReLU comes before this addition, so only what is before it belongs to the batch norm.
    late = rows.add("late", "add", rows.conv_bn("early", "after", 4, relu=True), "after")
    # An addition into which a batch norm was added already, and one behind a ReLU that is taken.
    first = rows.add("first", "add", "after", rows.conv_bn("inner", late, 4))
    second = rows.add("second", "add", first, late)
    rows.add("end", "relu", second)
    assert [(row.name, row.kind.name, row.inputs) for row in fuse_norms(rows.layers)] == [
        ("twice", "conv", ("data",)), ("twice_bn", "bn", ("twice",)), ("relu", "relu", ("twice_bn",)),
        ("doubled", "add", ("twice_bn", "twice_bn")), ("sum", "add", ("relu", "doubled")), ("plain", "conv", ("sum",)),
        ("plain_relu", "relu", ("plain",)), ("after", "relu", ("plain_relu",)), ("early", "conv", ("after",)),
        ("early_bn", "bn_relu", ("early",)), ("late", "add", ("early_bn", "after")), ("inner", "conv", ("late",)),
        ("inner_bn", "bn", ("inner", "after")), ("second", "add", ("inner_bn", "late")), ("end", "relu", ("second",)),
    ]  # fmt: skip
