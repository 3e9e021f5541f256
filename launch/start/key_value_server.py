"""The key-value server behind Horovod's rendezvous: values by path over HTTP, and answers that wait for their value.

While ranks over Gloo connect, each asks for the address of every other rank, and asks again after 10 ms where the other
one has not come yet. Horovod's own server starts a thread for each question, keeps five connections waiting, and
answers "not found" at once, so 64 ranks spend their time on asking. This server holds a question until the value is
there. One thread answers all of them.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

_HOLD_S = 2.0
"""Longest time before a question without a value is answered. The asking rank looks at its own timeout in between."""
_BACKLOG = 1024
"""Connections that the kernel keeps for the server; with fewer than ranks, some try again after a second or more."""
_MOST_BYTES = 1 << 20
"""Longest request. The addresses of a thousand ranks take 136 kB."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class _Values:
    """The values, and the connections that wait for one."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.waiting: dict[bytes, set[_Connection]] = {}
        self.connections: set[_Connection] = set()

    def put(self, path: bytes, value: bytes) -> None:
        self.values[path] = value
        for connection in self.waiting.pop(path, ()):
            connection.answer(b"200 OK", value)

    def get(self, path: bytes, connection: _Connection) -> None:
        if path in self.values:
            connection.answer(b"200 OK", self.values[path])
            return
        self.waiting.setdefault(path, set()).add(connection)
        asyncio.get_running_loop().call_later(_HOLD_S, self._give_up, path, connection)

    def _give_up(self, path: bytes, connection: _Connection) -> None:
        waiting = self.waiting.get(path, set())
        if connection in waiting:
            waiting.remove(connection)
            connection.answer(b"404 Not Found")


class _Connection(asyncio.Protocol):
    """One request and its answer.

    Args:
        held: The values of the server.
    """

    def __init__(self, held: _Values) -> None:
        self._held, self._received, self._is_read = held, b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._held.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if self._is_read or len(self._received) > _MOST_BYTES:
            self._transport.abort()
        elif end and len(body) >= (int(length[1]) if length else 0):
            self._is_read = True
            self._obey(head.split(b"\r\n", 1)[0].split(b" "), body)

    def _obey(self, words: list[bytes], body: bytes) -> None:
        method, path = words[0], words[1] if len(words) > 1 else b""
        if method == b"GET":
            self._held.get(path, self)
        elif method == b"PUT":
            self._held.put(path, body)
            self.answer(b"200 OK")
        elif method == b"DELETE":  # A rank takes its address back when all ranks have connected.
            self._held.values.pop(path, None)
            self.answer(b"200 OK")
        else:
            self.answer(b"400 Bad Request")

    def answer(self, status: bytes, value: bytes = b"") -> None:
        self._transport.write(
            b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(value), value)
        )
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


@contextmanager
def serve_values(host: str) -> Iterator[int]:
    """Serve GET, PUT and DELETE while the block runs, to anybody who can reach the address.

    Args:
        host: The address to listen on; empty for every address.

    Yields:
        The port.
    """
    loop, held = asyncio.new_event_loop(), _Values()
    listener = socket.create_server((host, 0), backlog=_BACKLOG)
    server = loop.run_until_complete(loop.create_server(partial(_Connection, held), sock=listener, backlog=_BACKLOG))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(server, held))
        loop.close()


async def _end(server: asyncio.AbstractServer, held: _Values) -> None:
    server.close()
    for connection in list(held.connections):
        connection.abort()
    await asyncio.sleep(0)  # Lets the connections close.
