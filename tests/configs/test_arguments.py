"""Text for a terminal: colours only where they are wanted, and no control characters."""

import errno
import io

import pytest

from configs.arguments import Parser, add_place, exit_status, painted, printable
from configs.errors import UserError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


def test_a_file_of_another_user_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def look() -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/theirs/config.yaml")

    assert exit_status(look) == 2
    told = "error: /theirs/config.yaml: permission denied; ask the owner, or take another path\n"
    assert capsys.readouterr().err == told


def test_control_characters_become_a_space() -> None:
    assert printable("a\x00\x00\x1b[0m\tb  c") == "a [0m b  c"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--stepz=3", "--other"], "'--stepz' is not expected here; did you mean '--steps'?; see prog --help"),
        (["--step", "3"], "'--step' is not expected here; did you mean '--steps'?; see prog --help"),
        (["--qqq"], "'--qqq' is not expected here; choose one of --help, --loud, --steps, -h; see prog --help"),
        (["--lead"], "'--lead' is not expected here; choose one of --help, --loud, --steps, -h; see prog --help"),
        (["a", "steps", "--lout"], "'steps' is not expected here; see prog --help"),
        (["a", "run.seed=2"], "'run.seed' is not expected here; see prog --help"),
        (["--steps", "x"], "argument --steps: invalid int value: 'x'; see prog --help"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line_and_no_option_may_be_cut_short(words: list[str], told: str) -> None:
    parser = Parser(prog="prog")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("name", nargs="?")
    assert parser.parse_args(["--steps=3", "a"]).steps == 3
    with pytest.raises(UserError) as caught:
        parser.parse_args(words)
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--epochs", "3"], "'--epochs' is not expected here; write --set run.epochs=VALUE; see prog --help"),
        (["--batch-size=8"], "'--batch-size' is not expected here; write --set batch.global_size=8; see prog --help"),
        (["run.seed=2"], "'run.seed' is not expected here; write --set run.seed=2; see prog --help"),
        (["--zzz"], "'--zzz' is not expected here; choose one of --cluster, --help, --set, -h; see prog --help"),
        (["--clusters"], "'--clusters' is not expected here; did you mean '--cluster'?; see prog --help"),
    ],
)
def test_an_option_of_other_programs_is_answered_by_the_setting_that_is_meant(words: list[str], told: str) -> None:
    parser = Parser(prog="prog")
    add_place(parser)
    with pytest.raises(UserError) as caught:
        parser.parse_args(words)
    assert str(caught.value) == told
