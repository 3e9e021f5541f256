"""Without MXNet and Horovod, every module outside of their homes can be imported."""

import subprocess
import sys

import pytest

from configs.load import ROOT

_IMPORT_ALL = """
import importlib, pathlib, sys
sys.modules["mxnet"] = sys.modules["horovod"] = None  # as if they were not installed
for package in ("configs", "data", "launch", "logs", "train"):
    for path in sorted(pathlib.Path(package).rglob("*.py")):
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        if path.stem != "__main__" and "programs" not in path.parts and "torch" not in name:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name in ("mxnet", "horovod"):  # and not a tracker that nobody has installed
                    print(name)
"""


@pytest.mark.ranks
def test_only_the_homes_of_mxnet_and_horovod_need_them() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, check=True)
    homes = (
        "launch.start.horovodrun",
        "train.comm.mxnet_sums",
        "train.engine.mxnet.",
    )
    assert [name for name in done.stdout.split() if not name.startswith(homes)] == []
    assert "train.engine.mxnet.network" in done.stdout
