"""The record of an environment, the locks of set-up, and what changes in an environment that gets another path."""

import errno
import re
from pathlib import Path

import pytest

from configs.errors import UserError
from launch.setup import state
from launch.setup.layout import CURRENT, Environment, Kind
from launch.setup.state import State, rewrite_path


@pytest.mark.parametrize(
    ("text", "kind"),
    [('{"stages": {"ve', None), ('{"variant": "gpu", "stages": {}}', Kind(("mxnet",), "gpu"))],
    ids=["damaged", "of the time before there were two engines"],
)
def test_a_damaged_record_counts_as_nothing_done_and_an_old_one_is_for_mxnet(
    text: str, kind: Kind | None, tmp_path: Path
) -> None:
    (tmp_path / "setup.json").write_text(text, encoding="utf-8")
    assert State(Environment(tmp_path)).kind == kind


def test_a_checkout_that_nobody_can_write_to_can_be_used_and_not_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "none" / "lock"  # root may write to every folder that is there
    for name in ("USED_LOCK", "SETUP_LOCK"):
        monkeypatch.setattr(state, name, lock)
    monkeypatch.setattr("sys.prefix", str(CURRENT.folder))
    with state.in_use():
        assert not state.is_used()
    with pytest.raises(UserError, match="as the owner of the checkout, or use your own"), state.only_one():
        pass
    monkeypatch.setattr("os.access", lambda path, _mode: path != CURRENT.folder)  # of an owner with umask 077
    with pytest.raises(UserError, match=rf"chmod -R go\+rX {re.escape(str(CURRENT.folder))}"), state.only_one():
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_without_one_and_set_up_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, "no locks here")

    def refuse(*_: object) -> None:
        raise error

    for name in ("USED_LOCK", "SETUP_LOCK"):
        monkeypatch.setattr(state, name, tmp_path / "lock")
    monkeypatch.setattr("sys.prefix", str(CURRENT.folder))
    monkeypatch.setattr("fcntl.flock", refuse)
    with state.in_use():
        assert not state.is_used()
    with state.only_one() as descriptor:
        assert (tmp_path / "lock").samefile(f"/proc/self/fd/{descriptor}")
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path}/lock: no locks here; set-up continues without")


def test_compiled_files_keep_their_length_and_scripts_get_the_new_path_and_prompt(tmp_path: Path) -> None:
    old, new = tmp_path / ".venv.building", tmp_path / ".venv"
    packages = old / "lib" / "python3.11" / "site-packages"
    library, other = packages / "horovod" / "mxnet" / "mpi_lib.so", packages / "mxnet" / "libmxnet.so"
    for path in (library, other, old / "bin" / "folder" / "script"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\0" + f"{old}/lib:{old}".encode() + b"\0.venv.building")
    (old / "pyvenv.cfg").write_text("prompt = .venv.building\n", encoding="utf-8")
    activate, shared = old / "bin" / "activate", tmp_path / "shared"
    activate.write_text(f"VIRTUAL_ENV={old}\nPS1=(.venv.building)\n", encoding="utf-8")
    activate.chmod(0o640)
    shared.hardlink_to(activate)
    (old / "bin" / "linked").symlink_to(shared)
    untouched = old / "bin" / "plain"
    untouched.write_text("echo\n", encoding="utf-8")
    number = untouched.stat().st_ino
    before = library.read_bytes()
    rewrite_path(old, new)
    slashes = 9 * "/"  # the letters of .building
    assert library.read_bytes() == b"\0" + f"{new}{slashes}/lib:{new}{slashes}".encode() + b"\0.venv.building"
    assert len(before) == len(library.read_bytes())
    assert other.read_bytes() == before, "wheels hold no path of an environment"
    assert activate.read_text(encoding="utf-8") == f"VIRTUAL_ENV={new}\nPS1=(.venv)\n"
    assert activate.stat().st_mode & 0o777 == 0o640
    assert "building" in shared.read_text(encoding="utf-8"), "a file of others"
    assert (old / "pyvenv.cfg").read_text(encoding="utf-8") == "prompt = .venv\n"
    assert untouched.stat().st_ino == number, "a file without the path is not written again"
    assert not list(old.rglob("*.rewritten"))
