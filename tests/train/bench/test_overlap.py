"""The hidden share of the communication is that of the rounds, over a link on which it takes as long as backward."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.train.bench.answering import Answering, Started
from train.bench.__main__ import read_command
from train.bench.bench_overlap import NONE, SERIAL, figures
from train.networks.arch import build_network


def test_the_hidden_fraction_is_the_part_of_serial_that_is_not_exposed_round_by_round() -> None:
    none, serial = [100.0, 110.0], [200.0, 160.0]
    assert figures([120.0, 120.0], none, serial, 0.5) == [
        {"step_ms": 120.0, "exposed_ms": 20.0, "exposed / backward": 0.04, "hidden_fraction": 0.8},
        {"step_ms": 120.0, "exposed_ms": 10.0, "exposed / backward": 0.02, "hidden_fraction": 0.8},
    ]
    assert [each["hidden_fraction"] for each in figures(serial, none, serial, 0.5)] == [0.0, 0.0]
    free = figures([12.0, 12.0], [10.0, 10.0], [14.0, 10.0], 0.5)
    assert not any("hidden_fraction" in each for each in free), "in a round serial costs nothing"


def test_communication_takes_as_long_as_backward_and_a_single_bucket_stays_exposed() -> None:
    def answer(started: Started) -> Mapping[str, Any]:
        takes_ms = {NONE: 500.0, SERIAL: 1500.0}
        return {
            str(at): [{"step_ms": takes_ms.get(each, 700.0)}] for at, each in enumerate(started.task["buckets_bytes"])
        }

    jobs = Answering(answer=answer)
    words = "--ranks 4 --set cluster.communication.bucket_bytes=1073741824"
    report = read_command(["overlap", *words.split()])[0].measure(jobs)
    hidden = [row.median for row in report.rows if row.figure == "hidden_fraction"]
    assert hidden == [0.0, 0.8, 0.8]
    ((link,),) = ([each.partition("link_bytes_per_s=")[2] for each in started.sets if "link" in each]
                  for started in jobs.started)  # fmt: skip
    parameters = build_network("resnet50", num_classes=1000, image_size=224).parameters
    # Half precision apart from the batch norms: between two and two and a hundredth bytes a number.
    sent_bytes = 1.5 * sum(2 * each.size for each in parameters) / 8  # 2 * 3 / 4 of gradients an eighth as long
    assert float(link) == pytest.approx(sent_bytes / 0.5, rel=0.01), "in the half second of backward"
