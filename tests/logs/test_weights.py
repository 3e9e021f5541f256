"""``--from RUN|FILE``: which file of weights a run begins with, and that its path holds wherever the run goes on."""

import os
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_recipe
from logs.checkpoints import SavedState
from logs.folder import RunFolder
from logs.weights import starting_weights


def _chosen(path: Path) -> str | None:
    return load_recipe("digits", starting_weights(path)).model.parameters


def test_a_run_gives_its_best_or_newest_whole_checkpoint_and_without_one_its_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("a run: 'ä'")  # YAML would read a colon as a key
    (run / "export").mkdir(parents=True)
    (run / "export" / "network.onnx").touch()
    assert _chosen(run) == f"{tmp_path}/{run}/export/network.onnx"
    assert _chosen(run / "export") == f"{tmp_path}/{run}/export/network.onnx"
    for step in (3, 5, 7):
        RunFolder(run).checkpoints.write(step, SavedState({}, {}), keep=3)
    (run / "checkpoints" / "step-00000007.ckpt").write_bytes(b"damaged")
    assert _chosen(run) == f"{tmp_path}/{run}/checkpoints/step-00000005.ckpt"
    assert _chosen(run / "checkpoints" / "step-00000003.ckpt") == f"{tmp_path}/{run}/checkpoints/step-00000003.ckpt"
    RunFolder(run).checkpoints.write(4, SavedState({}, {}), keep=9, mark="best")
    assert _chosen(run) == f"{tmp_path}/{run}/checkpoints/best-step-00000004.ckpt"
    assert starting_weights(None) == []


def test_what_has_no_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^--from: no such file or folder: {tmp_path}/none; give"):
        starting_weights(tmp_path / "none")
    with pytest.raises(UserError, match=r"^--from: no such file or folder: https://a\.b/c\.pth; download it"):
        starting_weights(Path("https://a.b/c.pth"))
    with pytest.raises(UserError, match=f"^--from {tmp_path}: no run and no export in it; give"):
        starting_weights(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=f"^--from {tmp_path}: no complete checkpoint in it; give"):
        starting_weights(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-00000003.ckpt").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"in it: checkpoints/step-00000003\.ckpt: cannot be read \(.*not a file\); give"
    ):
        starting_weights(tmp_path)
    os.mkfifo(checkpoints / "best-step-00000003.ckpt")
    with pytest.raises(UserError, match=f"^{checkpoints}/best-step-00000003.ckpt: .* not a file.*; move it away"):
        starting_weights(tmp_path)
