"""``bench gpu --tiny`` on a CPU, in an environment that may have no MXNet."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ROOT

pytest.importorskip("torch")
pytest.importorskip("nvidia.dali")


@pytest.mark.slow
@pytest.mark.ranks
def test_the_parts_that_need_no_compiler_give_rows_where_pythonpath_leads_to_the_program(
    tmp_path: Path,
) -> None:
    parts = "kernels digits profile nccl run simulator"
    words = f"gpu --tiny --only {parts} --seconds 0.01 --folder {tmp_path} --output {tmp_path}/o"
    command = [sys.executable, "-m", "train.bench", *words.split()]
    done = subprocess.run(command, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert [line for line in lines if "note" in line] == []
    found = {(line["part"], line["alternative"], line["figure"]): line["median"] for line in lines}
    assert {part for part, *_ in found} == {*parts.split()}
    assert all(line["verdict"] == "as expected" for line in lines if line["part"] in ("kernels", "digits"))
    whole = {figure: median for (part, _, figure), median in found.items() if part == "run"}
    assert whole["steps"] == 60
    assert 0 < whole["resumed_from_step"] < 60
    spent_ms = [median for (_, _, figure), median in found.items() if figure == "kernel_ms"]
    assert len(spent_ms) == 21
    assert spent_ms[1:] == sorted(spent_ms[1:], reverse=True)
    assert spent_ms[0] > sum(spent_ms[1:]) > 0.5 * spent_ms[0]
    assert done.returncode == 0
