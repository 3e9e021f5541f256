"""The key-value server behind Horovod's rendezvous: values by path over HTTP, and answers that wait for their value.

While ranks over Gloo connect, each asks for the address of every other rank, and asks again after 10 ms where the other
one has not come yet. Horovod's own server starts a thread for each question, keeps five connections waiting, and
answers "not found" at once, so 64 ranks spend their time on asking. This server holds a question until the value is
there. One thread answers all of them.
"""

import asyncio
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

_HOLD_S = 2.0
"""Longest time before a question without a value is answered. The asking rank looks at its own timeout in between."""
REQUEST_S = 10.0
"""Time for a request to arrive, and again for its body: a rank sends both at once."""
_BACKLOG = 1024
"""Connections that the kernel keeps for the server; with fewer than ranks, some try again after a second or more."""
_MOST_BYTES = 1 << 20
"""Longest request. The addresses of a thousand ranks take 136 kB."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class _Values:
    """The values by path; one that is asked for and not there yet is a future without a result."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._values: defaultdict[bytes, asyncio.Future[bytes]] = defaultdict(loop.create_future)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request of a connection, and answer it."""
        # A stranger on this machine may ask for anything, or keep a connection for nothing.
        with closing(writer), suppress(OSError, ValueError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
            length = _LENGTH.search(head)
            num_bytes = int(length[1]) if length else 0
            if num_bytes >= _MOST_BYTES:
                return
            body = await asyncio.wait_for(reader.readexactly(num_bytes), REQUEST_S)
            status, value = await self._obey(head.partition(b"\r\n")[0].split(b" "), body)
            head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(value))
            writer.write(head + value)

    async def _obey(self, words: list[bytes], body: bytes) -> tuple[bytes, bytes]:
        method, path = words[0], words[1] if len(words) > 1 else b""
        if method == b"GET":
            with suppress(asyncio.TimeoutError):
                return b"200 OK", await asyncio.wait_for(asyncio.shield(self._values[path]), _HOLD_S)
            return b"404 Not Found", b""
        if method == b"PUT":
            if self._values[path].done():
                del self._values[path]
            self._values[path].set_result(body)
        elif method == b"DELETE":  # A rank takes its address back when all ranks have connected.
            self._values.pop(path, None)
        else:
            return b"400 Bad Request", b""
        return b"200 OK", b""


@contextmanager
def serve_values(host: str) -> Iterator[int]:
    """Serve GET, PUT and DELETE while the block runs, to anybody who can reach the address.

    Args:
        host: The address to listen on; empty for every address.

    Yields:
        The port.
    """
    loop = asyncio.new_event_loop()
    # At a limit of open files, asyncio prints a thousand tracebacks, and tries again a second later.
    loop.set_exception_handler(lambda *_: None)
    listener = socket.create_server((host, 0), backlog=_BACKLOG)
    serving = asyncio.start_server(_Values(loop).answer, sock=listener, backlog=_BACKLOG)
    server = loop.run_until_complete(serving)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(server))
        loop.close()


async def _end(server: asyncio.AbstractServer) -> None:
    """End the connections that wait; their ranks learn it at once."""
    server.close()
    await asyncio.sleep(0.01)  # Connections that have just come are taken, so that they can be closed.
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(0)  # Lets the connections close.
