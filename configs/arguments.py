"""The command line of every program: options that several verbs share, exit statuses, and text for a terminal.

Imports only `configs.errors`, `configs.interrupts`, `configs.synonyms` and the standard library, so that ``--help``
works before anything is installed.
"""

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, fields, is_dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO, TypeVar

from configs.errors import UserError, nearest
from configs.interrupts import ChildInterrupted
from configs.reading import CHECK_AND_REPEAT, may_pass
from configs.synonyms import synonym

T = TypeVar("T")

Style = Literal["plain", "strong", "good", "bad", "faint"]
"""What a text is to its reader: a heading is strong, PASS is good, FAIL and a failure are bad."""

_ALIKE = 0.7
"""How similar an option must be to be suggested; all options are somewhat alike, because they share two dashes."""

_LIMITS = {
    errno.EMFILE: "this process may open no more files; raise the limit (ulimit -n)",
    errno.EAGAIN: "no process or thread can be started; raise the limit (ulimit -u, or pids.max of the control group)",
}
"""What to do where the system refuses a file or a process by a limit of the user or the job."""

_LIBRARY = r"\.so[.\d]*: (?!cannot open(?!.*No such file))"
"""How the dynamic linker begins to say why it does not load a library, unless a limit or rights keep it closed."""

_CODES = {"strong": 1, "good": 32, "bad": 31, "faint": 2}


def painted(text: str, style: Style, stream: TextIO) -> str:
    """Return ``text`` in the colour of its style, if ``stream`` is a terminal that has them and NO_COLOR is empty."""
    has_colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style in _CODES and has_colour else text


