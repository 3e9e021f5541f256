"""Read lists of hosts, those of ``./run.sh submit --hosts``: with commas, ranges, slots or from a file."""

import contextlib
import ipaddress
import re
from pathlib import Path

from configs.errors import UserError
from configs.reading import read_text

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_SLOTS = re.compile(r"(?P<host>\S+?)\s*(?:\s+slots?\s*=\s*|:)(?P<slots>\d+)(\s+max[-_]slots\s*=\s*\d+)?")
_RANGE = re.compile(r"(?P<before>[^\[\]]*)\[(?P<numbers>[0-9,\s-]+)\](?P<after>.*)")
_OUTER_COMMA = re.compile(r",(?![^\[\]]*\])")
_MOST = 10_000


def parse_hosts(text: str, ranks_per_node: int) -> tuple[str, ...]:
    """Return the hosts that a user lists.

    Args:
        text: ``alpha,beta``; ``alpha:4,beta:4`` and ``alpha slots=4`` as horovodrun and mpirun take them;
            ``node[01-04,7]`` as Slurm writes it; or ``@FILE`` with lines of such words and comments after ``#``.
        ranks_per_node: The only count of slots that a host may have.

    Raises:
        UserError: A part is empty or no name, a host occurs twice, or a count of slots is not ``ranks_per_node``.
    """
    hosts = [host for part in _parts(text) for host in _expanded(_without_slots(part, ranks_per_node))]
    known: dict[str, str] = {}
    for host in hosts:
        name = _canonical(host)
        # A name without a domain is that of the host with the same name in a domain.
        twin = next((known[each] for each in known if name in (each, each.partition(".")[0])), None)
        twin = twin or known.get(name.partition(".")[0])
        if twin is not None:
            also = "" if twin == host else f", also as {twin}"
            raise UserError(f"--hosts: {host} is named twice{also}; each host takes part once")
        known[name] = host
    return tuple(hosts)


def _canonical(host: str) -> str:
    """Return the one spelling of a name or an address.

    Raises:
        UserError: It is neither.
    """
    if ":" in host:
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(host))
    elif _NAME.fullmatch(host):
        return host.lower().rstrip(".")
    raise UserError(f"--hosts: got {host!r}, allowed: names or addresses separated by commas{_hint(host)}")


def _parts(text: str) -> list[str]:
    """Return the text's parts, or those of the lines of the file that it names."""
    if not text.startswith("@"):
        lines = [text]
    else:
        try:
            file = read_text(Path(text[1:]).expanduser())
        except (OSError, RuntimeError) as error:  # RuntimeError: of a user without a home
            why = getattr(error, "strerror", None) or error
            raise UserError(f"--hosts: {text[1:]}: cannot be read: {why}; give a text file of host names") from None
        lines = [line for each in file.splitlines() if (line := each.partition("#")[0].strip())]
    parts = [part.strip() for line in lines for part in _OUTER_COMMA.split(line)]
    if not parts or not all(parts):
        raise UserError(f"--hosts: got {text!r}, which has an empty part; give names separated by commas")
    return parts


def _without_slots(part: str, ranks_per_node: int) -> str:
    """Return a part without its count of slots; an address of IPv6 loses its brackets."""
    is_address = part.count(":") > 1 and not part.startswith("[")
    found = None if is_address else _SLOTS.fullmatch(part)
    host = found["host"] if found else part
    if found and int(found["slots"]) != ranks_per_node:
        raise UserError(
            f"--hosts: {part} has {found['slots']} slots, and the cluster file says ranks_per_node: {ranks_per_node}; "
            "change the key, or leave the slots out"
        )
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host


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


def _hint(host: str) -> str:
    if "@" in host:
        return "; put the user of a host into ~/.ssh/config, and a file of hosts is @FILE"
    if "[" in host or "{" in host or "*" in host:
        return "; a range is node[1-4]"
    return "; put a comma between two hosts" if any(each.isspace() for each in host) else ""
