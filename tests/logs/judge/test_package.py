import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.load import ROOT, load_recipe
from logs.__main__ import main
from logs.judge.system import required_fields
from tests.dry_loop import ORG, dry_run
from tests.logs import samples

UNKNOWN = (
    "host_processor_core_count", "host_processor_frequency", "host_processor_caches",
    "host_processor_interconnect", "host_storage_type", "host_storage_capacity", "host_networking",
    "host_networking_topology", "host_memory_configuration", "cooling",
)  # fmt: skip
FIELDS = ["--field", "host_processors_per_node=1", *(word for name in UNKNOWN for word in ("--field", f"{name}="))]
BEYOND = ["batch.global_size=86016", "batch.bn_span=42", "mlperf.reference=own"]

in_checkout = pytest.mark.skipif(
    subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode != 0,
    reason="the code snapshot needs a git checkout",
)


def outcomes(text: str) -> dict[str, str]:
    return {tool.strip(): result for result, tool in re.findall(r"^(PASS|FAIL|----)  (.{1,18})", text, re.MULTILINE)}


@in_checkout
@pytest.mark.ranks
def test_five_open_runs_make_a_tree_that_every_official_tool_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(samples.run_folder(tmp_path / f"run{seed}", seed, best=0.98)) for seed in range(5)]
    assert main(["package", *runs, "--org", "Testers", "--out", str(tmp_path / "out"), *FIELDS]) == 0
    out = capsys.readouterr().out
    assert outcomes(out) == {
        "seeds": "PASS", "code": "PASS", "system description": "PASS", "RCP": "----", "package": "PASS",
        "result summary": "PASS", "repository": "PASS", "submitter": "----",
    }  # fmt: skip
    assert "without .ci/checks, " in out
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]
    assert "the logs name Anyone; set submission.org" in out
    assert "score 1.36667 minutes" in out  # 82 s
    tree = tmp_path / "out" / "Testers"
    assert sorted(path.name for path in (tree / "results" / "laptop" / "resnet").iterdir()) == [
        f"result_{number}.txt" for number in range(5)
    ]
    assert (tree / "benchmarks/resnet/implementations/laptop/logs/judge/compliance.py").is_file()
    description = json.loads((tree / "systems" / "laptop.json").read_text())
    assert list(description) == required_fields("4.0.0")
    assert (len(description), description["submitter"], description["framework"]) == (33, "Testers", "MXNet 1.9.1")
    assert main(["package", *runs, "--org", "Testers", "--out", str(tmp_path / "out"), *FIELDS]) == 2
    assert "exists already" in capsys.readouterr().err


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
    text = "\n".join(path.read_text() for path in (tmp_path / "out").rglob("result_*.txt"))
    assert len(re.findall(r'"key": "epoch_start"', text)) == 54 + 54 + 58 + 58 + 58
    assert main(["check", folders[0], "--ruleset", "4.0.0"]) == 0


@in_checkout
@pytest.mark.ranks
def test_closed_runs_of_one_seed_and_without_reference_fail_and_each_tool_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = dry_runs(tmp_path, "mlperf-b67840", [1, 1, 2, 3, 4], last_epochs=[87] * 5, overrides=BEYOND)
    assert package(tmp_path, folders) == 1
    out = capsys.readouterr().out
    assert {tool for tool, result in outcomes(out).items() if result == "FAIL"} == {"seeds", "RCP", "package"}
    assert "1, 1, 2, 3, 4: each run needs one seed of its own" in out
    assert "Missing RCP, please submit RCP with BS = 86016" in out
    assert "Seed checker failed" in out
    assert "not written, because a check failed" in out
    assert not (tmp_path / "out").exists()


@in_checkout
@pytest.mark.ranks
def test_a_batch_beyond_the_references_passes_with_ten_other_own_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs = (83, 87, 87, 87, 87, 87, 87, 91, 87, 87, 87, 87, 83, 87, 87)
    folders = dry_runs(tmp_path, "mlperf-b67840", range(15), last_epochs=epochs, overrides=BEYOND)
    own = tmp_path / "rcp.json"
    assert main(["package", *folders[:10], "--make-rcp", str(own)]) == 0
    assert package(tmp_path, folders[10:], "--custom-rcp", str(own)) == 0
    assert set(outcomes(capsys.readouterr().out).values()) == {"PASS"}


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run0", "--org", "T"], "package: got 1 different runs, allowed: 5"),
        (["run0"] * 5 + ["--org", "T"], "package: got 1 different runs, allowed: 5"),
        (["run0", "run1", "run2", "run3", "run4"], "--org: got nothing"),
        (["run0", "run1", "run2", "run3", "run4", "--org", "../T"], "--org: got '../T'"),
        (["run0", "run1", "run2", "run3", "run4", "--org", "T"], "11 of 33 fields are not recorded by a run: host_pro"),
        (
            ["run0", "run1", "run2", "run3", "run4", "--org", "T", "--field", "colling=air"],
            "got field 'colling'.*cooling",
        ),
        (["run0", "run1", "run2", "run3", "other", "--org", "T"], "other: differs from run0 in data; give runs of one"),
        (
            ["run0", "run1", "run2", "run3", "run4", "--org", "T", *FIELDS, "--field", "host_processors_per_node="],
            "host_processors_per_node: got '', allowed: a whole number",
        ),
        (
            [*(f"made-up{seed}" for seed in range(5)), "--org", "T"],
            "made-up0: data.source is synthetic: the images are generated",
        ),
        (["run0", "run1", "run2", "run3", "none", "--org", "T"], "none/result_0.txt: no such log"),
        (["run0", "run1", "--make-rcp", "x"], "reference runs: got 2, allowed: 10 or more"),
    ],
)
def test_runs_that_cannot_be_packed_give_one_line_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in set(arguments):  # those that are folders
        if name.startswith("run"):
            samples.run_folder(Path(name), int(name[-1]), best=0.98)
        elif name.startswith("made-up"):
            samples.run_folder(Path(name), int(name[-1]), overrides=["data.source=synthetic"])
        elif name == "other":
            samples.run_folder(Path(name), 9, overrides=["data.flip=true"])
    assert main(["package", *arguments, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error), error
    assert error.count("\n") == 1
    assert not Path("out").exists()