def printable(text: str) -> str:
    """Return a text with a space for each run of control characters: a file of others must not steer the terminal."""
    parts = groupby(text, str.isprintable)
    return "".join("".join(letters) if is_printable else " " for is_printable, letters in parts)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, which gets an s or is ``plural`` unless the number is 1."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Return a time in two units, as ``3m05s`` or ``2h30m``."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def short_path(path: Path) -> str:
    """Return a path relative to the current folder if it lies below it, else as it is."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `UserError` instead of printing its usage and exiting."""

    def __init__(self, **settings: Any) -> None:
        if "epilog" in settings:  # Its examples are laid out in lines, and the description beside them.
            settings["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, **settings)
        self.register("type", Path, _path)

    def error(self, message: str) -> NoReturn:
        """Raise the error that refuses the command line.

        Raises:
            UserError: Always, with ``message`` and where to find help.
        """
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, arguments: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the parsed options and no other word. For a verb, `argparse` calls this method of the verb's parser.

        Args:
            arguments: The words of the command line. If None, `sys.argv` holds them.
            namespace: Object that takes the options. If None, a new one.

        Raises:
            UserError: The command line has a mistake; for an unknown option, the message has the nearest of this verb.
        """
        options, unknown = super().parse_known_args(arguments, namespace)
        if unknown:
            word, equals, value = unknown[0].partition("=")
            flags = [flag for action in self._actions for flag in action.option_strings]
            key = synonym(word) if word.startswith("--") else word if equals else None
            if key and "--set" in flags and not get_close_matches(word, {*flags} - {"--set"}, cutoff=_ALIKE):
                self.error(f"{word!r} is not expected here; write --set {key}={value or 'VALUE'}")
            if word.replace("-", "").replace("_", "") == "dryrun" and "--set" in flags and word not in flags:
                self.error(f"{word!r} is not expected here; ./run.sh plan RECIPE tells what a run would do")
            if not word:
                self.error(f"{unknown[0]!r} is not expected here; write --set KEY=VALUE without spaces")
            given = list(sys.argv[1:] if arguments is None else arguments)
            before = given[given.index(unknown[0]) - 1] if unknown[0] in given[1:] else ""
            if any(before in action.option_strings and action.nargs == 0 for action in self._actions):
                self.error(f"{word!r} is not expected here; {before} takes no value")
            hint = f"; {nearest(word, flags, cutoff=_ALIKE)}" if word.startswith("-") else ""
            self.error(f"{word!r} is not expected here{hint}")
        return options, unknown


def parse(parser: Parser, options_type: Callable[..., T], arguments: Sequence[str] | None = None) -> T:
    """Return the options of a program as an object of its own type.

    Args:
        parser: Its ``prog`` ends with the verb, as in ``./run.sh plan``.
        options_type: A frozen dataclass with a field for each option, named as the option's ``dest``, whose fields by
            `option` are added to the parser; or the function that does the work, with such arguments.
        arguments: The words of the command line; ``run.sh`` puts the verb first, which is dropped. If None, those of
            this process.

    Raises:
        UserError: The command line has a mistake.
    """
    if isinstance(options_type, type) and is_dataclass(options_type):
        add_options(parser, options_type)
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = parser.prog.rpartition(" ")[2]
    return options_type(**vars(parser.parse_args(words[words[:1] == [verb] :])))


def _path(text: str) -> Path:
    """Return the path of an option; without a word it would be the current folder, which nobody asked for."""
    if not text:
        raise argparse.ArgumentTypeError("got '', as from an empty variable of the shell; give another path")
    return Path(text)


def exit_status(work: Callable[[], int]) -> int:
    """Do the work of a program and return the exit status of its process.

    Returns:
        What ``work`` returns; 2 after a `UserError`, whose lines go to stderr, where a file cannot be reached, memory
        ran out or a module is gone, and at a limit of the user; 130 after Ctrl-C, of which one line tells, with the
        text of the `KeyboardInterrupt` if it has one; 1 if the reader of the output, as ``head`` or a pager, ended
        before the output did.
    """
    # A caller may leave both to its children: no signal would end a run, and each child would seem to end with 0.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # It was closed when the program began.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 (as long as the process)
    try:
        status = work()
        sys.stdout.flush()
    except (UserError, ImportError) as error:
        text = in_words(error).encode("utf-8", "backslashreplace").decode()  # A path may hold bytes that are no UTF-8.
        sys.stderr.write("".join(f"error: {printable(line)}\n" for line in text.splitlines()))
        return 2
    except ChildInterrupted:
        return 130
    except KeyboardInterrupt as error:
        after_echo = "\n" if sys.stderr.isatty() else ""  # The terminal has written ^C.
        sys.stderr.write(after_echo + ": ".join(["stopped by Ctrl-C", *map(str, error.args)]) + "\n")
        return 130
    except BrokenPipeError:
        _leave_stdout()
        return 1
    except (MemoryError, OSError) as error:
        words = _refused(error)
        if words is None:
            raise
        sys.stderr.write(f"error: {words}\n")
        return 2
    return status


def _refused(error: MemoryError | OSError) -> str | None:
    """Return what the operating system refused, and what to do; None of what no user can mend."""
    if isinstance(error, MemoryError):
        return f"{error}: memory ran out; take smaller values, or a machine with more memory".lstrip(": ")
    if error.errno == errno.ENOSPC and error.filename is None:  # Of a file, `logs.disk` tells.
        _leave_stdout()
        return "the output cannot be written whole: its disk is full; send it to another place"
    if re.search(_LIBRARY, str(error)) or error.filename == sys.executable:
        return in_words(error)
    if error.filename is None or error.errno in _LIMITS:
        return _LIMITS.get(error.errno or 0)
    remedy = f"{CHECK_AND_REPEAT}, or give another path" if may_pass(error) else "give another path"
    return f"{error.filename}: {error.strerror}; {remedy}"


def _leave_stdout() -> None:
    """Let what stdout still holds go nowhere: Python would report the same error once more as it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_words(error: Exception) -> str:
    """Return what an error says; of a module or a library that does not load, with the remedy.

    A module or an interpreter that is gone was there when the program started, after set-up.
    """
    if re.search(_LIBRARY, str(error)):
        if "cannot open" in str(error):
            return f"{error}; load the module that has it (in jobs: scheduler.setup), or install its package"
        return f"{error}; unset LD_LIBRARY_PATH or unload its module, or raise limits on memory (ulimit -v, ulimit -d)"
    if not isinstance(error, ImportError) and getattr(error, "filename", None) != sys.executable:
        return str(error)
    remedy = "the program or its .venv was moved or changed meanwhile; put it back, then repeat the command"
    if sys.prefix == sys.base_prefix:
        remedy = "this Python is not that of .venv; start the program by ./run.sh VERB, which takes that one"
    elif gone := [p for p in sys.path if not (p.startswith(sys.prefix) or p.endswith(".zip") or os.access(p, os.F_OK))]:
        remedy = f"{gone[0]} is gone, where set-up found packages; put it back, or rm -r .venv and ./run.sh setup anew"
    return f"{' '.join(str(error).split())}: {remedy}"


def option(text: str, default: Any = None, *, flag: str | None = None, **settings: Any) -> Any:
    """Return a field of a dataclass of options, of which `add_options` makes an option.

    Args:
        text: For the help, which adds the default.
        default: The value without the option; False for a switch.
        flag: The option. If None, the name of the field after two dashes.
        settings: Further arguments of `argparse.ArgumentParser.add_argument`; ``group``, the title of a section of the
            help, which begins with this option; and ``presets``, option -> the value for which it stands.
    """
    kind = {"action": "store_true"} if default is False and "action" not in settings else {}
    if default is not None and default is not False and default != ():
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" (default: {shown:g})" if isinstance(shown, float) else f" (default: {shown})"
    return field(default=default, metadata={"help": text, "flag": flag, **kind, **settings})


def add_options(parser: argparse.ArgumentParser, options_type: type) -> None:
    """Add the options of a dataclass, whose fields `option` has made."""
    section: Any = parser
    for each in fields(options_type):
        if not each.metadata:
            continue
        default = [*each.default] if isinstance(each.default, tuple) else each.default  # which an option may append to
        settings = {"default": default, **each.metadata}
        name, presets = settings.pop("flag") or flag(each.name), settings.pop("presets", {})
        if title := settings.pop("group", ""):
            section = parser.add_argument_group(title)
        if name.startswith("-"):
            settings["dest"] = each.name
        place = section.add_mutually_exclusive_group() if presets else section
        place.add_argument(name, **settings)
        for preset, value in presets.items():
            told = {"dest": each.name, "const": value, "default": default, "help": f"{name} {value}"}
            place.add_argument(preset, action="store_const", **told)


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``, for an option."""

    def parse(text: str) -> int:
        if not (text.isdecimal() and len(text) <= len(str(high)) and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"got {text!r}, allowed: whole numbers {low} to {high}")
        return int(text)

    return parse


def file_name(*endings: str) -> Callable[[str], Path]:
    """Return a parser of the name of a file to write, for an option; the empty ending allows a name without one."""

    def parse(text: str) -> Path:
        if Path(text).suffix.lower() not in endings:
            allowed = " or ".join(filter(None, endings))
            raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a name that ends with {allowed}")
        return _path(text)

    return parse


picture = file_name(".svg", ".png")
"""Parser of the name of a file for `logs.show.drawing.save_charts`, whose ending says what is drawn."""


def flag(name: str) -> str:
    """Return the option that a field of this name is."""
    return f"--{name.replace('_', '-')}"


def add_recipe(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the argument RECIPE, as ``recipe``."""
    words = "a name (./run.sh recipes lists them), a YAML file, or the config.yaml of a run"
    parser.add_argument("recipe", metavar="RECIPE", nargs="?" if is_optional else None, help=words)


def add_place(
    parser: argparse.ArgumentParser, *, cluster: str | None = None, default_name: str | None = "laptop"
) -> None:
    """Add ``--cluster``, as ``cluster``, and ``--set``, as ``overrides``.

    Args:
        parser: The parser of a verb.
        cluster: Value of ``cluster`` without the option.
        default_name: The default to name in the help; None for a verb that has no default.
    """
    default = f" (default: {default_name})" if default_name else ""
    words = f"a name in configs/clusters or a YAML file{default}"
    parser.add_argument("--cluster", metavar="C", default=cluster, help=words)
    words = "change a value of the recipe (run.epochs=3) or of the cluster (cluster.ranks_per_node=1); repeatable"
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], help=words)


def add_from(parser: argparse.ArgumentParser) -> None:
    """Add ``--from``, as ``start_from``; `logs.weights.starting_weights` makes a value of the recipe of it."""
    words = (
        "begin with these weights (fine-tuning): the folder of a run, whose checkpoint is that of an export, or a "
        "file of weights (.ckpt, .pth, .onnx, .safetensors, .npz); a classifier of another shape is re-initialised"
    )
    parser.add_argument("--from", metavar="RUN|FILE", dest="start_from", type=Path, help=words)


def override_words(overrides: Sequence[str]) -> list[str]:
    """Return the words of a command line that set these values: ``--set KEY=VALUE`` for each."""
    return [word for override in overrides for word in ("--set", override)]
