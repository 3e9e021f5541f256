"""The command line of ``./run.sh sweep``: where runs and pages are, and the example of its help."""

import textwrap
from pathlib import Path

import pytest
import yaml

from launch.study.__main__ import main
from tests.configs.studies import GRID, SMALL
from tests.programs import Said


def _study(folder: Path) -> str:
    """Write a study of a single cell, which no machine can run; return its file."""
    tree = {**GRID, **SMALL, "cluster": "laptop", "recipe": "digits", "ranks": [512], "times_ranks": {}}
    tree |= {"set": {"cluster.paths.runs": f"{folder}/ours", "schedule.warmup_epochs": 0}, "framework": {"ours": {}}}
    (folder / "study.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(folder / "study.yaml")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ([], "ours/grid/grid.html"),
        (["--runs", "{folder}/a"], "a/grid.html"),
        (["--runs", "{folder}/a", "--output", "{folder}/b"], "b/grid.html"),
        (["--output", "{folder}/b", "--dry-run"], None),
    ],
)
def test_the_page_is_with_the_runs_below_the_clusters_folder_unless_told_otherwise(
    words: list[str], page: str | None, tmp_path: Path, said: Said
) -> None:
    told = said(main, "sweep", _study(tmp_path), *(word.format(folder=tmp_path) for word in words)).out
    assert "not run: 1 cell: too large for this machine" in told
    assert list(tmp_path.glob("**/grid.html")) == ([tmp_path / page] if page else [])
    if page:
        assert f"./run.sh sweep {tmp_path}/study.yaml<" in (tmp_path / page).read_text(encoding="utf-8")


def test_an_output_that_is_a_file_is_refused_before_the_first_run(tmp_path: Path, said: Said) -> None:
    study = _study(tmp_path)
    told = said(main, "sweep", study, "--output", study, status=2)
    assert (told.out, told.err.count("\n"), study in told.err) == ("", 1, True)


def test_the_example_in_the_help_is_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    lines = capsys.readouterr().out.splitlines()
    example = [line for line in lines[lines.index("  name: rates") :] if line.startswith("  ")]
    (tmp_path / "rates.yaml").write_text(textwrap.dedent("\n".join(example)), encoding="utf-8")
    assert main(["sweep", str(tmp_path / "rates.yaml"), "--dry-run"]) == 0
    assert "6/6" in capsys.readouterr().out
