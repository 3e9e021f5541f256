"""The addresses of this machine's network interfaces."""

import socket

import pytest

from train.comm.interfaces import ipv4_addresses


def test_an_interface_that_has_no_address_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known, named = ipv4_addresses(), socket.if_nameindex()
    assert known["lo"] == "127.0.0.1"
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(99, "gone0"), *named])
    assert ipv4_addresses() == known
