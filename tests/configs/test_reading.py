"""A read that fails for a moment succeeds, one that fails for long is refused in one line, and no wait is wasted."""

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs import reading
from configs.reading import Unreadable, entries, exists, is_file, is_folder, patiently

PATH = Path("/server/run/summary.json")


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(reading, "time", clock := Clock())
    return clock


@pytest.fixture
def in_thread() -> Iterator[Callable[..., str]]:
    """Call functions in a thread of the test's own, because each thread has a patience of its own."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield lambda function: pool.submit(function).result()


def _reader(clock: Clock, number: int, until_s: float) -> Callable[[], str]:
    def read() -> str:
        if clock.now_s < until_s:
            raise OSError(number, os.strerror(number), str(PATH))
        return "content"

    return lambda: patiently(PATH, read)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, 999])
def test_what_fails_for_a_moment_is_read(number: int, clock: Clock, in_thread: Callable[..., str]) -> None:
    for trouble_s in (0.0, 0.01, 1.0, 3.5):
        begin_s = clock.now_s
        assert in_thread(_reader(clock, number, begin_s + trouble_s)) == "content"
        assert clock.now_s - begin_s <= trouble_s + 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_what_fails_for_long_is_refused_in_one_line_after_five_seconds(
    number: int, clock: Clock, in_thread: Callable[..., str]
) -> None:
    with pytest.raises(Unreadable) as caught:
        in_thread(_reader(clock, number, float("inf")))
    words = str(caught.value)
    assert words.startswith(f"{PATH}: cannot be read: {os.strerror(number)}; ")
    assert ("ulimit -n" in words) == (number == errno.EMFILE)
    assert "\n" not in words
    assert 3 < clock.now_s - 1000 <= 5


def test_many_refusals_cost_one_wait_a_minute(clock: Clock, in_thread: Callable[..., str]) -> None:
    waits = []
    for pause_s in (0, 0, 0, 61, 0):
        clock.now_s += pause_s
        begin_s = clock.now_s
        with pytest.raises(Unreadable):
            in_thread(_reader(clock, errno.EIO, float("inf")))
        waits.append(clock.now_s > begin_s)
    assert waits == [True, False, False, True, False]


def test_what_says_what_is_there_is_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    loop, file = tmp_path / "loop", tmp_path / "file"
    loop.symlink_to(loop)
    file.touch()
    for path in (tmp_path / "nothing", file / "below", tmp_path, loop, tmp_path / ("x" * 300)):
        with pytest.raises(OSError):
            patiently(path, path.read_bytes)
    assert clock.now_s == Clock().now_s


def test_a_look_tells_what_is_at_a_path(tmp_path: Path) -> None:
    file, link, broken, pipe = (tmp_path / name for name in ("file", "link", "broken", "pipe"))
    file.touch()
    link.symlink_to(file)
    broken.symlink_to("gone")
    os.mkfifo(pipe)
    odd = [Path("a\0b"), tmp_path / ("x" * 300), file / "below", broken, tmp_path / "nothing"]
    paths = [file, link, pipe, tmp_path, *odd]
    assert [path for path in paths if exists(path)] == [file, link, pipe, tmp_path]
    assert [path for path in paths if is_file(path)] == [file, link]
    assert [path for path in paths if is_folder(path)] == [tmp_path]
    assert entries(tmp_path) == [broken, file, link, pipe]
    assert [entries(path) for path in (file, tmp_path / "nothing")] == [[], []]
