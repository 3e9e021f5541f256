"""The locks of set-up: one set-up at a time, and none while a run uses the environment."""

import errno
import fcntl
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from configs.errors import UserError
from launch.setup import state
from launch.setup.layout import CURRENT, Environment, Kind


def _is_free(lock: Path, kind: int) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("waits", [False, True])
def test_a_set_up_has_the_folder_for_itself_also_if_it_had_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], waits: bool
) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setattr(state, "SETUP_LOCK", lock)
    shared: list[bool] = []

    def set_up() -> None:
        with state.only_one():
            shared.append(_is_free(lock, fcntl.LOCK_SH))

    with lock.open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX if waits else fcntl.LOCK_UN)
        second = Thread(target=set_up)
        second.start()
        second.join(0.01 if waits else 10)
        assert bool(shared) != waits
    second.join(10)
    assert shared == [False]
    assert _is_free(lock, fcntl.LOCK_EX)
    assert ("another set-up is running" in capsys.readouterr().err) == waits


def test_runs_share_the_environment_and_keep_set_up_out_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setattr(state, "USED_LOCK", lock)
    monkeypatch.setattr("sys.prefix", str(CURRENT.folder))
    assert not state.is_used()
    with ExitStack() as later:
        with state.in_use():
            later.enter_context(state.in_use())
        assert state.is_used(), "the second run goes on when the first has ended"
    assert not state.is_used()


def test_runs_in_another_environment_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "USED_LOCK", tmp_path / "lock")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with state.in_use():
        assert not state.is_used()
    assert not (tmp_path / "lock").exists()


def test_a_checkout_that_nobody_can_write_to_can_be_used_and_not_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "none" / "lock"  # root may write to every folder that is there
    monkeypatch.setattr(state, "USED_LOCK", lock)
    monkeypatch.setattr(state, "SETUP_LOCK", lock)
    with state.in_use():
        assert not state.is_used()
    with pytest.raises(UserError) as refusal, state.only_one():
        pass
    assert str(refusal.value) == (
        f"{lock}: No such file or directory; the environment is not complete, and set-up must write in this folder: "
        "run ./run.sh setup as the owner of the checkout, or use a checkout of your own"
    )


def test_a_file_system_without_locks_is_used_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(state, "USED_LOCK", tmp_path / "lock")
    monkeypatch.setattr("fcntl.flock", refuse)
    with state.in_use():
        assert not state.is_used()


@pytest.mark.parametrize("kind", [Kind(("mxnet",), "gpu", "/usr/bin/python3"), Kind(("mxnet", "torch"), "cpu")])
def test_the_record_of_an_environment_is_read_as_it_was_written(tmp_path: Path, kind: Kind) -> None:
    environment = Environment(tmp_path / "environment")
    record = state.State(environment)
    record.reset(Kind(("mxnet",), "cpu"), has_mpi=False)
    record.finish("venv", "1")
    record.extend(kind)
    assert state.State(environment).kind == kind
    assert state.State(environment).is_done("venv", "1")
    record.reset(kind, has_mpi=True)
    assert not state.State(environment).is_done("venv", "1")


def test_an_environment_from_before_there_were_two_engines_is_for_mxnet(tmp_path: Path) -> None:
    (tmp_path / "setup.json").write_text('{"variant": "gpu", "stages": {}}', encoding="utf-8")
    assert state.State(Environment(tmp_path)).kind == Kind(("mxnet",), "gpu")


def test_mpi_is_found_by_its_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpicxx").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state.State(Environment(tmp_path)).has_mpi


def test_a_set_up_that_waits_says_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def lock(_file: object, kind: int) -> None:
        asked.append(kind)
        if kind & fcntl.LOCK_NB:
            raise BlockingIOError

    monkeypatch.setattr(state, "SETUP_LOCK", tmp_path / "lock")
    monkeypatch.setattr("fcntl.flock", lock)
    with state.only_one() as descriptor:
        assert (tmp_path / "lock").samefile(f"/proc/self/fd/{descriptor}")
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert capsys.readouterr().err == "setup: another set-up is running in this folder; waiting for its end\n"
