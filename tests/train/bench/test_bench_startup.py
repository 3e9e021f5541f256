"""Both alternatives start real jobs, and the phases of their ledgers lie within the whole time."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from configs.load import ROOT, load_both
from train.bench.bench_startup import _ours, _place, _textbook
from train.bench.launching import pack_dataset


@pytest.mark.slow
@pytest.mark.ranks
def test_both_orders_start_a_rank_and_their_phases_lie_within_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "configs" / "recipes" / "imagenet-smoke.yaml").read_text(encoding="utf-8")
    recipe = tmp_path / "small.yaml"
    text = text.replace("name: resnet50", "name: resnet8").replace("image_size: 224", "image_size: 32")
    recipe.write_text(text, encoding="utf-8")
    monkeypatch.setattr("train.bench.bench_startup._RECIPE", str(recipe))
    small = argparse.Namespace(image_size=32, batch_size=1, ranks=1, cluster="laptop", overrides=[])
    _, cluster = load_both(str(recipe), "laptop", _place(small))
    ours = _ours(small, cluster, _place(small), tmp_path / "run")
    textbook = _textbook(small, 1, "dali", pack_dataset(*load_both(str(recipe), "laptop")), tmp_path / "ledger.json")
    for figures in (ours, textbook):
        assert 0 < figures["rank_to_run_start_s"] < figures["command_to_run_start_s"]
        phases = [value for name, value in figures.items() if name.endswith("_s") and "_to_" not in name]
        assert max(phases) < figures["rank_to_run_start_s"]
    assert {"import of MXNet_s", "warm-up_s"} <= ours.keys()
    assert {"imports_s", "warm-up_s"} <= textbook.keys()
