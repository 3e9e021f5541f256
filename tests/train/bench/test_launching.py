"""Programs are started as a user would start them, what they tell is read, and a failure shows its cause."""

import os
import sys
import time
from pathlib import Path

import pytest

from configs.load import ROOT, load_both
from configs.programs import Program, command_of
from tests.programs import python
from tests.train.bench.answering import Answering
from train.bench.launching import Finished, Jobs
from train.bench.samples import MeasurementFailed, read_samples

JOBS = Jobs()


def _python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.mark.ranks
def test_every_rank_gets_the_task_and_the_clusters_variables_and_rank_0_answers() -> None:
    done = JOBS.ranks("steps.allreduce", {"cluster": "laptop", "overrides": [], "rounds": 2, "sizes": [4]})
    ((first, second),) = done.samples.values()
    assert done.output.count('{"alternative"') == 1, "the other ranks are silent"
    assert 0 < first["allreduce_ms"] + second["allreduce_ms"] < 1e3 * done.took_s


def test_a_program_runs_in_the_folder_of_this_one_and_any_bytes_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "import os, sys; print(os.getcwd(), flush=True); os.write(2, b'caf\\xe9')"
    before_s, begin = time.time(), time.monotonic()
    done = JOBS.run(_python(words)).check()
    assert done.output == f"{ROOT}\ncaf\N{REPLACEMENT CHARACTER}"
    assert 0 < done.took_s <= time.monotonic() - begin
    assert before_s <= done.begun_s <= time.time()


_LINES = "[print('line', number) for number in range(99)]; print('last words'); raise SystemExit(7)"
_TRACE = "    from PIL import UnidentifiedImageError\nModuleNotFoundError: No module named 'PIL'\nfailed\nended\n"


@pytest.mark.parametrize(
    ("code", "message", "short"),
    [
        (_LINES, r"exit status 7:\nline 88\n(.*\n)+last words$", "exit status 7: / line 98 / last words"),
        (f"print('python: warm'); print('No module named x'); {_LINES}",
         r"exit status 7:\nNo module named x\n\.\.\.\nline 88\n",
         "exit status 7: / No module named x / line 98 / last words"),
        (f"print({_TRACE!r}); raise SystemExit(1)", r"exit status 1:\n    from PIL",
         "exit status 1: / ModuleNotFoundError: No module named 'PIL' / failed / ended"),
        ("import os; os.write(1, b'last words'); os.kill(os.getpid(), 9)", r"exit status -9:\nlast words$",
         "exit status -9: / last words"),
    ],
)  # fmt: skip
def test_a_failed_program_tells_its_first_error_and_its_last_lines(code: str, message: str, short: str) -> None:
    with pytest.raises(MeasurementFailed, match=f"ended with {message}") as failed:
        JOBS.run(_python(code)).check()
    assert failed.value.short == short


@pytest.mark.parametrize(
    ("number", "then", "cause"),
    [
        (9, "echo 'PeerLost: rank 1'; exit 1", "was killed by signal 9$"),
        (19, "kill -6 $$", "was frozen, "),  # as a library that has waited for too long
    ],
)
def test_a_rank_that_a_signal_kills_or_freezes_is_the_cause(number: int, then: str, cause: str) -> None:
    rank = ["sh", "-c", f"test $RANK = 0 || kill -{number} $$; sleep 0.5; {then}"]
    with pytest.raises(MeasurementFailed, match=f"^rank 1 {cause}"):
        JOBS.run(command_of(Program.RANKS_LAUNCHER, "--", *rank)).check()


def test_a_program_that_takes_too_long_may_end_what_it_started_and_then_is_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    with pytest.raises(MeasurementFailed, match=r"took more than 1 s$"):
        JOBS.run(["bash", "-c", f"cd {tmp_path}; trap 'touch ended; exit' TERM; exec 3<>never; read <&3"], timeout_s=1)
    assert (tmp_path / "ended").exists()
    with pytest.raises(MeasurementFailed, match=r"took more than 0\.01 s$") as late:
        JOBS.run(["bash", "-c", "sleep 30 & exec sleep 30"], timeout_s=0.01)  # what it leaves behind has its output
    assert "\n" not in late.value.short


def test_output_comes_before_the_program_ends_and_the_last_line_needs_no_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    code = f"print('first', flush=True); open({str(tmp_path / 'go')!r}).read(); print('last', end='')"
    told: list[str] = []

    def tell(output: str) -> None:
        told.append(output)
        if output == "first\n" and told.count(output) == 1:
            (tmp_path / "go").write_text("", encoding="ascii")

    done = JOBS.run(_python(code), timeout_s=60, tell=tell)
    assert (done.status, done.output) == (0, "first\nlast")
    assert told[-1] == done.output


def test_samples_are_found_behind_the_name_that_a_launcher_gives_a_rank() -> None:
    line = '{"alternative": "step", "samples": [{"step_ms": 2.0}]}'
    for output in (line, f"[1,0]<stdout>:{line}", f"a warning\n[1,0]<stdout>: {line}\n[1,1]<stdout>:more"):
        assert read_samples(output) == {"step": [{"step_ms": 2.0}]}
    assert read_samples(f"{line}\n{line[:30]}") == {"step": [{"step_ms": 2.0}]}, "the second is being written"
    with pytest.raises(MeasurementFailed, match=r"without a measurement:\n(?!line 0\n)(.*\n)+last words"):
        Finished([], 0, "".join(f"line {number}\n" for number in range(99)) + "last words\n", 0.0, 0.0).samples  # noqa: B018


_PEER = """
import atexit, os
from train.bench.samples import end_peer, write_samples
from train.rank.identity import Identity
atexit.register(os.abort)
write_samples(Identity(0, 2, 0, 2, "here", "Horovod"), "peer", [{"rate": 1.5}])
end_peer(lambda: %s)
"""


@pytest.mark.parametrize("meeting", ["print('met')", "1 / 0"])
def test_a_peer_that_has_measured_succeeds_however_its_libraries_end(meeting: str) -> None:
    done = python("-c", _PEER % meeting)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_samples(done.stdout) == {"peer": [{"rate": 1.5}]}
    assert ("met\n" in done.stdout) == (meeting == "print('met')")


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_data_set_is_packed_where_none_is_complete(is_packed: bool, tmp_path: Path) -> None:
    jobs = Answering()
    (tmp_path / "images").mkdir()
    if is_packed:
        (tmp_path / "images" / "manifest.json").touch()
    counts = ["data.train_samples=24", "data.eval_samples=3", "model.num_classes=2"]
    place = [f"cluster.paths.data={tmp_path}", "data.name=images", "data.source=generated"]
    folder = jobs.pack(*load_both("imagenet-smoke", "laptop", [*place, *counts]))
    assert folder == tmp_path / "images"
    words = ["prepare", "generated", str(folder), "--train", "24", "--eval", "3", "--classes", "2", "--no-recipe"]
    expected = [] if is_packed else [command_of(Program.PREPARE_VERB, *words)]
    assert [each.words for each in jobs.started] == expected
