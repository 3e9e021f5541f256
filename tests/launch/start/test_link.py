"""A loopback that is shaped passes no more than its senders may send."""

import subprocess
import sys

import pytest

from launch.start.link import can_shape, shaped

_TRANSFER = """
import socket, sys, threading, time
def send_and_receive():
    server = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(server.getsockname())
    into, _ = server.accept()
    threading.Thread(target=out.sendall, args=(bytes(2_000_000),)).start()
    left = 2_000_000
    while left:
        left -= len(into.recv(1 << 20))
senders = [threading.Thread(target=send_and_receive) for _ in range(int(sys.argv[1]))]
begin = time.monotonic()
for each in senders:
    each.start()
for each in senders:
    each.join()
print(time.monotonic() - begin)
"""


@pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")
@pytest.mark.parametrize("senders", [2, 4])
def test_a_shaped_link_lets_no_more_pass_than_its_senders_may(senders: int) -> None:
    command = [*shaped(50e6 / 8, senders), sys.executable, "-c", _TRANSFER, str(senders)]
    took_s = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The token bucket passes its own bytes at once.
    assert took_s > 8 * (2_000_000 - (128 << 10) / senders) / 50e6
