"""``bench gpu --tiny`` on a CPU, in an environment that may have no MXNet."""

from pathlib import Path

import pytest

from train.bench.__main__ import BENCHES, read_command
from train.bench.launching import Jobs

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.ranks
def test_steps_and_a_run_on_pytorch_give_rows_and_what_needs_a_gpu_is_a_note(tmp_path: Path) -> None:
    words = f"gpu --tiny --only run steps graphs --seconds 0.01 --folder {tmp_path}"
    report = BENCHES["gpu"].measure(read_command(words.split()).options, Jobs())
    found = {(row.alternative, row.figure): row.median for row in report.rows}
    steps = {name for (name, figure), median in found.items() if figure == "step_ms" and median > 0}
    kinds = {
        f"{recipe}, batch 8, {kind}" for recipe in ("imagenet-b256", "mlperf-b3264") for kind in ("bfloat16", "float32")
    }
    assert kinds <= steps
    assert found["a run of 12 steps on generated JPEGs", "steps"] == 12
    assert any(note.startswith("graphs: exit status") for note in report.notes), "a CPU has no CUDA graph"
