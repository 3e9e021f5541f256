"""The stages in which a network is compiled, and which additions and ReLUs become part of a batch norm."""

from collections import Counter

import pytest

from configs.load import load_cluster
from configs.schema import Cluster
from train.networks.arch import Rows, build_network
from train.networks.stages import fuse_norms, stages_of

RESNET50 = build_network("resnet50", num_classes=1000, image_size=224)


def _cluster(bucket_bytes: int, *, compiles: bool = True, ranks: int = 2) -> Cluster:
    words = [f"ranks_per_node={ranks}", f"communication.bucket_bytes={bucket_bytes}", "communication.bucket_fraction=0"]
    words += ["engine.name=torch", f"engine.compile={str(compiles).lower()}"]
    return load_cluster("laptop", [f"cluster.{word}" for word in words])


def test_the_stages_of_resnet50_begin_between_blocks_and_have_a_quarter_of_the_gradients_each() -> None:
    stages = stages_of(RESNET50, _cluster(1 << 20), bytes_per_number=2)
    assert tuple(row for stage in stages for row in stage) == RESNET50.layers
    assert [stage[-1].name for stage in stages] == [
        "stage2_block4_relu", "stage3_block6_relu", "stage4_block2_relu", "classifier",
    ]  # fmt: skip
    quarter = RESNET50.num_parameters / 4
    assert all(sum(each.size for row in stage for each in row.parameters) >= quarter for stage in stages[1:])


@pytest.mark.parametrize(
    ("cluster", "number"),
    [
        (_cluster(16 << 20), 3),
        (_cluster(64 << 20), 1),
        (_cluster(1 << 20, ranks=1), 1),
        (_cluster(1 << 20, compiles=False), 1),
    ],
    ids=["large buckets", "one bucket", "one rank", "not compiled"],
)
def test_a_stage_has_as_many_gradients_as_a_bucket(cluster: Cluster, number: int) -> None:
    assert len(stages_of(RESNET50, cluster, bytes_per_number=2)) == number


def test_in_resnet50_every_relu_and_addition_is_part_of_a_batch_norm() -> None:
    # He et al., table 1: 16 blocks of three convolutions, the stem and four projections; 49 ReLUs, 16 additions.
    fused = fuse_norms(RESNET50.layers)
    kinds = Counter((row.kind.name, len(row.inputs)) for row in fused if row.kind.name.startswith("bn"))
    assert kinds == {("bn_relu", 1): 33, ("bn_relu", 2): 16, ("bn", 1): 4}
    assert {row.kind.name for row in fused} == {"conv", "bn", "bn_relu", "max_pool", "global_pool", "dense"}
    assert {each for row in fused for each in row.parameters} == {*RESNET50.parameters}


def test_another_activation_than_relu_is_no_part_of_a_batch_norm() -> None:
    rows = Rows(3, 8)
    for kind in ("relu6", "silu"):
        rows.activation = kind
        rows.conv_bn(kind, "data", 4, relu=True)
    assert [row.kind.name for row in fuse_norms(rows.layers)] == ["conv", "bn", "relu6", "conv", "bn", "silu"]


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
