"""What a run exports is the trained network, for whoever loads it: the same top-1 in every format."""

import contextlib
import errno
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.numpy_helper import to_array
from safetensors.numpy import load_file

from configs.load import dump, load_both, load_cluster
from configs.plan import plan_run
from configs.registry import has_engine, installed_engine
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from logs.checkpoints import SavedState
from logs.folder import RunFolder
from tests.engines import each_engine, randomize
from tests.failing_reads import failing_reads
from tests.programs import Said, python, run_program
from tests.runs import FinishedRun
from tests.small_disk import small_disk
from train.dataset import images_of
from train.engine.init import initial_weights
from train.engine.protocol import open_engine
from train.evaluate import Score
from train.export.__main__ import main
from train.export.exported_run import ExportedRun
from train.export.formats import evaluate, on_cpu
from train.networks.arch import network_of
from train.rank.identity import Identity
from train.rehearse.rehearsed_run import rehearsed_job

pytestmark = pytest.mark.xdist_group("export")

OWN, FILES = {
    "mxnet": (["MXNet"], {"network-symbol.json", "network-0000.params"}),
    "torch": (["PyTorch state", "PyTorch program"], {"network.pt", "network.pt2"}),
}[installed_engine()]


@pytest.fixture(scope="module")
def run(two_epoch_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a run, since what is exported comes into its folder."""
    assert two_epoch_run.status == 0, two_epoch_run.errors
    return shutil.copytree(two_epoch_run.folder, tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def exported(run: Path) -> tuple[Path, str]:
    """Export a run by the command; return the folder, and what the command printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["export", str(run)]) == 0
    return run / "export", printed.getvalue()


@pytest.mark.ranks
def test_the_command_gives_the_runs_own_accuracy_in_every_format(run: Path, exported: tuple[Path, str]) -> None:
    folder, printed = exported
    top1 = json.loads((run / "summary.json").read_text(encoding="utf-8"))["top1"]
    assert printed.count(f"top-1 {top1:.4f}") == 3 + len(OWN)
    written = {"network.json", "network.onnx", "network.safetensors", "classify.py", *FILES}
    assert {path.name for path in folder.iterdir()} == written
    assert json.loads((folder / "network.json").read_text(encoding="utf-8"))["score"]["top1"] == top1
    graph, saved = onnx.load(folder / "network.onnx").graph, load_file(folder / "network.safetensors")
    assert saved.keys() == {each.name for each in graph.initializer}
    assert all(np.array_equal(saved[each.name], to_array(each)) for each in graph.initializer)


@pytest.mark.ranks
def test_the_program_beside_the_network_gives_the_accuracy_that_the_export_claims(
    exported: tuple[Path, str], tmp_path: Path
) -> None:
    alone = shutil.copytree(exported[0], tmp_path / "alone")
    split = open_source("digits", Settings()).eval
    files = [tmp_path / f"{number}.jpg" for number in range(len(split.labels))]
    for number, file in enumerate(files):
        file.write_bytes(split.jpeg(number))
    done = python("-I", "alone/classify.py", *files, cwd=tmp_path, check=True)
    found = [int(line.split(": ")[1].split()[0]) for line in done.stdout.splitlines()]
    claimed = json.loads((alone / "network.json").read_text(encoding="utf-8"))["score"]
    assert (claimed["total"], len(found)) == (599, 599)
    command = [sys.executable, "-I", "alone/classify.py"]
    reasons = {"nosuch.jpg": "No such file or directory", "alone/network.json": "no image that Pillow can read"}
    for words, told in reasons.items():
        refused = run_program(*command, words, cwd=tmp_path)
        assert (refused.returncode, refused.stderr) == (1, f"error: {words}: {told}\n")
    bare = python("-I", "-S", *command[2:], "x", cwd=tmp_path)
    assert (bare.returncode, bare.stderr.count("\n"), "pip install" in bare.stderr) == (1, 1, True)
    # docs/predict.md allows one image of 599: another kernel may round a sum otherwise.
    assert abs(sum(a == b for a, b in zip(found, split.labels, strict=True)) - claimed["correct"]) <= 1


@pytest.mark.ranks
def test_a_network_is_exported_from_a_cpu_in_the_order_of_images_that_other_programs_take() -> None:
    cluster = on_cpu(load_cluster("dgx-a100", ["cluster.engine.layout=NHWC"]))
    assert (cluster.device, cluster.engine.precision, cluster.engine.layout) == ("cpu", "float32", "NCHW")


