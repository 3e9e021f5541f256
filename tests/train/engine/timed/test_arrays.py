"""Which framework's arrays a rehearsal reduces."""

from typing import Any

import pytest

from configs.load import load_cluster
from configs.registry import installed_engine
from tests.engines import ALONE, BOTH
from train.engine.protocol import open_engine

WAITS = "cluster.rehearsal.waits={forward_s: 0, gradients_s: [], update_s: 0, evaluation_s: 0, top1: []}"


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        pytest.param("horovod", "mxnet", marks=BOTH[0].marks),
        pytest.param("torch_distributed", "torch", marks=BOTH[1].marks),
        ("shared_memory", installed_engine()),
    ],
)
def test_arrays_are_those_that_the_communicator_sums(kind: str, taken: str) -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=timed", f"cluster.communication.kind={kind}", WAITS])
    engine: Any = open_engine(cluster, ALONE)
    assert type(engine.zeros((1,))).__module__.partition(".")[0] == taken
