"""horovodrun with a rendezvous that other machines cannot reach, and with an ssh that checks them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from configs.programs import Program, command_of

_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


@pytest.mark.slow  # by horovodrun's imports
@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed here")
def test_the_rendezvous_of_ranks_of_this_machine_listens_on_the_loopback_only(tmp_path: Path) -> None:
    looks = f"cat /proc/net/tcp >{tmp_path}/sockets; echo $HOROVOD_GLOO_RENDEZVOUS_PORT >{tmp_path}/port"
    python, *words = command_of(Program.HOROVODRUN, "-np", "1", "--gloo", "bash", "-c", looks)
    done = subprocess.run(
        [python, "-X", "importtime", *words], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\| +horovod\.runner\.launch$", done.stderr, re.MULTILINE)
    assert not re.search(r"\| +mxnet$", done.stderr, re.MULTILINE), "no rank starts before that import has ended"
    port = int((tmp_path / "port").read_text(encoding="utf-8"))
    rows = [row.split() for row in (tmp_path / "sockets").read_text(encoding="utf-8").splitlines()[1:]]
    at = [row[1].split(":")[0] for row in rows if row[3] == _LISTENS and int(row[1].split(":")[1], 16) == port]
    assert at == ["0100007F"], "127.0.0.1, in the order of this processor's bytes"


@pytest.mark.slow  # by horovodrun's imports
@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed here")
def test_ssh_checks_host_keys_asks_nothing_and_notices_a_host_that_is_gone(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/words\nexit 255\n', encoding="utf-8")
    ssh.chmod(0o755)
    command = command_of(Program.HOROVODRUN, "-np", "1", "-H", "elsewhere:1", "--gloo", "true")
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode
    words = (tmp_path / "words").read_text(encoding="utf-8")
    assert words.startswith("-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=4 elsewhere ")
    assert "StrictHostKeyChecking" not in words


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put modules with the names that our horovodrun changes in the place of Horovod, whose imports take seconds."""
    names = ("", ".runner", ".runner.gloo_run", ".runner.launch", ".runner.http", ".runner.http.http_server",
             ".runner.util", ".runner.util.remote")  # fmt: skip
    modules: dict[str, Any] = {name: ModuleType(f"horovod{name}") for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"horovod{name}", module)
        if name:
            parent, _, last = name.rpartition(".")
            setattr(modules[parent], last, module)
    monkeypatch.delitem(sys.modules, "launch.start.horovodrun", raising=False)
    return modules


def test_horovods_own_command_gets_the_rendezvous_the_ssh_and_the_answer_of_this_program(
    horovod: dict[str, Any],
) -> None:
    told: list[object] = []

    def find_port(serve: Callable[[tuple[str, int]], str]) -> str:
        return serve(("", 4567))

    def launch_gloo(*arguments: object) -> None:
        told.append(arguments)
        told.append(http_server.find_port(lambda place: f"{place[0]}:{place[1]}"))

    def run_commandline() -> None:
        told.append(horovod[".runner.launch"].gloo_built(verbose=True))
        told.append(horovod[".runner.util.remote"].SSH_COMMAND_PREFIX)
        horovod[".runner.gloo_run"].launch_gloo("command", "settings", "10.0.0.7")

    http_server = horovod[".runner.http.http_server"]
    http_server.find_port = find_port
    horovod[".runner.gloo_run"].launch_gloo = launch_gloo
    horovod[".runner.launch"].run_commandline = run_commandline
    assert import_module("launch.start.horovodrun").main() == 0
    assert told == [
        True,
        "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=4",
        ("command", "settings", "10.0.0.7"),
        "10.0.0.7:4567",
    ]
