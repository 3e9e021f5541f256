"""Real ranks over a shaped loopback, and every transfer reduces every gradient once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.programs import Program, command_of
from launch.start.link import can_shape, shaped
from train.bench.bench_overlap import _bits_per_s, _figures
from train.bench.launching import run_ranks
from train.bench.programs.overlap_ours import NONE, OVERLAPPED, SERIAL, Transfer
from train.bench.samples import read_samples

SMALL = ["--set", "model.name=resnet8", "--set", "model.image_size=16", "--set", "batch.global_size=4"]

LINK = "cluster.communication.link_bytes_per_s"

TRANSFER = """
import socket, threading, time
server = socket.create_server(("127.0.0.1", 0))
out = socket.create_connection(server.getsockname())
into, _ = server.accept()
begin = time.monotonic()
threading.Thread(target=out.sendall, args=(bytes(4_000_000),)).start()
left = 4_000_000
while left:
    left -= len(into.recv(1 << 20))
print(time.monotonic() - begin)
"""

needs_link = pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")


@needs_link
def test_a_shaped_link_lets_no_more_pass_than_it_may() -> None:
    command = [*shaped(50e6 / 8), sys.executable, "-c", TRANSFER]
    took_s = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The token bucket passes its own bytes at once, and one direction may use the half of the rate of the other one.
    assert took_s > 8 * (4_000_000 - (128 << 10)) / 100e6


@needs_link
@pytest.mark.ranks
def test_two_ranks_write_a_sample_a_round_of_every_transfer_over_a_shaped_link() -> None:
    transfers = [
        Transfer(NONE),
        Transfer(SERIAL, 1 << 18),
        Transfer(OVERLAPPED, 1 << 16),
        Transfer(OVERLAPPED, order="first"),
        Transfer(OVERLAPPED, wire="float16"),
        Transfer(OVERLAPPED, 1 << 14, deferred=0.3),
    ]
    words = [*SMALL, "--rounds", "2", "--steps", "1", *(transfer.name for transfer in transfers)]
    command = command_of(Program.OVERLAP_OURS, *words)
    found = read_samples(run_ranks(command, overrides=[f"{LINK}=125e6"]))
    assert {Transfer.parse(name) for name in found} == set(transfers)
    assert all(len(samples) == 2 and all(each["step_ms"] > 0 for each in samples) for samples in found.values())


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 2000), st.sampled_from(["last", "first"]))
def test_every_order_sends_every_gradient_once(sizes: list[int], cap: int, order: str) -> None:
    buckets = Transfer(OVERLAPPED, cap, order)._buckets(sizes).order
    sent = [index for bucket in buckets for index in bucket]
    assert sent == sorted(range(len(sizes)), reverse=order == "last")


def test_the_hidden_fraction_is_the_part_of_serial_that_is_not_exposed() -> None:
    none, serial, own = {"step_ms": 100.0}, {"step_ms": 200.0}, {"step_ms": 120.0}
    assert _figures(Transfer(OVERLAPPED), own, none, serial) == {
        "step_ms": 120.0,
        "exposed_ms": 20.0,
        "hidden_fraction": pytest.approx(0.8),
    }
    assert _figures(Transfer(SERIAL), serial, none, serial) == {"step_ms": 200.0, "exposed_ms": 100.0}


def test_a_link_that_is_not_a_speed_is_refused_in_one_line() -> None:
    assert (_bits_per_s("2.5"), _bits_per_s("doubling")) == (2.5e9, None)
    for word in ("fast", "-1", "0"):
        with pytest.raises(ValueError, match=f"--links {word}: allowed: Gb/s above 0, or doubling"):
            _bits_per_s(word)
