"""How an examination ends when its ranks are stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.load import load_cluster
from launch.doctor import examination
from launch.doctor.__main__ import main
from launch.setup.layout import Kind
from launch.start.local import Outcome


@pytest.mark.parametrize("outcome", [Outcome(143, interrupted_by=15), Outcome(75, stopped_by=15)])
def test_ranks_that_a_signal_stops_are_not_judged(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "run_under", lambda *_: outcome)
    assert main(["doctor", "--set", f"cluster.paths.runs={tmp_path}"]) == 128 + signal.SIGTERM
    assert "OK" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "cluster", "level", "words"),
    [
        (None, "laptop", "WARN", "was not made by set-up"),
        (Kind(("mxnet",), "cpu"), "dgx-a100", "FAIL", "the environment is for a CPU"),
        (Kind(("torch",), "cpu"), "laptop", "FAIL", "the environment is for PyTorch cpu, engine.name: mxnet"),
        (Kind(("mxnet",), "cpu"), "laptop", "WARN", "not done, or changed since: "),
    ],
)
def test_an_environment_that_does_not_fit_is_told_with_its_remedy(
    kind: Kind | None, cluster: str, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(kind=kind, has_mpi=False, is_done=lambda *_: False)
    monkeypatch.setattr(examination, "State", lambda: state)
    result = examination._set_up(load_cluster(cluster, ["cluster.engine.name=mxnet"]))
    assert (result.level, result.topic) == (level, "set-up")
    assert words in result.words
    assert "./run.sh setup" in result.remedy
