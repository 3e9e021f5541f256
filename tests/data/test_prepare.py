"""Packing gives the right records, the same bytes with any number of workers, and a complete data set or none."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.load import ROOT
from data.__main__ import main
from data.manifest import load_manifest
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from data.verify import verify_dataset
from tests.data.sources.test_idx import idx_files
from tests.data.test_first_recipe import class_folders
from tests.failing_reads import failing_reads
from tests.programs import Terminal, python
from tests.small_disk import small_disk


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return IDX files, of whose images any number can be made in no time."""
    folder = tmp_path_factory.mktemp("small")
    idx_files(folder)
    return folder


def records(folder: Path, split: str) -> list[tuple[int, int, bytes]]:
    """Return (label, source number, JPEG) of all records, read by MXNet."""
    import mxnet as mx

    reader = mx.recordio.MXIndexedRecordIO(str(folder / f"{split}.idx"), str(folder / f"{split}.rec"), "r")
    pairs = [mx.recordio.unpack(reader.read_idx(key)) for key in reader.keys]
    return [(int(header.label), header.id, image) for header, image in pairs]


def left_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return the function that prepares; it returns the exit status and what is printed. The last --workers counts."""
    return lambda *words: (main(["prepare", "--workers", "1", *map(str, words)]), *capsys.readouterr())


@pytest.mark.slow  # by scikit-learn's import
def test_the_digits_are_all_there_with_every_third_for_evaluation(shared_digits: Path) -> None:
    manifest = load_manifest(shared_digits)
    from sklearn.datasets import load_digits

    digits = load_digits()
    assert (manifest.train.records, manifest.eval.records, len(manifest.class_names)) == (1198, 599, 10)
    assert manifest.source.description == "scikit-learn's digits, 32 px, JPEG quality 95, every third for evaluation"
    assert manifest.class_names == tuple("0123456789")
    settings = (Settings(), Settings(size=33), Settings(quality=94))
    assert len({open_source("digits", each).fingerprint for each in settings}) == 3
    assert open_source("digits", Settings()).fingerprint == manifest.source.fingerprint
    evaluation = records(shared_digits, "eval")
    assert [label for label, _, _ in evaluation] == digits.target[2::3].tolist()
    image = Image.open(io.BytesIO(evaluation[0][2]))
    assert (image.size, image.mode, image.format) == ((32, 32), "RGB", "JPEG")
    small = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX), float) * 16 / 255
    assert np.abs(small - digits.images[2]).mean() < 1
    train = records(shared_digits, "train")
    numbers = [number for _, number, _ in train]
    assert sorted(numbers) == list(range(1198))
    # In a random order, an image moves by a third of the set.
    assert np.abs(np.array(numbers) - np.arange(1198)).mean() == pytest.approx(1198 / 3, rel=0.1)
    kept = np.delete(digits.target, np.s_[2::3])
    assert [label for label, _, _ in train] == kept[numbers].tolist()


@pytest.mark.ranks
def test_the_bytes_do_not_depend_on_the_workers_but_on_the_seed(tmp_path: Path, small: Path) -> None:
    def pack(name: str, seed: int, workers: int) -> list[bytes]:
        source = open_source(str(small), Settings(train=120, seed=seed))
        prepare(source, tmp_path / name, seed=seed, workers=workers)
        files = ("train.rec", "train.idx", "eval.rec", "eval.idx", "manifest.json")
        return [(tmp_path / name / file).read_bytes() for file in files]

    one = pack("one", 1, 1)
    assert one == pack("two", 1, 2)
    assert one[0] != pack("other", 2, 1)[0]
    assert left_in(tmp_path) == ["one", "other", "two"]


@pytest.mark.medium
@pytest.mark.parametrize("layout", ["folders", "table", "in place"])
def test_bad_files_are_left_out_listed_and_counted_where_that_is_asked_for(
    tmp_path: Path, run: Run, layout: str
) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    names = [f"{part}/{name}/{number}.jpg" for part in ("train", "val") for name in "ab" for number in range(4)]
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), 16 * number).save(root / name)
    bad = ["train/a/0.jpg", "train/b/1.jpg", "train/b/3.jpg", "val/a/2.jpg"]
    for name in bad:
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: len(content) // 2])
    if layout == "table":
        for part in ("train", "val"):
            rows = "".join(f"{name},{name.split('/')[1]}\n" for name in names if name.startswith(part))
            (root / f"{part}.csv").write_text(f"file,labels\n{rows}", encoding="utf-8")
    words = ["--in-place"] if layout == "in place" else []
    status, told, error = run(root, out, *words)
    assert (status, left_in(tmp_path)) == (2, ["in"])
    assert "--skip-bad leaves" in error
    findings = told.splitlines()
    assert sorted(line.split(": cannot be decoded")[0] for line in findings) == [f"{root}/{name}" for name in bad]
    status, told, _ = run(root, out, "--skip-bad", *words)
    assert status == 0
    assert told.splitlines()[:5] == [*findings, f"{out}/left_out.txt: left out of 16 images: 4 bad files"]
    assert (out / "left_out.txt").read_text(encoding="utf-8").splitlines() == findings
    assert not list(verify_dataset(out))
    manifest = load_manifest(out)
    assert (manifest.train.class_counts, manifest.eval.class_counts) == ((3, 2), (3, 4))
    if words:
        return  # The images stay where they are.
    for part, split in (("train", "train"), ("val", "eval")):
        wanted = {(root / name).read_bytes() for name in names if name.startswith(part) and name not in bad}
        assert sound_bytes(out / f"{split}.rec", wanted) == len(wanted)
    assert "left out of 16 images: 4 bad files\n" in run(root, out)[1]
    (root / "train/b/0.jpg").write_bytes(b"")
    status, _, error = run(root, tmp_path / "other", "--skip-bad")
    assert (status, left_in(tmp_path)) == (2, ["in", "out"])
    assert "at most half of a class; more are bad of b (3 of 4)" in error


def sound_bytes(file: Path, images: set[bytes]) -> int:
    """Return how many of some JPEGs are in a file of records."""
    content = file.read_bytes()
    return sum(content.count(each) == 1 for each in images)


@pytest.mark.medium
def test_packing_again_changes_nothing_and_other_or_broken_data_is_refused(tmp_path: Path, run: Run) -> None:
    for name in ("train/n01/a.jpg", "train/n01/b.jpg", "train/n02/c.jpg", "val/n01/d.jpg", "val/n02/e.jpg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "in" / name)
    out = tmp_path / "out"
    assert run(tmp_path / "in", out)[0] == 0
    before = (out / "train.rec").stat()
    status, text, _ = run(tmp_path / "in", out)
    assert status == 0
    assert text.startswith(f"{out}: 3 training and 2 evaluation images of 2 classes, 0.0 MB, up to date\n")
    assert (out / "train.rec").stat() == before
    assert "training order of seed 1" in run(tmp_path / "in", out, "--seed", 2)[2]
    Image.new("RGB", (9, 9)).save(tmp_path / "in/train/n01/new.jpg")
    status, _, error = run(tmp_path / "in", out)
    assert status == 2
    assert f"{out} exists and holds another or an older data set" in error
    assert "move it away or name another folder" in error
    (tmp_path / "in/train/n01/new.jpg").write_bytes(b"")
    status, told, error = run(tmp_path / "in", tmp_path / "other", "--workers", 2)
    assert (status, told) == (2, f"{tmp_path}/in/train/n01/new.jpg: is empty\n")
    told = f"error: {tmp_path}/in: 1 problem; nothing was packed; --skip-bad leaves these files out"
    assert error.splitlines()[-1] == told
    assert left_in(tmp_path) == ["in", "out"]
    (out / "eval.idx").unlink()
    assert "is not a complete data set" in run(tmp_path / "in", out)[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digitz", "out"), "no such folder, and sources by name are digits and generated; did you mean 'digits'?"),
        (("digits",), "SOURCE and DEST are needed"),
        (("digits", "out", "--wokers", "2"), "'--wokers' is not expected here; did you mean '--workers'?"),
        (("digits", "out", "--workers", "none"), "--workers: got 'none', allowed: whole numbers 1 to 1024"),
        (("digits", "out", "--size", "8", "--verify", "x"), "--verify takes one folder"),
        (
            (str(ROOT / "configs"), "out"),
            "neither a folder of images for each class (in train and val, in their tars, or alone), nor ",
        ),
        (("digits", "out", "--size", "7"), "--size: got '7', allowed: whole numbers 8 to 1024"),
        (("--verify", "nowhere"), "nowhere/manifest.json: No such file or directory; ./run.sh prepare did not"),
    ],
)
def test_a_wrong_argument_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, error = run(*arguments)
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("error: ")
    assert message in error
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("place", ["folder/out", "out"])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, run: Run, place: str) -> None:
    file = tmp_path / "file"
    file.touch()
    error = f"error: {file / place}: cannot be made: {file} is a file; name another folder\n"
    assert run("generated", file / place) == (2, "", error)


def test_a_source_that_was_moved_is_the_same_data_set(tmp_path: Path, run: Run) -> None:
    source, out = tmp_path / "before", tmp_path / "not" / "there" / "out"
    source.mkdir()
    idx_files(source)
    status, told, _ = run(source, out, "--size", 9, "--seed", 0)
    assert (status, load_manifest(out).seed) == (0, 0)
    assert ", packed in " in told
    status, told, _ = run(source.rename(tmp_path / "after"), out, "--seed", 0, "--size", 9)
    assert (status, told.splitlines()[0].endswith("up to date")) == (0, True)


@pytest.mark.medium
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_terminal_shows_progress_up_to_the_end_and_a_file_stays_empty(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]
) -> None:
    monkeypatch.setattr("sys.stderr", errors := stream())
    out = str(tmp_path / "out")
    for words in ((str(small), out, "--train=17"), ("--verify", out)):
        assert main(["prepare", *words, "--workers=1"]) == 0
    for bar in ("packing train", "packing eval", "verifying train", "verifying eval"):
        assert (f"{bar}: 100%" in errors.getvalue()) == errors.isatty()
    assert bool(errors.getvalue()) == errors.isatty()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, "size=1m"):
        yield folder


@pytest.mark.ranks
def test_a_full_disk_is_one_line_and_leaves_nothing(tiny_disk: Path, small: Path, run: Run) -> None:
    status, _, error = run(small, tiny_disk / "out", "--train", 1000, "--size", 256, "--workers", 2)
    assert (status, error.count("\n")) == (2, 1)
    assert "the disk is full; nothing was left behind; free space" in error
    assert left_in(tiny_disk) == []


_GIVE_UP_S = 120
"""Other work on the machine may make everything ten times slower."""


def start_packing(source: Path, folder: Path) -> subprocess.Popen[str]:
    """Start packing that takes minutes, in a process group of its own, and return when it has written a megabyte."""
    words = [str(source), str(folder / "out"), "--train", "100000", "--size", "256", "--workers", "2"]
    command = [sys.executable, "-m", "data", "prepare", *words]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: any(rec.stat().st_size > 1e6 for rec in folder.glob(".out.partial-*/train.rec")))
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GIVE_UP_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true in {_GIVE_UP_S} s"
        time.sleep(0.02)


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


@pytest.mark.ranks
def test_ctrl_c_leaves_no_file_and_no_process_and_no_other_run_takes_its_folder_before(
    tmp_path: Path, small: Path, run: Run
) -> None:
    process = start_packing(small, tmp_path)
    assert run(small, tmp_path / "out")[0] == 0
    assert len(left_in(tmp_path)) == 2, "the partial folder of a process that lives stays"
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=_GIVE_UP_S)
    assert process.returncode == 130
    assert error.strip() == "stopped by Ctrl-C: nothing was left behind"
    assert left_in(tmp_path) == ["out"]
    wait_for(lambda: group_is_gone(process.pid))


@pytest.mark.ranks
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_or_a_terminal_that_ends_its_job_leaves_no_file_and_no_process(
    ending: signal.Signals, tmp_path: Path, small: Path
) -> None:
    process = start_packing(small, tmp_path)
    process.send_signal(ending)
    assert (process.communicate(timeout=_GIVE_UP_S)[1], process.returncode) == ("", 128 + ending)
    assert left_in(tmp_path) == []
    wait_for(lambda: group_is_gone(process.pid))


@pytest.mark.ranks
def test_a_killed_run_leaves_no_data_set_and_no_process_and_the_next_run_removes_the_partial_folder(
    tmp_path: Path, small: Path, run: Run
) -> None:
    process = start_packing(small, tmp_path)
    process.kill()
    process.communicate(timeout=_GIVE_UP_S)
    wait_for(lambda: group_is_gone(process.pid))
    assert [name.startswith(".out.partial-") for name in left_in(tmp_path)] == [True]
    assert run(small, tmp_path / "out")[0] == 0
    assert left_in(tmp_path) == ["out"]


def test_without_locks_a_data_set_is_packed_and_no_partial_folder_is_removed(
    tmp_path: Path, small: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as Lustre without flock

    (tmp_path / ".out.partial-0123").mkdir()
    monkeypatch.setattr("fcntl.flock", no_locks)
    assert run(small, tmp_path / "out")[0] == 0
    assert left_in(tmp_path) == [".out.partial-0123", "out"]


def test_only_the_partial_folders_of_the_same_data_set_are_removed(tmp_path: Path) -> None:
    others = [".a.out.b.partial-0123", ".out.c.partial-0123", ".out.partial-0123", "out.c"]
    for name in (".out.b.partial-0123", *others):
        (tmp_path / name).mkdir()
    prepare(open_source("generated", Settings(train=2, eval=1)), tmp_path / "out.b")
    assert left_in(tmp_path) == sorted([*others, "out.b"])


@pytest.mark.medium
def test_processes_that_pack_the_same_images_at_a_time_all_succeed(tmp_path: Path) -> None:
    """As the first runs on a machine do that are started together."""
    command = [sys.executable, "-I", "-m", "data", "prepare", "digits", str(tmp_path / "digits"), "--no-recipe"]
    packing = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1].decode() for process in packing]
    assert [process.returncode for process in packing] == [0, 0], errors
    assert [path.name for path in tmp_path.iterdir()] == ["digits"], "and no hidden folder is left"
    assert not list(verify_dataset(tmp_path / "digits"))


@pytest.mark.ranks  # by its processes
@pytest.mark.parametrize(("file", "number"), [("out/manifest.json", errno.ESTALE), ("in/class 00/0.png", errno.EACCES)])
def test_what_cannot_be_read_is_waited_for_and_then_named_but_neither_called_foreign_nor_bad(
    tmp_path: Path, file: str, number: int
) -> None:
    source, path = class_folders(tmp_path / "in", each=4), tmp_path / file
    if file.startswith("out"):
        prepare(open_source(str(source), Settings()), tmp_path / "out")

    def pack(*, once: bool) -> "subprocess.CompletedProcess[str]":
        variables = failing_reads(tmp_path, "open", path, number, once=once)
        words = [str(source), f"{tmp_path}/out", "--workers", "1", "--no-recipe", "--skip-bad"]
        return python("-m", "data", "prepare", *words, env=variables)

    lasting = pack(once=False)
    assert lasting.returncode == 2
    assert f"{path}: cannot be read: {os.strerror(number)}" in lasting.stdout + lasting.stderr
    assert "move it away" not in lasting.stderr
    if file.startswith("out"):
        return  # A manifest is read by configs.reading.read_bytes, which has tests of its own.
    moment = pack(once=True)
    assert moment.returncode == 0, moment.stderr
    assert (tmp_path / "has-failed").exists()
    packed = load_manifest(tmp_path / "out")
    assert packed.train.records + packed.eval.records == 8
