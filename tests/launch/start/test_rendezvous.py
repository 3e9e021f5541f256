"""The servers by which ranks meet listen where the ranks are, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.start import store
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


def test_the_store_of_one_machine_is_opened_on_the_loopback_before_any_rank_starts() -> None:
    with store.local_ranks(2) as start:
        server, other = start(0), start(1)
        assert _addresses(int(server.variables["MASTER_PORT"])) == {"0100007F"}
    assert len(server.descriptors) == 1
    assert other.descriptors == ()
    assert (other.variables["RANK"], other.variables["WORLD_SIZE"]) == ("1", "2")


def test_the_store_of_several_nodes_is_at_addresses_that_other_nodes_can_reach() -> None:
    assert "127.0.0.1" in store._addresses(1)
    assert not [address for address in store._addresses(2) if address.startswith("127.")]
