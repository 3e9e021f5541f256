"""The faster import of DALI gives the same DALI."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PIPELINE = """
from nvidia.dali import fn, pipeline
made = pipeline.Pipeline(batch_size=2, num_threads=1, device_id=None, seed=3)
with made:
    made.set_outputs(fn.random.uniform(range=[0.0, 1.0], shape=[4]), fn.constant(idata=[1, 2]))
made.build()
print([output.as_array().tolist() for output in made.run()])
print(sorted(name for name in dir(fn) if not name.startswith("_")))
"""


@pytest.mark.ranks
def test_dali_without_its_manual_computes_the_same() -> None:
    imported = "from train.rank.imports import dali_without_manual\nwith dali_without_manual(): import nvidia.dali.fn"
    after = "assert not nvidia.dali.fn.resize.__doc__"
    programs = f"import nvidia.dali.fn{_PIPELINE}", f"{imported}\n{after}{_PIPELINE}"
    running = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE, text=True) for each in programs]
    plain, quick = (each.communicate()[0] for each in running)
    assert [each.returncode for each in running] == [0, 0]
    assert quick == plain