def test_an_exported_network_of_several_labels_an_image_is_scored_by_its_mean_auc() -> None:
    made = "data={name: none, source: synthetic, train_samples: 32, eval_samples: 12, crop: {kind: none}}"
    labelled = "loss={kind: sigmoid, label_smoothing: 0}"
    small = ["model.image_size=8", "batch.global_size=4", "cluster.ranks_per_node=1", "run.target_top1=null"]
    recipe, cluster = load_both("digits", "laptop", [made, labelled, *small])
    identity = Identity(0, 1, 0, 1, host="here", launcher="none")
    engine = open_engine(cluster, identity)
    source = images_of(recipe, cluster, plan_run(recipe, 1), identity).open_evaluation(engine)
    right = iter([engine.to_host(batch.labels) for batch in source.batches()])
    score = evaluate(recipe, cluster, lambda _: np.asarray(next(right), np.float32))
    assert (score.value, score.row["total"]) == (1.0, 12)


def _begun(folder: Path, *overrides: str) -> Path:
    """Make the folder of a run with an empty checkpoint."""
    given = ["data.source=synthetic", f"cluster.paths.data={folder}", "model.image_size=8", *overrides]
    (folder / "config.yaml").write_text(dump(*load_both("digits", "laptop", given)), encoding="utf-8")
    RunFolder(folder).checkpoints.write(3, SavedState({}, {}), keep=1)
    return folder


@pytest.mark.parametrize(("name", "off", "status"), [("ONNX", -4e-4, 0), ("ONNX", 6e-4, 1), ("MXNet", -6e-4, 1)])
def test_a_format_that_judges_more_images_otherwise_than_rounding_may_is_a_failure(
    name: str, off: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(tmp_path)
    values = {"trained": 0.9, "MXNet": 0.9, "ONNX": 0.9}
    values[name] += off
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "network.json").write_text("of an earlier export", encoding="utf-8")
    # No format is off by that little in earnest, so the accuracies are given.
    monkeypatch.setattr("train.export.formats.export_network", lambda *_: values.items())
    monkeypatch.setattr(
        "train.export.formats.evaluate", lambda *words: Score("top-1", words[-1], {"top1": words[-1]}, "")
    )
    assert main(["export", str(tmp_path)]) == status
    assert json.loads((tmp_path / "export" / "network.json").read_text(encoding="utf-8"))["score"] == {"top1": 0.9}


def test_a_checkpoint_that_the_run_removes_is_replaced_by_its_next_one_and_what_a_kill_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(_begun(tmp_path))
    (tmp_path / "export" / ".partial-0123").mkdir(parents=True)
    exported: list[str] = []

    def export_network(_recipe: object, _cluster: object, checkpoint: Path, *_: object) -> list[tuple[str, int]]:
        if not exported:
            run.checkpoints.write(4, SavedState({}, {}), keep=1)
        exported.append(checkpoint.name)
        return [("trained", len(checkpoint.read_bytes()))]

    monkeypatch.setattr("train.export.formats.export_network", export_network)
    assert main(["export", str(tmp_path), "--no-evaluation"]) == 0
    assert exported == ["step-00000003.ckpt", "step-00000004.ckpt"]
    description = json.loads((tmp_path / "export" / "network.json").read_text(encoding="utf-8"))
    assert description["checkpoint"] == exported[-1]
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["network.json"]


