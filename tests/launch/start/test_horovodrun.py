"""horovodrun with a rendezvous that other machines cannot reach, and with an ssh that checks them."""

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from configs.programs import Program, command_of
from tests.launch.stand_in import write_program
from tests.programs import run_program

_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


@pytest.mark.slow  # by horovodrun's imports
@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed here")
def test_the_rendezvous_of_ranks_of_this_machine_listens_on_the_loopback_only(tmp_path: Path) -> None:
    looks = f"cat /proc/net/tcp >{tmp_path}/sockets; echo $HOROVOD_GLOO_RENDEZVOUS_PORT >{tmp_path}/port"
    python, *words = command_of(Program.HOROVODRUN, *["-np", "1", "--gloo", "-H", "localhost:1", "bash", "-c"], looks)
    # A job of an LSF without IBM's CSM, which horovodrun would ask.
    done = run_program(python, "-X", "importtime", *words, env={**os.environ, "LSB_JOBID": "7"})
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
    write_program(tmp_path / "ssh", f'echo "$@" >>{tmp_path}/words; exit 255')
    command = command_of(Program.HOROVODRUN, "-np", "1", "-H", "elsewhere:1", "--gloo", "true")
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode
    words = (tmp_path / "words").read_text(encoding="utf-8")
    assert words.startswith("-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=4 elsewhere ")
    assert "StrictHostKeyChecking" not in words
