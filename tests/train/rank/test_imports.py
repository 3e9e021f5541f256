"""A module is amended while it is imported; the faster import of DALI gives the same DALI."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from train.rank.imports import amended

_PIPELINE = """
from nvidia.dali import fn, pipeline
made = pipeline.Pipeline(batch_size=2, num_threads=1, device_id=None, seed=3)
with made:
    made.set_outputs(fn.random.uniform(range=[0.0, 1.0], shape=[4]), fn.constant(idata=[1, 2]))
made.build()
print([output.as_array().tolist() for output in made.run()])
print(sorted(name for name in dir(fn) if not name.startswith("_")))
"""


def test_only_the_named_module_is_amended_and_only_inside_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("named", "other", "later"):
        (tmp_path / f"{name}_module.py").write_text("value = 1\n", encoding="utf-8")
    finders = list(sys.meta_path)
    with amended(dict.fromkeys(("named_module", "later_module"), lambda module: module.__dict__.update(value=2))):
        assert [import_module(f"{name}_module").value for name in ("named", "other")] == [2, 1]
    assert import_module("later_module").value == 1
    assert sys.meta_path == finders


@pytest.mark.ranks
def test_dali_without_its_manual_computes_the_same() -> None:
    imported = "from train.rank.imports import dali_without_manual\nwith dali_without_manual(): import nvidia.dali.fn"
    after = "assert not nvidia.dali.fn.resize.__doc__"
    programs = f"import nvidia.dali.fn{_PIPELINE}", f"{imported}\n{after}{_PIPELINE}"
    running = [subprocess.Popen([sys.executable, "-c", each], stdout=subprocess.PIPE, text=True) for each in programs]
    plain, quick = (each.communicate()[0] for each in running)
    assert [each.returncode for each in running] == [0, 0]
    assert quick == plain
