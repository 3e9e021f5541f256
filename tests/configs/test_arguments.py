"""Text for a terminal: colours only where they are wanted, and no control characters."""

import errno
import importlib
import io
import signal
import sys
from pathlib import Path

import pytest

from configs.arguments import Parser, add_from, add_place, exit_status, painted, parse
from configs.errors import UserError
from tests.programs import Terminal, python, run_program


def test_a_terminal_with_colours_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "")
    assert painted("PASS", "good", Terminal()) == "\x1b[32mPASS\x1b[0m"
    assert painted("head", "strong", Terminal()) == "\x1b[1mhead\x1b[0m"
    assert painted("note", "faint", Terminal()) == "\x1b[2mnote\x1b[0m"
    assert painted("a", "plain", Terminal()) == "a"
    assert painted("PASS", "good", io.StringIO()) == "PASS"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", ""), ("TERM", None)])
def test_no_colours_where_they_are_not_wanted_or_not_there(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    assert painted("FAIL", "bad", Terminal()) == "FAIL"


LIBRARY = "/site/lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /venv/a.so)"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/a.yaml"),
            "/a.yaml: Permission denied; check its permissions",
        ),
        (OSError(errno.ENAMETOOLONG, "File name too long", "n" * 300), f"{'n' * 300}: File name too long; give"),
        (
            OSError(errno.ENOENT, "None", sys.executable),
            f"[Errno 2] None: {sys.executable!r}: the program or its .venv was",
        ),
        (MemoryError("7 GiB"), "7 GiB: memory ran out; take smaller values"),
        (ImportError(LIBRARY), f"{LIBRARY}; unset LD_LIBRARY_PATH"),
        (OSError(LIBRARY), f"{LIBRARY}; unset LD_LIBRARY_PATH"),
        (OSError("/a.so: file too short"), "/a.so: file too short; unset LD_LIBRARY_PATH"),
        (ImportError("a.so.4: cannot open: No such file"), "a.so.4: cannot open: No such file; load the module"),
        (UserError("\x1b[31mkey:\x00\x00no\tkey  here"), " [31mkey: no key  here"),
        (UserError("data.source: got 'x', allowed: table"), "data.source: got 'x', allowed: table\n"),
        (UserError("key: no such key\nkey: got 1"), "key: no such key\nerror: key: got 1\n"),
    ],
)
def test_an_error_is_a_line_of_plain_text_with_what_was_refused_and_what_to_do(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert exit_status(work) == 2
    found = capsys.readouterr().err
    assert found.startswith(f"error: {told}")
    assert found.count("\n") == max(1, told.count("\n"))


def test_a_module_that_was_moved_away_while_a_program_ran_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: len(importlib.import_module("pydantic.gone").__name__)) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert all(words in told for words in ("error: ", "pydantic.gone", ".venv", "repeat the command"))


@pytest.mark.medium
def test_signals_that_the_caller_blocks_or_ignores_for_itself_end_a_program_and_its_children_tell_their_status() -> (
    None
):
    shell = "import signal as s, sys; from subprocess import run; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGTERM]); "
    shell += "s.signal(s.SIGCHLD, s.SIG_IGN); import os; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    program = "import os, subprocess as p; from configs.arguments import exit_status; "
    program += "exit_status(lambda: print(p.run(['false']).returncode, flush=True) or os.kill(os.getpid(), 15) or 0)"
    done = python("-c", shell, "-c", program)
    assert (done.stdout, done.returncode) == ("1\n", -signal.SIGTERM)


@pytest.mark.parametrize(("place", "status", "told"), [("/dev/full", 2, "disk is full"), ("&-", 0, "")])
def test_an_output_that_takes_no_words_is_one_line_or_nothing(place: str, status: int, told: str) -> None:
    program = "import sys; from configs.arguments import exit_status as run; sys.exit(run(lambda: print('words') or 0))"
    shell = f'exec "$0" -c "$1" >{place}'
    done = run_program("sh", "-c", shell, sys.executable, program)
    assert (done.returncode, done.stderr.count("\n")) == (status, int(bool(told)))
    assert told in done.stderr


@pytest.mark.parametrize(
    ("words", "wrong", "remedy"),
    [
        (["--stepz=3", "--other"], "--stepz", "did you mean '--steps'?"),
        (["--step", "3"], "--step", "did you mean '--steps'?"),
        (["--clusters"], "--clusters", "did you mean '--cluster'?"),
        (["--qqq"], "--qqq", "choose one of --cluster, --from, --help, --loud, --run-dir, --set, --steps, -h"),
        (["a", "steps", "--lout"], "steps", ""),
        (["--batch-size=8"], "--batch-size", "write --set batch.global_size=8"),
        (["--seed", "3"], "--seed", "write --set run.seed=VALUE"),
        (["--partition=a"], "--partition", "write --set cluster.scheduler.queue=a"),
        (["--gpu"], "--gpu", "write --set cluster.device=VALUE"),
        (["--pretrained=x.pth"], "--pretrained", "write --set model.parameters=x.pth"),
        (["--dry-run", "a"], "--dry-run", "./run.sh plan RECIPE tells what a run would do"),
        (["a", "--loud", "3"], "3", "--loud takes no value"),
        (["a", "=", "2"], "=", "write --set KEY=VALUE without spaces"),
        (["a", "run.seed=2"], "run.seed", "write --set run.seed=2"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line_and_an_option_of_other_programs_by_the_setting_that_is_meant(
    words: list[str], wrong: str, remedy: str
) -> None:
    parser = Parser(prog="prog")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--run-dir")
    add_place(parser)
    add_from(parser)
    assert parser.parse_args(["--steps=3", "a"]).steps == 3
    with pytest.raises(UserError, match=r"^argument --steps: invalid int value: 'x'; see prog --help$"):
        parser.parse_args(["--steps", "x"])
    with pytest.raises(UserError) as caught:
        parser.parse_args(words)
    assert str(caught.value).startswith(f"'{wrong}")
    assert " is not expected here; " in str(caught.value)
    assert str(caught.value).endswith(f"{remedy}{'; ' if remedy else ''}see prog --help")


@pytest.mark.parametrize("words", [["--out", ""], ["--out="], ["a", ""]])
def test_an_empty_word_is_no_path_to_the_current_folder(words: list[str]) -> None:
    parser = Parser(prog="./run.sh verb")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    with pytest.raises(UserError, match=r"^argument (--out|paths): got '', .*; give another path; see "):
        parse(parser, dict, words)
