"""How an examination ends when its ranks are stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launch.doctor import examination
from launch.doctor.__main__ import main
from launch.start.local import Outcome


@pytest.mark.parametrize("outcome", [Outcome(143, interrupted_by=15), Outcome(75, stopped_by=15)])
def test_ranks_that_a_signal_stops_are_not_judged(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "run_under", lambda *_: outcome)
    assert main(["doctor", "--set", f"cluster.paths.runs={tmp_path}"]) == 128 + signal.SIGTERM
    assert "OK" not in capsys.readouterr().out
