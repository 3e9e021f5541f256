"""Submission trees: which runs make one, what it holds, and what the official tools say of it."""

import errno
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT, dump, load_both, load_recipe
from logs.__main__ import main
from logs.judge.official import judge_package, judge_repository
from logs.judge.system import required_fields
from tests.dry_loop import ORG, dry_run
from tests.logs import samples
from tests.logs.judge.test_evidence import Edit, edited, summary
from tests.logs.test_refusals import FIELDS
from tests.programs import Said

BEYOND = ["batch.global_size=86016", "batch.bn_span=42", "mlperf.reference=own"]

in_checkout = pytest.mark.skipif(
    subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode != 0,
    reason="the code snapshot needs a git checkout",
)


def outcomes(text: str) -> dict[str, str]:
    return {tool.strip(): result for result, tool in re.findall(r"^(PASS|FAIL|----)  (.{1,18})", text, re.MULTILINE)}


@in_checkout
@pytest.mark.ranks
def test_five_open_runs_make_a_tree_that_every_official_tool_accepts(tmp_path: Path, said: Said) -> None:
    runs = _five(tmp_path)
    _configured("cluster.paths.data=/x")(tmp_path / "run3")  # Runs may differ in seed and paths.
    _give_git(runs, [{"diff_sha256": "a", "diff": "+1\n"}] * 5)
    out = said(main, "package", *runs, "--org", "Testers", "--out", tmp_path / "out", *FIELDS).out
    assert "and uncommitted.diff with the changes since" in out
    assert [path.read_text() for path in (tmp_path / "out").rglob("uncommitted.diff")] == ["+1\n"]
    assert outcomes(out) == {
        "seeds": "PASS", "code": "PASS", "system description": "PASS", "RCP": "----", "package": "PASS",
        "result summary": "PASS", "repository": "PASS", "submitter": "----",
    }  # fmt: skip
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]
    assert "the logs name Anyone; set submission.org" in out
    assert "score 1.36667 minutes" in out  # 82 s
    assert "\nNo score of MLPerf® v4.0 Training Open ResNet-50 v1.5, which trains on ImageNet. Result not " in out
    assert "\nResNet-50 left MLPerf® Training after v4.0: by the rules of 9 December 2025 it is deprecated, " in out
    tree = tmp_path / "out" / "Testers"
    assert sorted(path.name for path in (tree / "results" / "laptop" / "resnet").iterdir()) == [
        f"result_{number}.txt" for number in range(5)
    ]
    assert (tree / "benchmarks/resnet/implementations/laptop/logs/judge/compliance.py").is_file()
    description = json.loads((tree / "systems" / "laptop.json").read_text())
    assert list(description) == required_fields()
    assert (len(description), description["submitter"], description["framework"]) == (33, "Testers", "MXNet 1.9.1")
    told = said(main, "package", *runs, "--org", "Testers", "--out", tmp_path / "out", *FIELDS, status=2).err
    assert "exists already" in told


@in_checkout
@pytest.mark.ranks
def test_five_full_size_closed_runs_pass_every_official_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Evaluations after epochs 2, 6, ... 54, 58: the reference needs 56 epochs (deviation 0.45), these runs 56.67.
    folders = dry_runs(tmp_path, "mlperf-b32768", range(5), last_epochs=(54, 54, 58, 58, 58))
    assert package(tmp_path, folders) == 0
    out = capsys.readouterr().out
    assert set(outcomes(out).values()) == {"PASS"}
    assert {"seeds", "code", "system description", "RCP", "package", "result summary", "repository"} == set(
        outcomes(out)
    )
    assert "RCP found" in out
    assert "\nUnverified MLPerf® v4.0 Training Closed ResNet-50 v1.5. Result not verified by MLCommons Assoc" in out
    text = "\n".join(path.read_text() for path in (tmp_path / "out").rglob("result_*.txt"))
    assert len(re.findall(r'"key": "epoch_start"', text)) == 54 + 54 + 58 + 58 + 58
    assert main(["check", folders[0], "--ruleset", "4.0.0"]) == 0


