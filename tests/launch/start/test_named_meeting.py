"""Where ranks that share memory meet: a new name for each run, the same for all its ranks."""

import io
import re

import pytest

from configs.load import load_cluster
from launch.start.commands import launcher_command, local_words
from launch.start.meetings import meeting_of
from launch.start.named_meeting import is_served, local_ranks, main

KIND = "cluster.communication.kind=shared_memory"


def test_all_ranks_of_a_run_get_one_name_and_every_run_another() -> None:
    names = []
    for _ in range(2):
        with local_ranks(3) as start:
            starts = [start(rank) for rank in range(3)]
        assert [each.variables["RANK"] for each in starts] == ["0", "1", "2"]
        (name,) = {each.variables["RANK_MEETING"] for each in starts}
        names.append(name)
    assert names[0] != names[1]
    assert all(re.fullmatch("ranks-[0-9a-f]{32}", name) for name in names)


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun", "srun"])
def test_a_foreign_launcher_passes_the_name_on(launcher: str) -> None:
    cluster = load_cluster("laptop", [KIND, f"cluster.launcher={launcher}"])
    meeting = meeting_of("shared_memory")
    assert is_served(cluster)
    with meeting.serve(1, 2) as variables:
        assert variables.keys() == set(meeting.SERVED) == {"RANK_MEETING"}
    words = launcher_command(cluster, ["rank"], {})
    assert (words[words.index("RANK_MEETING") - 1] == "-x") if launcher == "mpirun" else "RANK_MEETING" not in words
    assert local_words(load_cluster("laptop", [KIND])) == ["--kind", "shared_memory", "2"]


def test_a_job_script_reads_the_name_from_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["1", "2"]) == 0
    assert re.fullmatch("RANK_MEETING=ranks-[0-9a-f]{32}\n", capsys.readouterr().out)
