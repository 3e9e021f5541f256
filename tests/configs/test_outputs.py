"""A process whose outputs are closed, full, or unread: it loses words, ends as it would, and does not wait."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from configs.load import ROOT

PROGRAM = """
import faulthandler, os, subprocess, sys
from configs.outputs import guard_outputs
guard_outputs()
for number in range(40):
    print("out", number, "\\u00e4" * 200)
    print("error", number, "\\udc80" * 200, file=sys.stderr)
faulthandler.dump_traceback()
with open(sys.argv[1], "w") as file:
    child = subprocess.call([sys.executable, "-c", "import os; [os.fstat(number) for number in range(3)]"])
    file.write(f"{file.fileno() > 2} {child}")
sys.exit(75)
"""


def _run(redirections: str, told: Path, output: int) -> int:
    """Run the program under bash with its redirections; return its exit status."""
    command = ["bash", "-c", f'"$@" {redirections}', "-", sys.executable, "-c", PROGRAM, str(told)]
    return subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode


@pytest.mark.medium
@pytest.mark.parametrize(
    "redirections",
    ["", ">&-", "<&- >&- 2>&-", ">/dev/full 2>&1", "1</dev/null 2</dev/null"],
)
def test_an_output_that_cannot_be_written_to_changes_neither_the_work_nor_the_status(
    redirections: str, tmp_path: Path
) -> None:
    assert _run(redirections, tmp_path / "told", subprocess.DEVNULL) == 75
    # The file that is opened next has not the number of a closed output, in this process or in one that it starts.
    assert (tmp_path / "told").read_text(encoding="utf-8") == "True 0"


@pytest.mark.medium
@pytest.mark.parametrize("is_closed", [True, False], ids=["whose reader is gone", "that nobody reads"])
def test_a_pipe_loses_words_and_is_waited_for_once(is_closed: bool, tmp_path: Path) -> None:
    receives, sends = os.pipe()
    os.set_blocking(sends, False)
    with suppress(BlockingIOError):
        while True:
            os.write(sends, b"x" * 4096)
    os.set_blocking(sends, True)
    if is_closed:
        os.close(receives)
    begin = time.monotonic()
    assert _run("2>&1", tmp_path / "told", sends) == 75
    # Each of 81 words would be waited for, for two seconds.
    assert time.monotonic() - begin < 60
    assert (tmp_path / "told").exists()
    os.close(sends)
    if not is_closed:
        os.close(receives)


@pytest.mark.medium
@pytest.mark.parametrize("ending", ["", " | head -c 1000", " >/dev/full"], ids=["reads on", "is gone", "is full"])
def test_a_program_whose_words_are_its_product_waits_for_a_reader_that_pauses(ending: str, tmp_path: Path) -> None:
    program = PROGRAM.replace("guard_outputs()", "guard_outputs(waits_for_reader=True)").replace(
        "range(40)", "range(900)"
    )
    command = [
        "bash",
        "-o",
        "pipefail",
        "-c",
        f'"$@"{ending}',
        "-",
        sys.executable,
        "-c",
        program,
        str(tmp_path / "told"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(1000)) == (0 if "full" in ending else 1000)
        if not ending:
            time.sleep(3)  # Longer than a long run waits; the pipe holds a sixth of the words.
        lines = process.stdout.read().decode().splitlines()
    assert process.returncode == 75
    if not ending:
        assert [line.split()[1] for line in lines[-800:]] == [str(number) for number in range(100, 900)]


def test_whoever_reads_gets_every_word_and_another_process_at_the_pipe_still_waits_for_it(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "told")]
    # The shell writes to the same pipe afterwards, and would lose words if the pipe itself did not wait any more.
    command = ["bash", "-c", '"$@" 2>&1; printf "%0200000d" 0', "-", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    text = done.stdout.decode()
    assert done.returncode == 0
    assert text.endswith("0" * 200_000)
    assert all(f"out {number} {'ä' * 200}\n" in text for number in range(40))
    assert text.count("\\udc80" * 200) == 40, "a letter that has no code does not end a run"
