"""What the rehearsal of a job is asked for, what comes back, and what is left of it; a stand-in is the command."""

import tempfile
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import dump, load_both
from configs.programs import Program
from launch.submit import rehearsed


def _answer(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Let a shell script be the rehearsal, with the file of the config as its argument; return what is asked for."""
    asked: list[tuple[object, ...]] = []

    def command(*words: object) -> list[str]:
        asked.append(words)
        return ["sh", "-c", script, "rehearse", str(words[words.index("--config") + 1])]

    monkeypatch.setattr(rehearsed, "command_of", command)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return asked


def test_the_rehearsal_of_a_job_has_its_recipe_its_cluster_and_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal, temporary = load_both("digits", "laptop", ["run.seed=9"]), tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "config.yaml").write_text(dump(*rehearsal), encoding="utf-8")
    asked = _answer(f'echo told; echo warned >&2; cp "{tmp_path}/config.yaml" "$1"', temporary, monkeypatch)
    assert rehearsed.rehearsed("digits", "laptop", ["run.seed=9", "run.epochs=2"]) == rehearsal
    ((*words, path), sets) = asked[0][:6], asked[0][6:]
    assert words == [Program.REHEARSE_VERB, "digits", "--cluster", "laptop", "--config"]
    assert Path(str(path)).is_relative_to(temporary)
    assert sets == ("--set", "run.seed=9", "--set", "run.epochs=2")
    assert not list(temporary.iterdir()), "nothing is left"


def test_a_rehearsal_that_is_refused_says_so_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer("echo 'error: the simulator does not know the machine' >&2; exit 2", tmp_path, monkeypatch)
    with pytest.raises(UserError) as refusal:
        rehearsed.rehearsed("digits", "laptop", [])
    assert str(refusal.value) == "the simulator does not know the machine"
    assert not list(tmp_path.iterdir())
