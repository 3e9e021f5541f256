"""Which tests stay in one process."""

from configs.load import ROOT
from tests.sharing import group_of


def test_files_that_share_a_start_are_a_group_and_all_others_are_shared_out_test_by_test() -> None:
    groups = {path.name: group_of(path) for path in (ROOT / "tests").rglob("test_*.py")}
    together = {name: group for name, group in groups.items() if group}
    assert together["test_slurm.py"] == "slurm" != together["test_gridengine.py"]
    assert together["test_first_step.py"] == "first_step"
    # The groups of schedulers take minutes, and most tests are in none.
    assert "test_faults.py" not in together
    assert len(together) < 10 < len(groups)
