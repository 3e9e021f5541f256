"""Read lists of hosts, those of ``./run.sh submit --hosts``: with commas, ranges or from a file."""

import ipaddress
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

from configs.errors import UserError
from configs.reading import read_text

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_RANGE = re.compile(r"(?P<before>[^\[\]]*)\[(?P<numbers>[0-9,\s-]+)\](?P<after>.*)")
_OUTER_COMMA = re.compile(r",(?![^\[\]]*\])")
_MOST = 10_000
_ALLOWED = "names or addresses separated by commas, with ranges as in node[1-4], or @FILE with one on each line"


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts that a user lists.

    Args:
        text: ``alpha,beta``; ``node[01-04,7]`` as Slurm writes it; or ``@FILE`` with lines of such words and comments
            after ``#``.

    Raises:
        UserError: A part is empty or no name, or a host occurs twice.
    """
    hosts = [host for part in _parts(text) for host in _expanded(part)]
    for host in hosts:
        if not (_NAME.fullmatch(host) or _is_address(host)):
            raise UserError(f"--hosts: got {host!r}, allowed: {_ALLOWED}")
    host, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise UserError(f"--hosts: {host} is named twice; each host takes part once")
    return tuple(hosts)


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _parts(text: str) -> list[str]:
    """Return the text's parts, or those of the lines of the file that it names."""
    lines = [text]
    if text.startswith("@"):
        try:
            file = read_text(Path(text[1:]).expanduser())
        except (OSError, RuntimeError) as error:  # RuntimeError: of a user without a home
            why = getattr(error, "strerror", None) or error
            raise UserError(f"--hosts: {text[1:]}: cannot be read: {why}; give a text file of host names") from None
        lines = [line for each in file.splitlines() if (line := each.partition("#")[0].strip())]
    parts = [part.strip() for line in lines for part in _OUTER_COMMA.split(line)]
    return parts or [""]


def _expanded(part: str) -> list[str]:
    """Return the hosts of a part with a range in it: ``node[08-10]`` is node08, node09 and node10."""
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    hosts: list[str] = []
    for numbers in found["numbers"].split(","):
        first, _, last = (word.strip() for word in numbers.partition("-"))
        last = last or first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last) < int(first) + _MOST):
            raise UserError(f"--hosts: got the range {numbers.strip()!r} in {part}, allowed: for example 1-4")
        numbered = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        hosts += [host for number in numbered for host in _expanded(f"{found['before']}{number}{found['after']}")]
    return hosts
