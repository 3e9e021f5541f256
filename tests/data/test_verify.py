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
from data.prepare import prepare
from data.sources.catalogue import open_source
from data.sources.image_source import Settings
from data.verify import check_dataset, verify_dataset

LABEL, JPEG = 12, 32  # bytes from a record's beginning to its label and its image


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "set"
    prepare(open_source("generated", Settings(train=30, eval=5, classes=3, quality=50)), folder)
    return folder


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "set"))


def offset_of(folder: Path, record: int) -> int:
    return int((folder / "train.idx").read_text().splitlines()[record].split("\t")[1])


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def found_in(folder: Path, workers: int = 1) -> list[str]:
    return [str(finding) for finding in verify_dataset(folder, workers=workers)]


@pytest.mark.medium
def test_sound_data_has_no_finding(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert found_in(dataset) == []
    assert main(["prepare", "--verify", str(dataset), "--workers", "2"]) == 0
    assert "all 35 records are sound" in capsys.readouterr().out
    assert check_dataset(dataset, recipe_data(), 4) == load_manifest(dataset), "the network may have more outputs"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("place", "content", "problem"),
    [
        (LABEL, struct.pack("<f", 3), "label 3, allowed: whole numbers 0 to 2"),
        (LABEL, struct.pack("<f", 0.5), "label 0.5, allowed: whole numbers 0 to 2"),
        (LABEL - 4, struct.pack("<I", 2), "has 2 labels, allowed: 1"),
        (0, b"XXXX", "damaged: no magic number here"),
        (JPEG, b"not a JPEG", "the image is neither a JPEG nor a PNG image"),
        (JPEG + 163, b"\xff" * 4, "the image is a giant image, allowed"),
    ],
)
def test_a_damaged_record_is_named_and_the_checksum_differs(
    dataset: Path, place: int, content: bytes, problem: str
) -> None:
    offset = offset_of(dataset, 17)
    overwrite(dataset / "train.rec", offset + place, content)
    first, second = found_in(dataset)
    assert first.startswith(f"train.rec record 17 at byte {offset}: {problem}")
    assert second.startswith("train.rec: sha256 is ")
    if place == JPEG:  # two workers take a tenth of a second to start
        assert found_in(dataset, workers=2) == [first, second]


@pytest.mark.medium
def test_a_file_that_ends_with_another_record_is_named_with_the_count(dataset: Path) -> None:
    os.truncate(dataset / "train.rec", offset_of(dataset, 29))
    findings = found_in(dataset)
    assert "bytes long, the manifest says" in findings[0]
    assert "train.rec: has 29 records, the manifest says 30" in findings
    assert [each for each in findings if " of class " in each] == [], "that is no other finding"


def change_line(folder: Path, number: int, line: str) -> None:
    lines = (folder / "train.idx").read_text().splitlines()
    lines[number] = line
    (folder / "train.idx").write_text("\n".join(lines) + "\n")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("5\t{offset_6}", "train.idx record 5 at byte {offset_6}: points to another record, not to byte {offset_5}"),
        ("5\t4", "train.idx record 5 at byte 4: points to an offset where no record begins"),
        ("9\t{offset_5}", "train.idx record 5 at byte {offset_5}: key is 9, allowed: 5"),
        ("5 {offset_5}", "train.idx record 5: line is not key<tab>offset: "),
    ],
)
def test_an_index_that_disagrees_is_named_by_line(dataset: Path, line: str, problem: str) -> None:
    offsets = {f"offset_{number}": offset_of(dataset, number) for number in (5, 6)}
    change_line(dataset, 5, line.format(**offsets))
    findings = found_in(dataset)
    assert [finding for finding in findings if finding.startswith(problem.format(**offsets))]
    assert any(finding.startswith("train.idx: sha256 is ") for finding in findings)
    assert sum(finding.startswith("train.idx record ") for finding in findings) == 1


@pytest.mark.parametrize(("command", "lines"), [("sed -i '$d' train.idx", 29), ("echo 30 0 >> train.idx", 31)])
def test_an_index_of_another_length_is_named(dataset: Path, command: str, lines: int) -> None:
    subprocess.run(["bash", "-ec", command], cwd=dataset, check=True)
    assert f"train.idx: has {lines} lines for 30 records" in found_in(dataset)


def test_a_manifest_of_other_counts_is_named(dataset: Path) -> None:
    manifest = load_manifest(dataset)
    other = manifest.train.model_copy(update={"class_counts": (11, 9, 10)})
    manifest.model_copy(update={"train": other}).save(dataset)
    assert found_in(dataset) == [
        "train.rec: has 10 records of class 0, the manifest says 11",
        "train.rec: has 10 records of class 1, the manifest says 9",
    ]


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
        ("sed -i '$s/[0-9]/9/g; $s/^99/29/' train.idx", "points past the end of the records"),
        ("sed -i '1{N;s/\\n/ /}' train.idx", "train.idx: has 29 lines, the manifest says 30 records"),
        ("sed -i '$s/\\t/ /' train.idx", "train.idx: the last line is not key<tab>offset: b'29 "),
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