@in_checkout
@pytest.mark.ranks
def test_a_batch_beyond_the_references_and_code_that_is_not_recorded_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = dry_runs(tmp_path, "mlperf-b67840", range(5), last_epochs=(11, 11, 7, 11, 11), overrides=BEYOND)
    _give_git(folders, [{"diff_sha256": "a", "diff": "+1\n"}, *[{}] * 4])
    assert package(tmp_path, folders) == 1
    out = capsys.readouterr().out
    assert {tool for tool, result in outcomes(out).items() if result == "FAIL"} == {"RCP", "package", "code"}
    assert "Missing RCP, please submit RCP with BS = 86016" in out
    assert "the runs had uncommitted changes that differ, or" in out
    assert "not written, because a check failed" in out
    assert not (tmp_path / "out").exists()


def dry_runs(
    tmp_path: Path, name: str, seeds: Iterable[int], last_epochs: Sequence[int], overrides: Sequence[str] = ()
) -> list[str]:
    folders = []
    for number, (seed, last) in enumerate(zip(seeds, last_epochs, strict=True)):
        recipe = load_recipe(name, [f"run.seed={seed}", *overrides])
        evaluations = (last - recipe.run.eval_first_epoch) // recipe.run.eval_every_epochs + 1
        tops = [0.7] * (evaluations - 1) + [0.7592]
        folders.append(str(dry_run(tmp_path / f"run{number}", recipe, tops)))
    return folders


def package(tmp_path: Path, folders: Sequence[str], *more: str) -> int:
    gpus = ["accelerator_model_name=made up", *(f"accelerator_{name}=" for name in (
        "host_interconnect", "frequency", "on-chip_memories", "memory_configuration", "memory_capacity",
        "interconnect", "interconnect_topology",
    ))]  # fmt: skip
    fields = [*FIELDS, *(word for field in gpus for word in ("--field", field))]
    return main(["package", *folders, "--org", ORG, "--out", str(tmp_path / "out"), *fields, *more])


def _five(tmp_path: Path, **run: Any) -> list[str]:
    return [str(samples.run_folder(tmp_path / f"run{seed}", seed, **{"best": 0.98, **run})) for seed in range(5)]


def _configured(*overrides: str) -> Edit:
    """Return a function that gives the run of seed 3 other settings."""

    def edit(folder: Path) -> None:
        settings = load_both("digits", "laptop", ["run.seed=3", "cluster.engine.name=mxnet", *overrides])
        (folder / "config.yaml").write_text(dump(*settings))

    return edit


@pytest.mark.medium
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_configured("run.epochs=11"), "run3: differs from .*run0 in run; give runs of one"),
        (_configured("cluster.watchdog_s=77"), "run3: differs from .*run0 in cluster; give runs of one"),
        (summary(is_rehearsal=True), "run3: is a rehearsal, whose accuracies are invented"),
        (summary(status="aborted", failure="it broke"), r"status is aborted \(it broke\), allowed: success"),
        (edited("result_0.txt", '"value": 0.98', '"value": 0.99'), "accuracy is 0.99 in|accuracy is 0.98 in .*0.99"),
        (edited("environment.json", "1.9.1", "2"), "run3: differs from .*run0 in packages; give runs of one"),
        (lambda run: shutil.copyfile(run.parent / "run1/result_0.txt", run / "result_0.txt"),
         "run3: has the same log as .*run1; give five different runs"),
    ],
)  # fmt: skip
def test_a_run_that_is_no_result_of_the_submission_is_refused(
    tmp_path: Path, said: Said, edit: Edit, words: str
) -> None:
    runs = _five(tmp_path)
    edit(tmp_path / "run3")
    error = said(main, "package", *runs, "--org", "T", "--out", tmp_path / "out", *FIELDS, status=2).err
    assert re.search(f"run3.*{words}|{words}", error), error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"overrides": ("run.target_top1=null",)}, "config.yaml has no run.target_top1, so no run can reach it"),
        ({"overrides": ("data.source=synthetic",)}, "run0: data.source is synthetic, so the images are generated"),
    ],
)
def test_five_runs_that_are_no_results_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: dict[str, Any], words: str
) -> None:
    assert main(["package", *_five(tmp_path, **run), "--org", "T", "--out", str(tmp_path / "out"), *FIELDS]) == 2
    assert words in capsys.readouterr().err


