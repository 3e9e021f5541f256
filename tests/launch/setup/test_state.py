"""The record of an environment, and the locks of set-up."""

import errno
from pathlib import Path

import pytest

from configs.errors import UserError
from launch.setup import state
from launch.setup.layout import CURRENT, Environment, Kind
from launch.setup.state import State


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
    with pytest.raises(UserError, match=r"chmod .* as the owner of the checkout, or use your own"), state.only_one():
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
