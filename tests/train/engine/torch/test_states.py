"""State files of PyTorch: plain tensors are read, and nothing in a file is ever run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from configs.errors import UserError
from train.engine.torch.states import read_state


class _Writes:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_a_file_that_holds_more_than_tensors_is_refused_before_it_runs_anything(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2), "more": _Writes(tmp_path / "made")}, tmp_path / "state.pt")
    with pytest.raises(UserError, match="is not a state file of plain tensors"):
        read_state(tmp_path / "state.pt")
    assert not (tmp_path / "made").exists()


def test_a_file_of_another_kind_is_one_line_without_the_advice_to_run_what_is_in_it(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "script.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    (tmp_path / "text.pt").write_text("hello", encoding="utf-8")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(UserError) as caught:
            read_state(path)
        told = str(caught.value)
        assert told.startswith(f"{path}: is not a state file of plain tensors")
        assert told.endswith("; save model.state_dict() by torch.save")
        assert not any(word in told for word in ("\x1b", "\n", "weights_only"))


def test_a_file_that_holds_a_number_beside_its_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2), "epoch": 3}, tmp_path / "state.pt")
    with pytest.raises(UserError, match=r"holds more than named tensors; save model\.state_dict\(\)"):
        read_state(tmp_path / "state.pt")


def test_tensors_of_sixteen_bits_become_float32_and_counts_of_batches_are_left_out(tmp_path: Path) -> None:
    state = {"weight": torch.ones(2, dtype=torch.float16), "bn1.num_batches_tracked": torch.tensor(7)}
    torch.save(state, tmp_path / "state.pt")
    read = read_state(tmp_path / "state.pt")
    assert {name: array.dtype.name for name, array in read.items()} == {"weight": "float32"}
