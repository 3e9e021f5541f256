"""What a report reads of a run folder, with and without the files that the log stands in for."""

from __future__ import annotations

from pathlib import Path

from logs.show.reported_run import gather_run
from tests.logs import samples


def test_the_settings_are_those_of_the_config_or_else_those_of_the_log(tmp_path: Path) -> None:
    run = samples.run_folder(tmp_path / "run", seed=3)
    config, log = run / "config.yaml", run / "result_0.txt"
    assert gather_run(run).settings["recipe.name"] == "digits"
    logged = gather_run(log).settings
    assert (logged["global_batch_size"], logged["seed"]) == (64, "3")
    config.write_text("recipe: [")
    (run / "startup.json").unlink()
    damaged = gather_run(run)
    assert damaged.settings == logged
    unreadable, missing = damaged.problems
    assert unreadable.startswith("config.yaml: not YAML: ")
    assert missing == "missing in the run folder: startup.json"
    config.unlink()
    foreign = gather_run(run)
    assert foreign.settings == logged
    assert foreign.problems == (), "another program's run has no such files"