@in_checkout
@pytest.mark.ranks
def test_a_command_that_is_killed_leaves_no_tree_of_the_submitters_name(tmp_path: Path) -> None:
    runs, out = _five(tmp_path), tmp_path / "out"
    _give_git(runs, [{}] * 5)
    words = ["package", *runs, "--org", "T", "--out", str(out), *FIELDS]
    with subprocess.Popen([sys.executable, "-m", "logs", *words], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not any(out.glob("*/T")):
            time.sleep(0.005)
        process.kill()
    assert [path.name for path in out.iterdir()] != ["T"]
    assert main(words) == 0
    assert [path.name for path in out.iterdir()] == ["T"]


@pytest.mark.ranks
def test_a_tree_that_cannot_be_finished_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    copied: list[str] = []

    def copy(source: Path, destination: Path) -> None:
        if len(copied) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        copied.append(str(destination))
        Path(destination).write_bytes(Path(source).read_bytes())

    runs = _five(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    monkeypatch.setattr(shutil, "copyfile", copy)
    told = said(main, "package", *runs, "--org", "T", "--out", tmp_path / "out" / "deep", *FIELDS, status=2).err
    assert "the disk is full" in told
    assert len(copied) == 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]


@in_checkout
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([{"commit": "0" * 40}, *[{}] * 4], "the runs recorded no common commit; the tree contains no code"),
        ([{"commit": "0" * 40}] * 5, f"git archive {'0' * 40} failed ("),
    ],
)  # fmt: skip
def test_runs_of_one_seed_and_without_a_common_state_of_the_code_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], states: list[dict[str, Any]], words: str
) -> None:
    runs = [str(samples.run_folder(tmp_path / f"run{n}", max(n, 1), best=0.98, epoch_s=9 + n)) for n in range(5)]
    _give_git(runs, states)
    status = main(["package", *runs, "--org", "T", "--out", str(tmp_path / "out"), *FIELDS])
    out = capsys.readouterr().out
    assert (status, outcomes(out)["code"], outcomes(out)["seeds"]) == (1, "FAIL", "FAIL")
    assert words in out
    assert "1, 1, 2, 3, 4: each run needs one seed of its own" in out
    assert not (tmp_path / "out").exists()


def _give_git(runs: Iterable[str], states: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Change what each run recorded of its checkout; return what it was."""
    before = []
    for run, state in zip(runs, states, strict=True):
        path = Path(run) / "environment.json"
        environment = json.loads(path.read_text())
        before.append(dict(environment["git"]))
        environment["git"] |= state
        path.write_text(json.dumps(environment))
    return before


@pytest.mark.medium
def test_a_file_that_a_git_host_refuses_fails_the_repository_check(tmp_path: Path) -> None:
    (tmp_path / "Testers" / "code").mkdir(parents=True)
    assert judge_repository(tmp_path / "Testers").passed
    (tmp_path / "Testers" / "code" / ".hidden").touch()
    finding = judge_repository(tmp_path / "Testers")
    assert not finding.passed
    assert finding.words.count("Files with git-unfriendly name: code/.hidden") == 1


@pytest.mark.ranks
def test_a_tree_without_results_fails_and_a_tool_that_crashes_is_told_by_its_last_word(tmp_path: Path) -> None:
    tree = tmp_path / "T"
    (tree / "systems").mkdir(parents=True)
    (tree / "results" / "box" / "resnet").mkdir(parents=True)
    (tree / "systems" / "box.json").write_text("{}")
    found = {each.tool: each for each in judge_package(tree, system="box", division="closed")}
    assert [each.passed for each in found.values()] == [False, False, False, False, True]
    assert "Missing field submitter" in found["system description"].words[0]
    assert found["RCP"].words == ("KeyError: None",)
    assert found["result summary"].words[0].startswith("NameError: ")
