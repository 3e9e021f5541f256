"""What happens to a run besides a fault in one phase: second starts, restarts, signals, disks. Each is tried for real.

Every incident ends with the run's own end, if need be after ``--resume``, and with the bits of an undisturbed run.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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

_NOTICES = 200
_STALE_S = 70
_PAUSE_S = 15


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


def _killed_rank_with_restarts(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin("--max-restarts", "2")
    os.kill(ranks(scene.folder)[-1], signal.SIGKILL)
    status, _ = scene.end(launcher)
    assert status == 0
    yield Told(status, None, scene.line("restart 1 of at most 2"))
    scene.require_the_same_end()


def _signalled(number: signal.Signals, status: int) -> Callable[[Scene], Iterator[Told]]:
    def play(scene: Scene) -> Iterator[Told]:
        launcher = scene.begin()
        launcher.send_signal(number)
        ended = scene.end(launcher)
        assert ended[0] == status
        message = "" if number == signal.SIGKILL else str(read_summary(scene.folder)["failure"])
        yield Told(*ended, message)
        yield scene.resume()

    return play


def _children(launcher: subprocess.Popen[bytes]) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def _frozen_launcher(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    own = _children(launcher) if scene.way.launcher != "local" else []
    for pid in (launcher.pid, *own):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(_PAUSE_S)
    for pid in (*own, launcher.pid):
        os.kill(pid, signal.SIGCONT)
    status, _ = scene.end(launcher)
    assert status == 0
    yield Told(status, None, scene.line("MLPerf training 4.0.0 log check"))
    scene.require_the_same_end()


def _cut_data(scene: Scene) -> Iterator[Told]:
    path = scene.data / "digits" / "train.rec"
    content = path.read_bytes()
    launcher = scene.begin()
    os.truncate(path, 4096)
    status, seconds = scene.end(launcher)
    assert status == 1
    failure = str(read_summary(scene.folder)["failure"])
    assert "train.rec has 4,096 bytes" in failure
    yield Told(status, seconds, failure)
    path.write_bytes(content)
    yield scene.resume()


def _let_fail(scene: Scene, error: str, target: str, times: int) -> Path:
    """Let writes of files with ``target`` in their path fail, while the file that is returned exists."""
    return preload(scene, "failing_disk", FAIL_ERRNO=error, FAIL_PATH=target, FAIL_TIMES=str(times))


def _clock_jumps(scene: Scene) -> Iterator[Told]:
    trigger = preload(scene, "jumping_clock")
    launcher = scene.begin()
    trigger.touch()
    scene.wait_until(lambda: any(path.stat().st_mtime for path in RunFolder(scene.folder).checkpoints.files()[1:]))
    trigger.unlink()
    status, _ = scene.end(launcher)
    assert status == 0, scene.output.read_text(encoding="utf-8")
    yield Told(status, None, scene.line("MLPerf training 4.0.0 log check"))
    scene.require_the_same_end()


def _closed_terminal(scene: Scene) -> Iterator[Told]:
    terminal = scene.begin(in_terminal=True)
    terminal.kill()
    begin = time.monotonic()
    scene.end(terminal)
    status = scene.folder.parent / "status"
    while not status.exists():
        assert time.monotonic() < begin + GIVE_UP_S
        time.sleep(0.05)
    failure = str(read_summary(scene.folder)["failure"])
    yield Told(int(status.read_text(encoding="utf-8")), time.monotonic() - begin, failure)
    yield scene.resume()


def _many_notices(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    for _ in range(_NOTICES):
        launcher.send_signal(signal.SIGUSR1)
        time.sleep(0.005)
    status, seconds = scene.end(launcher)
    assert status == 75
    yield Told(status, seconds, str(read_summary(scene.folder)["failure"]))
    yield scene.resume()


def _disk_errors(error: str, target: str, times: int, status: int) -> Callable[[Scene], Iterator[Told]]:
    """Return the incident that the writes of files with ``target`` in their path fail with ``error``."""

    def play(scene: Scene) -> Iterator[Told]:
        trigger = _let_fail(scene, error, target, times)
        launcher = scene.begin()
        trigger.touch()
        ended = scene.end(launcher)
        assert ended[0] == status, scene.output.read_text(encoding="utf-8")
        if status == 0:
            yield Told(0, None, scene.line("no checkpoint after step"))
            scene.require_the_same_end()
        else:
            yield Told(*ended, str(read_summary(scene.folder)["failure"]))
            yield scene.resume()

    return play


def _all_ranks_killed(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    for pid in ranks(scene.folder):
        os.kill(pid, signal.SIGKILL)
    status, seconds = scene.end(launcher)
    assert status == 1
    yield Told(status, seconds, str(read_summary(scene.folder)["failure"]))
    yield scene.resume()


def _foreign_launcher_killed(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    os.kill(_children(launcher)[0], signal.SIGKILL)
    status, seconds = scene.end(launcher)
    assert status == 1
    yield Told(status, seconds, str(read_summary(scene.folder)["failure"]))
    yield scene.resume()


def _killed_while_it_resumes(scene: Scene) -> Iterator[Told]:
    first = scene.begin()
    first.kill()
    scene.end(first)
    again = scene.start()
    scene.wait_until(lambda: len(ranks(scene.folder)) > 1)
    os.kill(ranks(scene.folder)[-1], signal.SIGKILL)
    status, seconds = scene.end(again)
    assert status == 1
    yield Told(status, seconds, str(read_summary(scene.folder)["failure"]))
    yield scene.resume()


def _read_only_folder(scene: Scene) -> Iterator[Told]:
    trigger = _let_fail(scene, "EROFS", f"{scene.folder}/", 1_000_000)
    launcher = scene.begin()
    trigger.touch()
    status, seconds = scene.end(launcher)
    assert status == 1
    # horovodrun adds a traceback of its own.
    assert scene.way.launcher == "horovodrun" or "Traceback" not in scene.output.read_text(encoding="utf-8")
    yield Told(status, seconds, scene.line("read-only"))
    yield scene.resume()


def _deleted_folder(scene: Scene) -> Iterator[Told]:
    launcher = scene.begin()
    shutil.rmtree(scene.folder)
    status, seconds = scene.end(launcher)
    assert status == 1
    assert "Traceback" not in scene.output.read_text(encoding="utf-8")
    yield Told(status, seconds, scene.line("was deleted during the run"))


_ONE_NODE = tuple(way for way in WAYS if way.nodes == 1 and not way.in_slurm and way.engine == "mxnet")
_LOCAL = _ONE_NODE[:1]
INCIDENTS = (
    Incident(("a second start in the folder of a run that goes on",), _second_start, _ONE_NODE),
    Incident(
        ("a start in the folder of a run on another node", "the same, 60 s after that run's last sign of life"),
        _owner_elsewhere,
        _LOCAL,
    ),
    Incident(("kill -9 of a rank, with `--max-restarts 2`",), _killed_rank_with_restarts, _ONE_NODE),
    Incident(
        ("kill -9 of `./run.sh train`", "the same, then `--resume`"), _signalled(signal.SIGKILL, 137), _ONE_NODE
    ),
    Incident(
        ("SIGUSR1 to `./run.sh train`, a notice of the time limit", "the notice, then `--resume`"),
        _signalled(signal.SIGUSR1, 75),
        _ONE_NODE,
    ),
    Incident(("Ctrl-C", "Ctrl-C, then `--resume`"), _signalled(signal.SIGINT, 130), _ONE_NODE),
    Incident(
        (f"kill -STOP of `./run.sh train` and of the launcher, kill -CONT after {_PAUSE_S} s",),
        _frozen_launcher,
        _ONE_NODE,
    ),
    Incident(("the packed images are cut short", "the images put back, then `--resume`"), _cut_data, _ONE_NODE),
    Incident(
        ("a checkpoint's write fails with EIO",), _disk_errors("EIO", "/checkpoints/", 1, 0), _ONE_NODE
    ),
    Incident(
        ("every checkpoint's write fails with ESTALE (NFS)",), _disk_errors("ESTALE", "/checkpoints/", 1000, 0), _LOCAL
    ),
    Incident(
        ("the log's write fails with EIO", "the disk mended, then `--resume`"),
        _disk_errors("EIO", "/result_0.txt", 1, 1),
        _ONE_NODE,
    ),
    Incident(("the run folder is deleted",), _deleted_folder, _LOCAL),
    Incident(
        ("the file system of the run folder becomes read-only", "writable again, then `--resume`"),
        _read_only_folder,
        _ONE_NODE,
    ),
    Incident(("kill -9 of all ranks", "all ranks killed, then `--resume`"), _all_ranks_killed, _ONE_NODE),
    Incident(
        ("kill -9 of horovodrun or mpirun itself", "that one killed, then `--resume`"),
        _foreign_launcher_killed,
        _ONE_NODE[1:],
    ),
    Incident(
        ("kill -9 of a rank while the run is resumed", "that rank killed, then `--resume`"),
        _killed_while_it_resumes,
        _ONE_NODE,
    ),
    Incident(("the terminal is closed", "the terminal closed, then `--resume`"), _closed_terminal, _ONE_NODE),
    Incident(("the time of day jumps by an hour, and back",), _clock_jumps, _ONE_NODE),
    Incident(
        (f"SIGUSR1 {_NOTICES} times within a second", "the many notices, then `--resume`"), _many_notices, _ONE_NODE
    ),
    Incident(
        ("kill -9 of the job script of two machines", "that script killed, then `submit --resume`"),
        partial(on_two_machines, harm=kill_script),
        _ONE_NODE[1:],
    ),
    Incident(
        ("one of two machines loses its network", "the network mended, then `submit --resume`"),
        partial(on_two_machines, harm=cut_network),
        _ONE_NODE[1:],
    ),
)  # fmt: skip
