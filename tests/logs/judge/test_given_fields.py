"""The fields of a system description that a user gives, and the environment that a run recorded."""

import json
from pathlib import Path

import pytest

from configs.errors import UserError
from logs.judge.system import read_environment, read_fields


def test_fields_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fields.yaml"
    path.write_text("cooling: water\nnics: 4\nsw_notes:\n12: x\n", encoding="utf-8")
    assert read_fields(None, []) == {}
    assert read_fields(path, []) == {"cooling": "water", "nics": "4", "sw_notes": "", "12": "x"}
    assert read_fields(path, ["cooling=air=cold", "nics=", "new=1"]) == {
        "cooling": "air=cold", "nics": "", "sw_notes": "", "12": "x", "new": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1, 2]", "got list, allowed: a mapping of names to values; write lines NAME: VALUE"),
        (b"", "got NoneType, allowed: a mapping of names to values; write lines NAME: VALUE"),
        (b"a: \xff", "cannot be read ('utf-8' codec can't decode byte 0xff in position 3: invalid start byte); "
         "give a YAML or JSON file of fields"),
        (None, "cannot be read ([Errno 2] No such file or directory: '{path}'); give a YAML or JSON file of fields"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_fields_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "fields.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_fields(path, [])
    assert str(caught.value) == f"{path}: {words.replace('{path}', str(path))}"


def test_a_field_without_a_value_sign_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        read_fields(None, ["cooling=air", "cooling"])
    assert str(caught.value) == ("--field: got 'cooling', allowed: NAME=VALUE; give, for example, --field cooling=air")


def test_the_environment_of_a_run_is_an_object(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    with pytest.raises(
        UserError, match=r"environment\.json: cannot be read \(.*\); give the folder of a run of this program$"
    ):
        read_environment(tmp_path)
    for content in ("[", "\xff"):
        path.write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match="cannot be read"):
            read_environment(tmp_path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_environment(tmp_path)
    assert (
        str(caught.value)
        == f"{path}: cannot be read (it holds no JSON object); give the folder of a run of this program"
    )
    path.write_text(json.dumps({"cpu": "x"}), encoding="utf-8")
    assert read_environment(tmp_path) == {"cpu": "x"}