@pytest.mark.medium
def test_where_the_data_set_has_gone_the_command_says_what_to_do_and_the_remedies_work(
    tmp_path: Path, shared_digits: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(tmp_path, "data.source=digits", "cluster.paths.stage=$OF_THE_JOB")
    monkeypatch.setattr("train.export.formats.export_network", lambda *_: {"trained": 0.9}.items())
    monkeypatch.setattr("train.export.formats.evaluate", lambda *_: Score("top-1", 0.9, {"top1": 0.9}, ""))
    told = said(main, "export", tmp_path, status=2).err
    assert told.startswith(
        f"error: {tmp_path}/digits: no such data set; run ./run.sh prepare digits {tmp_path}/digits;"
    )
    assert told.endswith("or give --data DIR if the data sets are elsewhere, --no-evaluation to export without them\n")
    assert not (tmp_path / "export").exists()
    for words, score, names in (
        (["--no-evaluation"], None, None),
        (["--data", str(shared_digits.parent)], {"top1": 0.9}, list("0123456789")),
    ):
        assert main(["export", str(tmp_path), *words]) == 0
        found = json.loads((tmp_path / "export" / "network.json").read_text(encoding="utf-8"))
        assert (found["score"], found["class_names"]) == (score, names)
    begun = (shared_digits / "manifest.json").read_text(encoding="utf-8")
    digest = json.loads(begun)["eval"]["rec_sha256"]
    for trained, warned in ((digest, ""), (digest[::-1], f"warning: {shared_digits}: not the evaluation images")):
        (tmp_path / "dataset.json").write_text(begun.replace(digest, trained), encoding="utf-8")
        told = said(main, "export", tmp_path, *words).err
        assert (told.count("\n"), told.startswith(warned)) == (bool(warned), True)


@pytest.mark.parametrize("name", ["mxnet", "torch"])
def test_a_run_of_an_engine_that_is_not_installed_is_exported_by_the_one_that_is(name: str, tmp_path: Path) -> None:
    # The communicator is that of the engine, which the configuration of a run names too.
    _begun(tmp_path, f"cluster.engine.name={name}", "cluster.communication.kind=shared_memory")
    assert ExportedRun.open(tmp_path).cluster.engine.name == (name if has_engine(name) else installed_engine())


@pytest.mark.medium
def test_what_cannot_be_exported_or_written_is_refused_in_one_line(tmp_path: Path, said: Said) -> None:
    empty, rehearsal, run, disk, odd = (tmp_path / name for name in ("empty", "rehearsal", "run", "disk", "odd"))
    for folder in (empty, rehearsal, run, disk, odd):
        folder.mkdir()
    (checkpoint := RunFolder(_begun(odd)).checkpoints.files()[0]).unlink()
    os.mkfifo(checkpoint)
    no_file = f"no complete checkpoint in it: checkpoints/{checkpoint.name}: cannot be read (it is not a file)"
    rehearsed = rehearsed_job(*load_both("digits", "a100-node"))
    (rehearsal / "config.yaml").write_text(dump(*rehearsed), encoding="utf-8")
    (_begun(run) / "export").touch()
    (tmp_path / "link").symlink_to("gone")
    (own := tmp_path / "own").mkdir()
    (program := own / "classify.py").write_text("mine")
    elsewhere = f"; export elsewhere: ./run.sh export {run} --dest DIR\n"
    with small_disk(disk, "ro"):
        for folder, words, told in (
            (empty, [], f"{empty}: no config.yaml in it; give the folder of a run\n"),
            (rehearsal, [], f"{rehearsal}: is a rehearsal, which trains no network; give the folder of a run\n"),
            (odd, [], f"{odd}: {no_file}; a run writes one when it ends\n"),
            (odd, ["--last"], f"{odd}: {no_file}; a run writes one when it ends\n"),
            (run, [], f"{run}/export: cannot be made: File exists{elsewhere}"),
            (run, ["--dest", str(tmp_path / "link")], f"{tmp_path}/link: cannot be made: File exists{elsewhere}"),
            (run, ["--dest", "f\udce9e"], rf"f\udce9e: cannot be made: its path is not UTF-8{elsewhere}"),
            (run, ["--dest", str(own)], f"--dest: {program} is there already, and of no export; give another folder\n"),
            (run, ["--dest", str(disk)], f"{disk}: cannot be made: Read-only file system{elsewhere}"),
        ):
            assert said(main, "export", folder, "--no-evaluation", *words, status=2).err == f"error: {told}"
    assert program.read_text() == "mine"


def test_a_damaged_best_checkpoint_is_refused_with_remedies_that_work(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.export.formats.export_network", lambda *_: {}.items())
    checkpoints = RunFolder(_begun(tmp_path)).checkpoints
    newest = checkpoints.files()[0]
    (best := newest.with_name("best-step-00000002.ckpt")).write_bytes(newest.read_bytes()[:-1])
    words = ["export", str(tmp_path), "--no-evaluation"]
    told = said(main, *words, status=2).err
    assert told.startswith(f"error: {best}: damaged")
    assert (told.count("\n"), "move it away" in told, "export RUN --last" in told) == (1, True, True)
    assert main([*words, "--last"]) == 0
    best.unlink()
    assert main(words) == 0
    (later := newest.with_name("step-00000099.ckpt")).write_bytes(newest.read_bytes()[:-1])
    told = said(main, *words).err
    assert (told.count(f"warning: {later}: damaged"), f"; {newest.name} is taken\n" in told) == (1, True)


@pytest.mark.slow
@each_engine
def test_the_network_of_torchvision_takes_an_export_by_its_names(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.torch_resnets import ResNet

    _begun(tmp_path, f"cluster.engine.name={name}", "model.name=resnet18", "model.image_size=32")
    model = RunFolder(tmp_path).settings[0].model
    table = network_of(model)
    given = randomize(SimpleNamespace(load_weights=len), table, initial_weights(table, model, seed=1))
    held = {f"statistics/{key}" if "_moving_" in key else f"weights/{key}": each for key, each in given.items()}
    held = {key: each[None] if key.startswith("statistics/") else each for key, each in held.items()}
    RunFolder(tmp_path).checkpoints.write(4, SavedState({}, held), keep=1)
    assert main(["export", str(tmp_path), "--names", "torchvision", "--no-evaluation"]) == 0
    images = np.random.default_rng(2).standard_normal((2, 3, 32, 32), np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "export/network.onnx"), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"data": images})
    tensors = {key: torch.from_numpy(each) for key, each in load_file(tmp_path / "export/network.safetensors").items()}
    for state in (tensors, torch.load(tmp_path / "export/network.pt")) if name == "torch" else (tensors,):
        module = ResNet("resnet18")
        shapes = {key: each.shape for key, each in module.state_dict().items()}
        assert {key: each.shape for key, each in state.items()} == shapes, "a count is no list of one"
        module.load_state_dict(state, strict=True)
        with torch.inference_mode():
            logits = module(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * expected.std())
    assert np.abs(expected[0] - expected[1]).max() > 0.01 * expected.std(), "a hundred times what is forgiven"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "resnet20"),
        (["model.name=resnet50", "model.residual={stem: deep}"], "resnet50 with other values of residual"),
        (["model.name=resnet18", "model.input_channels=4", "model.bn_epsilon=1e-4"], "input_channels, bn_epsilon"),
    ],
)
def test_torchvisions_names_are_refused_for_a_network_that_it_lacks(
    words: list[str], told: str, tmp_path: Path, said: Said
) -> None:
    _begun(tmp_path, *words)
    error = said(main, "export", tmp_path, "--names", "torchvision", status=2).err
    assert error.startswith("error: --names torchvision: ")
    assert told in error
    assert "allowed: resnet18, resnet34, resnet50" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "export").exists()


