"""A manifest refuses numbers that no data set has."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from data.manifest import Manifest, load_manifest

SPLIT: dict[str, Any] = {
    "records": 3, "rec_bytes": 1, "rec_sha256": "0a" * 32, "idx_bytes": 1, "idx_sha256": "f9" * 32,
    "class_counts": (1, 2),
}  # fmt: skip
SOURCE = {"kind": "digits", "description": "made", "fingerprint": "none"}
TREE: dict[str, Any] = {
    "format_version": 1, "source": SOURCE, "seed": 5, "class_names": ("a", "b"), "packed_side": 32,
    "in_place": {"form": "records", "root": "/a", "train": ("a.rec",), "eval": ("b.rec",)},
    "train": SPLIT, "eval": SPLIT | {"records": 1, "class_counts": (1, 0)},
}  # fmt: skip


def test_a_manifest_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    manifest = Manifest.model_validate(TREE)
    manifest.save(tmp_path)
    assert load_manifest(tmp_path) == manifest
    assert (manifest.split("train"), manifest.split("eval")) == (manifest.train, manifest.eval)
    assert (manifest.eval.records, manifest.has_label_vectors) == (1, False)
    assert manifest.model_dump() == TREE


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "the file: Invalid JSON"), (b"\xff{}", "the file: Invalid JSON"), (b"{}", "format_version: ")],
)
def test_a_damaged_manifest_says_what_to_do(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_manifest(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'manifest.json'}: damaged: {problem}")
    assert str(caught.value).endswith("; the data set must be prepared again")


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"records": 0, "class_counts": (0, 0)}, "records: Input should be greater than or equal to 1"),
        ({"idx_bytes": 0}, "idx_bytes: Input should be greater"),
        ({"rec_sha256": "0" * 63}, "rec_sha256: String should match pattern"),
        ({"records": "3"}, "records: Input should be a valid integer"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
    ],
)
def test_a_split_that_cannot_be_is_named(tmp_path: Path, split: str, change: dict[str, Any], problem: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(TREE | {split: TREE[split] | change}))
    with pytest.raises(UserError) as caught:
        load_manifest(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'manifest.json'}: damaged: ")
    assert problem in str(caught.value)
