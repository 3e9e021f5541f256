"""Damage is named by file, record and byte; a sound data set passes; the check before a run takes milliseconds."""

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.schema import Data
from data.__main__ import main
from data.manifest import load_manifest
from data.verify import check_dataset, verify_dataset
from tests.programs import Said

LABEL, JPEG = 12, 32  # bytes from a record's beginning to its label and its image


@pytest.fixture
def dataset(generated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(generated, tmp_path / "set"))


def offset_of(folder: Path, record: int) -> int:
    return int((folder / "train.idx").read_text().splitlines()[record].split("\t")[1])


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def found_in(folder: Path, workers: int = 1) -> list[str]:
    return [str(finding) for finding in verify_dataset(folder, workers=workers)]


@pytest.mark.medium
def test_sound_data_has_no_finding(dataset: Path, said: Said) -> None:
    assert found_in(dataset) == []
    assert "all 35 records are sound" in said(main, "prepare", "--verify", dataset, "--workers", "2").out
    assert check_dataset(dataset, recipe_data(), 4) == load_manifest(dataset), "the network may have more outputs"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("place", "content", "problem"),
    [
        (LABEL, struct.pack("<f", 0.5), ""),
        (LABEL - 4, struct.pack("<I", 1 << 20), "bytes are too few for 1048576 labels"),
        (0, b"XXXX", "damaged: no magic number here"),
        (4, (8).to_bytes(4, "little"), "8 bytes are too few for an image header"),
        (JPEG, b"not a JPEG", "is neither a JPEG nor a PNG image"),
        (JPEG + 163, b"\xff" * 4, "is a giant image, allowed"),
    ],
)
def test_a_damaged_record_is_named_and_the_checksum_differs(
    dataset: Path, place: int, content: bytes, problem: str
) -> None:
    offset = offset_of(dataset, 17)
    overwrite(dataset / "train.rec", offset + place, content)
    *named, last = found_in(dataset)
    assert len(named) == bool(problem)
    assert all(each.startswith(f"{dataset}/train.rec: record 17 at byte {offset}: ") for each in named)
    assert problem in "".join(named)
    assert last.startswith("train.rec: sha256 is ")
    if place == JPEG:  # two workers take a tenth of a second to start
        assert found_in(dataset, workers=2) == [*named, last]


@pytest.mark.medium
@pytest.mark.parametrize("bytes_more", [-1, 8])
def test_records_that_end_elsewhere_are_told_and_no_other_record_is_named(dataset: Path, bytes_more: int) -> None:
    size = (dataset / "train.rec").stat().st_size
    os.truncate(dataset / "train.rec", size + bytes_more)
    length, *named, checksum = found_in(dataset)
    assert length.startswith(f"train.rec: is {size + bytes_more:,} bytes long, the manifest says {size:,}")
    assert [f"record 29 at byte {offset_of(dataset, 29)}: truncated" in each for each in named] == [True] * (
        bytes_more < 0
    )
    assert checksum.startswith("train.rec: sha256 is ")


@pytest.mark.parametrize("command", ["sed -i '6s/^5/9/' train.idx", "sed -i '$d' train.idx", "sed -i '3d' train.idx"])
def test_another_index_is_told_and_its_records_are_not_read(dataset: Path, command: str) -> None:
    subprocess.run(["bash", "-ec", command], cwd=dataset, check=True)
    findings = found_in(dataset)
    assert findings[-1].startswith("train.idx: sha256 is ")
    assert [each for each in findings if "train.rec" in each] == []


def recipe_data(**changes: object) -> Data:
    base = {"name": "set", "source": "generated", "train_samples": 30, "eval_samples": 5}
    return Data.model_validate(base | changes)


@pytest.mark.parametrize(
    ("changes", "classes", "message"),
    [
        (
            {"train_samples": 31},
            3,
            "30 records, the recipe says data.train_samples: 31; --set data.train_samples=30, or",
        ),
        ({"eval_samples": 6}, 3, "5 records, the recipe says data.eval_samples: 6; --set data.eval_samples=5, or"),
        ({}, 2, "3 classes, the recipe says model.num_classes: 2; --set model.num_classes=3"),
        (
            {"source": "folders"},
            3,
            "packed from generated, the recipe says data.source: folders; set cluster.paths.data to another folder, or",
        ),
    ],
)
def test_a_data_set_that_does_not_fit_the_recipe_is_refused(
    dataset: Path, changes: dict[str, object], classes: int, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        check_dataset(dataset, recipe_data(**changes), classes)
    assert message in str(caught.value)
    assert "move it away and run ./run.sh prepare " in str(caught.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("truncate -s 1000 train.rec", "train.rec: is 1,000 bytes long, the manifest says "),
        ("rm eval.idx", "eval.idx: No such file or directory"),
        *((f"truncate -s +4 {file}", f"{file}: is ") for file in ("train.rec", "train.idx", "eval.rec", "eval.idx")),
    ],
)
def test_the_check_before_a_run_refuses_files_that_do_not_fit(dataset: Path, command: str, message: str) -> None:
    subprocess.run(["bash", "-ec", command], cwd=dataset, check=True)
    with pytest.raises(UserError) as caught:
        check_dataset(dataset, recipe_data(), 3)
    assert message in str(caught.value)
    remedy = f"./run.sh prepare generated {dataset} --train 30 --eval 5 --classes 3"
    assert str(caught.value).endswith(f"; move it away and run {remedy}")


@pytest.mark.parametrize("file", ["eval.rec", "train.rec", "train.idx"])
def test_a_file_that_was_written_after_the_run_began_that_is_resumed_is_compared_by_its_checksum(
    dataset: Path, file: str
) -> None:
    begun_ns, whole = time.time_ns(), (dataset / file).read_bytes()
    os.utime(dataset / file, ns=(begun_ns, begun_ns + 1))
    assert check_dataset(dataset, recipe_data(), 3, begun_ns=begun_ns) == load_manifest(dataset)
    (dataset / file).write_bytes(whole[:1] + bytes([whole[1] ^ 1]) + whole[2:])
    os.utime(dataset / file, ns=(begun_ns, begun_ns + 1))
    with pytest.raises(UserError, match=rf"^{dataset}: {file} was changed after the run began.*; move it away and run"):
        check_dataset(dataset, recipe_data(), 3, begun_ns=begun_ns)
    assert check_dataset(dataset, recipe_data(), 3), "a new run begins with what is there; --verify reads every byte"


def test_a_missing_data_set_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    idx = "where FOLDER has train-images-idx3-ubyte[.gz] and its three companions"
    for source, word, more in (("digits", "digits", ""), ("idx", "FOLDER", f", {idx}")):
        with pytest.raises(UserError) as caught:
            check_dataset(tmp_path / "no set", recipe_data(source=source), 3)
        expected = (
            f"{tmp_path / 'no set'}: no such data set; run ./run.sh prepare {word} '{tmp_path / 'no set'}'{more}; "
        )
        assert str(caught.value).startswith(expected)
        assert "set cluster.paths.data" in str(caught.value)
