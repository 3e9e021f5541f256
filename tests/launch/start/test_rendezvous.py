"""Horovod's rendezvous listens where the ranks are, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.start.rendezvous import serve_rendezvous

_LISTENS = "0A"


def _addresses(port: int) -> set[str]:
    """Return the addresses, in the kernel's hexadecimal form, on which a process listens at a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == _LISTENS and int(row[1].split(":")[1], 16) == port}


@pytest.mark.parametrize(("is_local", "address"), [(True, "0100007F"), (False, "00000000")])
def test_the_rendezvous_of_one_machine_is_out_of_reach_of_others(is_local: bool, address: str) -> None:
    with serve_rendezvous(1, 2, is_local=is_local) as port:
        assert _addresses(port) == {address}
