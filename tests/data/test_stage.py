"""A local copy has the bytes of the source, is made once, and is never partial."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import ROOT
from data.manifest import load_manifest
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from data.stage import dataset_bytes, stage
from data.verify import verify_dataset
from tests.disk_order import DiskOrder

PROGRAM = """
import sys; from pathlib import Path; from data.stage import stage
staged = stage(Path(sys.argv[1]), Path(sys.argv[2]))
print(staged.folder, staged.copied_s is not None, flush=True)
sys.stdin.read()
staged.release(keep=False)
"""


def _start(source: Path, disk: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(source), str(disk)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _told(process: subprocess.Popen[str]) -> tuple[Path, bool]:
    assert process.stdout is not None
    folder, copied = process.stdout.readline().split()
    return Path(folder), copied == "True"


@pytest.mark.medium
def test_the_copy_is_sound_and_the_next_run_uses_it(
    generated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = stage(generated, tmp_path)
    assert (first.copied_s or 0) > 0
    assert list(verify_dataset(first.folder)) == []
    for file in generated.iterdir():
        assert (first.folder / file.name).read_bytes() == file.read_bytes()
    assert stage(generated, tmp_path).copied_s is None
    assert capsys.readouterr().err == "", "no terminal, no progress"
    assert list(tmp_path.iterdir()) == [first.folder]


@pytest.mark.medium
def test_a_copy_stays_until_the_last_user_releases_it_and_for_ever_if_it_is_to_be_kept(
    generated: Path, tmp_path: Path
) -> None:
    one, other, third = (stage(generated, tmp_path) for _ in range(3))
    one.release(keep=False)
    other.release(keep=True)
    assert third.folder.is_dir()
    third.release(keep=False)
    assert list(tmp_path.iterdir()) == []
    stage(generated, tmp_path).release(keep=True)
    again = stage(generated, tmp_path)
    assert again.copied_s is None
    again.release(keep=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_a_damaged_copy_that_another_job_uses_is_left_alone(generated: Path, tmp_path: Path) -> None:
    used = stage(generated, tmp_path)
    with (used.folder / "train.rec").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"another job uses a damaged copy of the data set; end that job, remove the"):
        stage(generated, tmp_path)
    assert (used.folder / "train.rec").stat().st_size == 1000


@pytest.mark.parametrize("removed", [".", ".."])
def test_a_copy_that_was_removed_by_hand_can_be_released(generated: Path, tmp_path: Path, removed: str) -> None:
    staged = stage(generated, tmp_path / "disk")
    shutil.rmtree((staged.folder / removed).resolve())
    staged.release(keep=False)
    assert not staged.folder.exists()


@pytest.mark.medium
def test_another_version_of_a_data_set_is_another_copy(generated: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(generated, tmp_path / "other" / generated.name))
    manifest = load_manifest(source)
    manifest.model_copy(update={"seed": manifest.seed + 1}).save(source)
    folders = [stage(each, tmp_path / "new" / "disk").folder for each in (generated, source)]
    assert len(set(folders)) == 2
    assert {folder.name.rpartition("-")[0] for folder in folders} == {generated.name}
    assert dataset_bytes(manifest) == sum(
        (generated / file).stat().st_size for file in ("train.rec", "train.idx", "eval.rec", "eval.idx")
    )


@pytest.mark.medium
def test_records_are_on_the_disk_before_a_data_set_or_a_copy_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = DiskOrder(monkeypatch)
    prepare(open_source("generated", Settings(train=4, eval=2, classes=2, quality=50)), tmp_path / "set")
    stage(tmp_path / "set", tmp_path / "disk").release(keep=True)
    files = [path.name for path, _, _ in order.named]
    assert sorted(files) == sorted(["train.rec", "train.idx", "eval.rec", "eval.idx", "manifest.json"] * 2)
    assert order.unsafe() == []


@pytest.mark.ranks
def test_of_two_processes_one_copies_and_the_last_to_end_removes_the_copy(generated: Path, tmp_path: Path) -> None:
    both = [_start(generated, tmp_path) for _ in range(2)]
    folders, copied = zip(*(_told(process) for process in both), strict=True)
    assert sorted(copied) == [False, True]
    assert folders[0] == folders[1]
    both[0].communicate()
    assert list(verify_dataset(folders[0])) == []
    both[1].communicate()
    assert list(tmp_path.iterdir()) == []
    assert [process.returncode for process in both] == [0, 0]


@pytest.mark.parametrize(
    "command",
    [
        "mv {copy} .{copy}.partial; printf XXXX | dd of=.{copy}.partial/train.rec conv=notrunc status=none",
        "truncate -s 1000 {copy}/train.rec",
        # A kernel's clock of files may tick in 10 ms.
        "printf XXXX | dd of={copy}/train.rec conv=notrunc status=none; touch -d '1 second' {copy}/train.rec",
    ],
    ids=["a damaged part", "cut short", "written later"],
)
def test_a_damaged_copy_is_replaced(generated: Path, tmp_path: Path, command: str) -> None:
    copy = stage(generated, tmp_path).folder.name
    subprocess.run(["bash", "-ec", command.format(copy=copy)], cwd=tmp_path, check=True)
    again = stage(generated, tmp_path)
    assert again.copied_s is not None
    assert list(verify_dataset(again.folder)) == []


@pytest.mark.parametrize("file", ["train.idx", "train.rec", "eval.idx", "eval.rec"])
def test_a_source_that_differs_from_its_manifest_is_refused_and_not_copied(
    generated: Path, tmp_path: Path, file: str
) -> None:
    source = Path(shutil.copytree(generated, tmp_path / "source"))
    (source / file).write_bytes(bytes(5) + (source / file).read_bytes()[5:])
    with pytest.raises(UserError, match=rf"{file}: sha256 differs from the manifest; \./run\.sh prepare --verify"):
        stage(source, tmp_path / "disk")
    assert [path.name[0] for path in (tmp_path / "disk").iterdir()] == ["."]


def test_a_disk_without_room_for_the_copy_is_refused_before_a_byte_is_copied(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = dataset_bytes(load_manifest(generated))
    fields = list(os.statvfs(tmp_path))
    for free in (needed - 1, needed):
        fields[1], fields[4] = 1, free  # f_frsize, f_bavail
        monkeypatch.setattr(os, "statvfs", lambda _path, of=tuple(fields): os.statvfs_result(of))
        if free < needed:
            with pytest.raises(UserError, match=r"MB free, .* MB needed for a copy of .*; free some space, set"):
                stage(generated, tmp_path)
            assert list(tmp_path.iterdir()) == []
    assert stage(generated, tmp_path).folder.is_dir()
    fields[2:5] = 0, 0, 0  # a network file system that knows no size
    assert stage(generated, tmp_path / "other").folder.is_dir()


def test_a_folder_that_cannot_be_made_is_one_line(generated: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Not a directory; set cluster\.paths\.stage to a folder"):
        stage(generated, tmp_path / "file" / "stage")
