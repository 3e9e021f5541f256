"""Which files a package holds and leaves, and what the official tools are asked; no tool runs here."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from configs.errors import UserError
from configs.load import load_both, load_cluster
from logs.judge import package as module
from logs.judge.official import ToolFinding
from logs.judge.package import Packaged, _seeds, _submitted, _submitters, package
from logs.judge.system import describe, read_environment
from tests.logs import samples

CODE = ToolFinding("code", passed=True, words=("a commit",))


def _pack(monkeypatch: pytest.MonkeyPatch, folder: Path, out: Path, *verdicts: bool | None, **more: Any) -> Packaged:
    """Package five runs, with the verdicts of the official tools, the description and the code given."""
    runs = [samples.run_folder(folder / f"run{seed}", seed, best=0.98) for seed in range(5)]
    findings = [ToolFinding("tool", verdict, ()) for verdict in verdicts]
    asked = more.pop("asked", {})

    def judge(tree: Path, **given: Any) -> list[ToolFinding]:
        asked.update(given, tree=tree)
        return findings

    def described(environment: Mapping[str, Any], cluster: Any, fields: Mapping[str, str], **given: str) -> Any:
        asked["described"] = (environment["cpu"], cluster.submission.platform, fields, given)
        return {"system_name": "A  box/2"}

    monkeypatch.setattr(module, "judge_package", judge)
    monkeypatch.setattr(module, "describe", described)
    monkeypatch.setattr(module, "_snapshot", lambda *_: CODE)
    return package(runs, "Testers", out, **{"fields": {"cooling": "air"}, **more})


def test_a_tree_has_the_logs_in_the_order_of_the_runs_and_the_tools_are_told_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    out = tmp_path / "new" / "out"
    packaged = _pack(monkeypatch, tmp_path, out, True, None, asked=asked, custom_rcp=Path("own.json"))
    tree = out / "Testers"
    assert (packaged.passed, packaged.folder) == (True, tree)
    assert [each.tool for each in packaged.findings] == ["submitter", "seeds", "code", "tool", "tool"]
    assert asked == {
        "tree": tree, "system": "A-box-2", "division": "open", "ruleset": "4.0.0", "custom_rcp": Path("own.json"),
        "described": (
            "A CPU", "laptop", {"cooling": "air"}, {"org": "Testers", "division": "open", "ruleset": "4.0.0"},
        ),
    }  # fmt: skip
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    logs = [f"results/A-box-2/resnet/result_{number}.txt" for number in range(5)]
    assert files == [*logs, "systems/A-box-2.json"]
    for number, name in enumerate(logs):
        assert (tree / name).read_bytes() == (tmp_path / f"run{number}" / "result_0.txt").read_bytes()
    assert json.loads((tree / "systems" / "A-box-2.json").read_text()) == {"system_name": "A  box/2"}


@pytest.mark.parametrize("made", ["", "out", "out/deep"])
def test_a_tree_that_fails_goes_with_the_folders_that_were_made_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    (tmp_path / made / "kept").touch()
    packaged = _pack(monkeypatch, tmp_path, tmp_path / "out" / "deep", True, False)
    assert not packaged.passed
    assert not packaged.folder.exists()
    assert (tmp_path / made / "kept").is_file()
    assert (tmp_path / "out").exists() == made.startswith("out")
    assert (tmp_path / "out" / "deep").exists() == (made == "out/deep")


def test_ctrl_c_leaves_no_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _pack(monkeypatch, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tree_that_exists_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out" / "Testers").mkdir(parents=True)
    with pytest.raises(UserError, match=r"out/Testers: exists already; give another --out, or remove this folder"):
        _pack(monkeypatch, tmp_path, tmp_path / "out")
    assert (tmp_path / "out" / "Testers").is_dir()


@pytest.mark.parametrize("org", ["", ".a", "-a", "a b", "a/b", "ä"])
def test_a_submitter_is_the_name_of_a_folder(tmp_path: Path, org: str) -> None:
    with pytest.raises(UserError, match=r"--org: got .*, allowed: letters, digits, dots and dashes"):
        package([], org, tmp_path, fields={})


def _runs(**values: Any) -> Any:
    """Return runs whose records have one of the values each."""
    ((name, column),) = values.items()
    return cast(Any, [SimpleNamespace(record=SimpleNamespace(**{name: value})) for value in column])


@pytest.mark.parametrize(
    ("seeds", "passed", "words"),
    [
        ([(1,), (2,)], True, "1, 2"),
        ([(1,), (1,)], False, "1, 1"),
        ([(1,), ()], False, "1, none"),
        ([(1,), (2, 3)], False, "1, 2/3"),
        ([(1, 2), ()], False, "1/2, none"),
    ],
)
def test_each_run_has_one_seed_of_its_own(seeds: list[tuple[int, ...]], passed: bool, words: str) -> None:
    remedy = "" if passed else ": each run needs one seed of its own; repeat runs with --set run.seed=N"
    assert _seeds(_runs(seeds=seeds)) == ToolFinding("seeds", passed, (words + remedy,))


def test_submitters_of_the_logs_are_told_if_they_are_others_than_that_of_the_tree() -> None:
    assert _submitters(_runs(submitter=["Me", "Me"]), "Me") == []
    (finding,) = _submitters(_runs(submitter=["You", "Me", None, "He"]), "Me")
    words = "the logs name He, None, You; set submission.org in the cluster file and run again"
    assert finding == ToolFinding("submitter", None, (words,))


@pytest.mark.parametrize(
    ("key", "odd", "sound"),
    [
        ("packages", [1], {}), ("git", "x", {"commit": "0"}), ("gpus", {"a": 1}, [{"name": "A"}]),
        *((key, "2", 2) for key in ("memory_bytes", "cores", "cpu_sockets", "cpu_cores")),
    ],
)  # fmt: skip
def test_an_environment_holds_values_of_the_kinds_that_runs_record(
    tmp_path: Path, key: str, odd: object, sound: object
) -> None:
    path = tmp_path / "environment.json"
    for value in (sound, None):
        path.write_text(json.dumps({key: value}), encoding="utf-8")
        assert read_environment(tmp_path) == {key: value}
    path.write_text(json.dumps({key: odd}), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_environment(tmp_path)
    assert str(caught.value) == f"{path}: {key} is damaged; give the folder of a run of this program"


def test_what_is_given_replaces_what_is_known_and_what_nobody_knows_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["submitter", "division", "number_of_nodes", "sw_notes", "other_software_stack", "framework"]
    monkeypatch.setattr("logs.judge.system.required_fields", lambda ruleset: required if ruleset == "3.0.0" else [])
    cluster, told = load_cluster("laptop"), {"org": "Me", "division": "closed", "ruleset": "3.0.0"}
    with pytest.raises(UserError) as caught:
        describe({}, cluster, {}, **told)
    assert str(caught.value).startswith(
        "system description: 2 of 6 fields are not recorded by a run: other_software_stack, framework; give each with"
    )
    given = {"framework": "None", "other_software_stack": "", "number_of_nodes": "12"}
    known = {"submitter": "Me", "division": "closed", "sw_notes": ""}
    assert describe({}, cluster, given, **told) == {**known, **given}
    assert describe({}, cluster, {**given, "submitter": "You"}, **told)["submitter"] == "You"
    for number in ("", "1.5", "-1", "two"):
        with pytest.raises(UserError, match=rf"number_of_nodes: got '{number}', allowed: a whole number; give --field"):
            describe({}, cluster, {**given, "number_of_nodes": number}, **told)


def test_runs_of_one_submission_may_lie_on_other_disks_and_on_no_other_cluster(tmp_path: Path) -> None:
    def submitted(*sets: str) -> dict[str, Any]:
        recipe, cluster = load_both("digits", "laptop", [f"cluster.{each}" for each in sets])
        return _submitted(cast(Any, SimpleNamespace(recipe=recipe, cluster=cluster)))

    first = submitted()
    assert submitted(f"paths.data={tmp_path}", f"paths.runs={tmp_path}") == first
    assert submitted("watchdog_s=77") != first
