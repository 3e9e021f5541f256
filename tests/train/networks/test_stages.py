"""The stages in which a network is compiled: where they begin, and how many gradients each has."""

import pytest

from configs.load import load_cluster
from configs.schema import Cluster
from train.networks.arch import build_network
from train.networks.stages import stages_of

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
