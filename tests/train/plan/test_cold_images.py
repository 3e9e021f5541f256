"""Whether the log of a run that submits can say cache_clear is told before the run, with what to do about it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.load import load_both
from train.plan.cold_images import missing_cache_clear


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """Return a folder whose files are always in memory."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("data", "settings", "place"),
    [
        ("{memory}", [], "{memory}/digits"),
        ("{disk}", ["cluster.paths.stage=$SHM/copies"], "{memory}/copies"),
        ("{disk}", [], None),
        ("{memory}", ["cluster.paths.stage={disk}"], None),
        ("{memory}", ["cluster.paths.stage=$NO_SUCH_VARIABLE/x"], None),
        ("{memory}", ["mlperf.submits=false"], None),
        ("{memory}", ["data.source=synthetic"], None),
        (
            "{memory}",
            [
                "cluster.engine.name=timed",
                "cluster.rehearsal={waits: {forward_s: 0, gradients_s: [], update_s: 0, evaluation_s: 0, top1: []}}",
            ],
            None,
        ),
    ],
)
def test_a_run_that_submits_is_warned_of_images_that_stay_in_memory(
    data: str, settings: list[str], place: str | None, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHM", str(memory))
    given = [each.replace("{disk}", str(tmp_path)) for each in settings]
    recipe, cluster = load_both(
        "digits", "laptop", [f"cluster.paths.data={data.format(memory=memory, disk=tmp_path)}", *given]
    )
    told = missing_cache_clear(recipe, cluster)
    if place is None:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(f"{place.format(memory=memory)}: the folder is a tmpfs, ")
        assert "; set cluster.paths.stage to a folder on a local disk, " in told