@pytest.mark.ranks
def test_on_a_disk_that_becomes_full_an_export_is_whole_or_the_old_one_stays(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, disk = tmp_path / "whole", tmp_path / "disk"
    disk.mkdir()
    assert main(["export", str(run), "--no-evaluation", "--dest", str(whole)]) == 0
    sizes = {path.name: path.stat().st_size for path in whole.iterdir()}
    statuses = []
    for kilobytes in (4, sum(sizes.values()) // 3000, sum(sizes.values()) // 1500, 9000):
        with small_disk(disk, f"size={kilobytes}k"):
            (disk / "network.json").write_text("old")
            capsys.readouterr()
            statuses.append(main(["export", str(run), "--no-evaluation", "--dest", str(disk)]))
            found = {path.name: path.stat().st_size for path in disk.iterdir()}
            told = capsys.readouterr().err
        if statuses[-1]:
            assert found == {"network.json": 3}
            words = r"(cannot be made: No space|\d\.\d MB free, \d\.\d MB needed for an export; free some space)"
            assert re.fullmatch(rf"error: {disk}: {words}.*\n", told)
        else:
            assert found == sizes
    assert statuses == [2, 2, 2, 0]


@pytest.mark.ranks
def test_where_a_file_cannot_be_written_or_read_the_reason_is_told_and_no_part_of_it_stays(
    run: Path, tmp_path: Path
) -> None:
    """The frameworks' own writers say nothing of the reason, or 28 lines."""
    command = f"ulimit -f 64; exec {sys.executable} -m train.export {run} --no-evaluation --dest {tmp_path}/new"
    done = run_program("bash", "-c", command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    words = r"cannot be written: File too large; free some space"
    assert re.match(rf"error: {tmp_path}/new: {words}", done.stderr)
    variables = failing_reads(tmp_path, "open", Path("/digits/eval.rec"), errno.EIO, once=False)
    done = python("-m", "train.export", run, "--dest", tmp_path / "new", env=variables)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert re.match(r"error: .*/eval\.rec: .*; or give --no-evaluation, ", done.stderr)
    assert list(tmp_path.iterdir()) == []
