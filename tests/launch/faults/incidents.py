"""What happens to a run besides a fault in one phase: second starts, restarts, signals, disks. Each is tried for real.

Every incident ends with the run's own end, if need be after ``--resume``, and with the bits of an undisturbed run.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil

from logs.folder import RunFolder
from tests.launch.faults.disturbed import WAYS
from tests.launch.faults.scene import (
    GIVE_UP_S,
    Incident,
    Scene,
    Told,
    cut_network,
    kill_script,
    on_two_machines,
    preload,
)
from tests.launch.scheduled import ranks
from tests.runs import read_summary

_STALE_S = 70
_PAUSE_S = 15


def _failure(scene: Scene) -> str:
    """Return why the run ended, as its summary says; empty if nobody could write one."""
    return str(read_summary(scene.folder)["failure"]) if (scene.folder / "summary.json").exists() else ""


def _ends(
    harm: Callable[[Scene, subprocess.Popen[bytes]], object], status: int, words: str = ""
) -> Callable[[Scene], Iterator[Told]]:
    """Return an incident that ends the run.

    Args:
        harm: What happens to a run that has a checkpoint.
        status: The launcher's exit status.
        words: Of the line that is told. If empty, why the run failed.
    """

    def play(scene: Scene) -> Iterator[Told]:
        launcher = scene.begin()
        harm(scene, launcher)
        ended = scene.end(launcher)
        assert ended[0] == status, scene.output.read_text(encoding="utf-8")
        yield Told(*ended, scene.line(words) if words else _failure(scene))
        if scene.folder.exists():
            yield scene.resume()

    return play


def _goes_on(
    harm: Callable[[Scene, subprocess.Popen[bytes]], object], words: str, *options: str
) -> Callable[[Scene], Iterator[Told]]:
    """Return an incident that the run survives, and of which a line with these words is told."""

    def play(scene: Scene) -> Iterator[Told]:
        launcher = scene.begin(*options)
        harm(scene, launcher)
        status, _ = scene.end(launcher)
        assert status == 0, scene.output.read_text(encoding="utf-8")
        yield Told(status, None, scene.line(words))
        scene.require_the_same_end()

    return play


def _signal(number: signal.Signals) -> Callable[[Scene, subprocess.Popen[bytes]], None]:
    return lambda _, launcher: launcher.send_signal(number)


def _kill_ranks(count: int | None = None) -> Callable[[Scene, subprocess.Popen[bytes]], None]:
    """Return what kills the last ``count`` ranks; all of them if None."""

    def harm(scene: Scene, _: subprocess.Popen[bytes]) -> None:
        for pid in ranks(scene.folder)[-count if count else 0 :]:
            os.kill(pid, signal.SIGKILL)

    return harm


def _children(launcher: subprocess.Popen[bytes]) -> list[int]:
    return [child.pid for child in psutil.Process(launcher.pid).children()]


def _kill_foreign_launcher(_: Scene, launcher: subprocess.Popen[bytes]) -> None:
    os.kill(_children(launcher)[0], signal.SIGKILL)


def _freeze_launcher(scene: Scene, launcher: subprocess.Popen[bytes]) -> None:
    own = _children(launcher) if scene.way.launcher != "local" else []
    for pid in (launcher.pid, *own):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(_PAUSE_S)
    for pid in (*own, launcher.pid):
        os.kill(pid, signal.SIGCONT)


def _second_start(scene: Scene) -> Iterator[Told]:
    first = scene.begin()
    begin = time.monotonic()
    status = scene.start().wait(timeout=GIVE_UP_S)
    assert (status, first.poll()) == (2, None)
    yield Told(status, time.monotonic() - begin, scene.line("error: "))
    assert scene.end(first)[0] == 0
    scene.require_the_same_end()


def _owner_elsewhere(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    launcher.kill()
    scene.end(launcher)
    claim = scene.folder / "claims" / "1.json"
    record = json.loads(claim.read_text(encoding="utf-8"))
    claim.write_text(json.dumps({**record, "host": "beta", "boot": "another"}), encoding="utf-8")
    status, seconds = scene.end(scene.start())
    assert status == 2
    yield Told(status, seconds, scene.line("error: "))
    os.utime(claim, (time.time() - _STALE_S,) * 2)
    status, _ = scene.end(scene.start())
    assert status == 0
    yield Told(status, None, scene.line("takes over from"))
    scene.require_the_same_end()


def _cut_data(scene: Scene) -> Iterator[Told]:
    path = scene.data / "digits" / "train.rec"
    content = path.read_bytes()
    told = _ends(lambda *_: os.truncate(path, 4096), 1)(scene)
    yield next(told)
    assert "train.rec has 4,096 bytes" in _failure(scene)
    path.write_bytes(content)
    yield from told


def _clock_jumps(scene: Scene) -> Iterator[Told]:
    trigger = preload(scene, "jumping_clock")

    def jump(scene: Scene, _: subprocess.Popen[bytes]) -> None:
        trigger.touch()
        scene.wait_until(lambda: any(path.stat().st_mtime for path in RunFolder(scene.folder).checkpoints.files()[1:]))
        trigger.unlink()

    yield from _goes_on(jump, "MLPerf training 4.0.0 log check")(scene)


def _closed_terminal(scene: Scene) -> Iterator[Told]:
    terminal = scene.begin(in_terminal=True)
    terminal.kill()
    begin = time.monotonic()
    scene.end(terminal)
    status = scene.folder.parent / "status"
    while not status.exists():
        assert time.monotonic() < begin + GIVE_UP_S
        time.sleep(0.05)
    yield Told(int(status.read_text(encoding="utf-8")), time.monotonic() - begin, _failure(scene))
    yield scene.resume()


def _disk_errors(
    error: int, target: str, times: int, play: Callable[..., Callable[[Scene], Iterator[Told]]], *words: object
) -> Callable[[Scene], Iterator[Told]]:
    """Return the incident that writes of files with ``target`` in their path fail: ``_goes_on`` or ``_ends``."""

    def disturb(scene: Scene) -> Iterator[Told]:
        path = target.format(folder=scene.folder)
        trigger = preload(scene, "failing_disk", FAIL_ERRNO=str(error), FAIL_PATH=path, FAIL_TIMES=str(times))
        for told in play(lambda *_: trigger.touch(), *words)(scene):
            # horovodrun adds a traceback of its own.
            assert scene.way.launcher == "horovodrun" or "Traceback" not in scene.output.read_text(encoding="utf-8")
            yield told

    return disturb


def _delete_folder(scene: Scene, _: subprocess.Popen[bytes]) -> None:
    shutil.rmtree(scene.folder)


_ONE_NODE = tuple(way for way in WAYS if way.nodes == 1 and not way.in_slurm and way.engine == "mxnet")
_LOCAL = _ONE_NODE[:1]
INCIDENTS = (
    Incident(("a second start in the folder of a run that is still running",), _second_start, _ONE_NODE),
    Incident(
        ("a start in the folder of a run on another node", "the same, 60 s after the other run's last heartbeat"),
        _owner_elsewhere,
        _LOCAL,
    ),
    Incident(
        ("kill -9 of a rank, with `--max-restarts 2`",),
        _goes_on(_kill_ranks(1), "restart 1 of at most 2", "--max-restarts", "2"),
        _ONE_NODE,
    ),
    Incident(
        ("kill -9 of `./run.sh train`", "the same, then `--resume`"), _ends(_signal(signal.SIGKILL), 137), _ONE_NODE
    ),
    Incident(
        ("SIGUSR1 to `./run.sh train` (a scheduler's notice of the time limit)", "the notice, then `--resume`"),
        _ends(_signal(signal.SIGUSR1), 75),
        _ONE_NODE,
    ),
    Incident(("Ctrl-C", "Ctrl-C, then `--resume`"), _ends(_signal(signal.SIGINT), 130), _ONE_NODE),
    Incident(
        (f"kill -STOP of `./run.sh train` and of the launcher, kill -CONT after {_PAUSE_S} s",),
        _goes_on(_freeze_launcher, "MLPerf training 4.0.0 log check"),
        _ONE_NODE,
    ),
    Incident(("the packed images are truncated", "the images are restored, then `--resume`"), _cut_data, _ONE_NODE),
    Incident(
        ("writing one checkpoint fails with EIO",),
        _disk_errors(errno.EIO, "/checkpoints/", 1, _goes_on, "no checkpoint after step"),
        _ONE_NODE,
    ),
    Incident(
        ("writing every checkpoint fails with ESTALE (NFS)", "the file server is repaired, then `--resume`"),
        _disk_errors(errno.ESTALE, "/checkpoints/", 1000, _ends, 1),
        _LOCAL,
    ),
    Incident(
        ("writing the log fails with EIO", "the disk is repaired, then `--resume`"),
        _disk_errors(errno.EIO, "/result_0.txt", 1, _ends, 1),
        _ONE_NODE,
    ),
    Incident(("the run folder is deleted",), _ends(_delete_folder, 1, "was deleted during the run"), _LOCAL),
    Incident(
        ("the file system of the run folder becomes read-only", "the file system is writable again, then `--resume`"),
        _disk_errors(errno.EROFS, "{folder}/", 1_000_000, _ends, 1, "read-only"),
        _ONE_NODE,
    ),
    Incident(("kill -9 of all ranks", "all ranks were killed, then `--resume`"), _ends(_kill_ranks(), 1), _ONE_NODE),
    Incident(
        ("kill -9 of horovodrun or mpirun", "the launcher was killed, then `--resume`"),
        _ends(_kill_foreign_launcher, 1),
        _ONE_NODE[1:],
    ),
    Incident(("the terminal is closed", "the terminal was closed, then `--resume`"), _closed_terminal, _ONE_NODE),
    Incident(("the system clock jumps by an hour and back",), _clock_jumps, _ONE_NODE),
    Incident(
        ("kill -9 of the job script on two machines", "the job script was killed, then `submit --resume`"),
        partial(on_two_machines, harm=kill_script),
        _ONE_NODE[1:],
    ),
    Incident(
        ("one of two machines loses its network", "the network is repaired, then `submit --resume`"),
        partial(on_two_machines, harm=cut_network),
        _ONE_NODE[1:],
    ),
)  # fmt: skip
