"""Two machines that are really two, for ranks and job scripts: namespaces with ssh between. See ``machines.sh``."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from configs.load import ROOT
from tests.programs import run_program

NAMES = ("alpha", "beta")
PREFIX = "192.168.77."
"""Of the addresses that lead to the other machine."""
_NEEDED = ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "/usr/sbin/sshd")
_READY_S = 30


class Machine:
    """One of the machines.

    Args:
        name: Its host name.
        number: 1 or 2, the last number of its address.
        holder: The process that holds its namespaces.
        shared: The folder that the machines share.
    """

    def __init__(self, name: str, number: int, holder: int, shared: Path) -> None:
        self.name, self.number, self.holder, self.shared = name, number, holder, shared

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs ``words`` on this machine."""
        spaces = ["--net", "--uts", "--mount", "--ipc", "--pid"]
        return ["nsenter", f"--target={self.holder}", *spaces, f"--wd={ROOT}", "--", *words]

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine."""
        return run_program(*self.command(words), timeout=timeout)


@contextmanager
def two_machines(
    folder: Path, prefix: str = PREFIX, mask: int = 24, first: Mapping[str, str] | None = None
) -> Iterator[dict[str, Machine]]:
    """Run two machines while the block runs; they share ``folder`` and the program. Skip where that is not possible.

    Args:
        folder: Where runs and the machines' keys are.
        prefix: The addresses without their last number.
        mask: The length of the network's prefix.
        first: The address, with its mask, of a first interface of a machine, from which nobody can be reached.
    """
    missing = [command for command in _NEEDED if shutil.which(command) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"not here: {', '.join(missing)}" if missing else "namespaces of two machines need root")
    keys = folder / "machines"
    keys.mkdir(mode=0o700)
    _make_keys(keys, prefix)
    table = ["127.0.0.1 localhost", *(f"{prefix}{number} {name}" for number, name in enumerate(NAMES, 1)), ""]
    for name in NAMES:
        (keys / f"{name}.hosts").write_text("\n".join(table), encoding="utf-8")
    with ExitStack() as stack:
        found = {}
        for number, name in enumerate(NAMES, 1):
            found[name] = Machine(name, number, _start(stack, name, keys, folder), folder)
        for name, own in (first or {}).items():
            made, named = "link add name card0 type veth peer name card1", f"address add dev card0 {own}"
            for command in (made, named, "link set card0 up", "link set card1 up"):
                done = found[name].run("ip", *command.split())
                assert done.returncode == 0, done.stderr
        _connect(*(each.holder for each in found.values()))
        for each in found.values():
            address = ["dev", "eth0", f"{prefix}{each.number}/{mask}", *(["nodad"] if ":" in prefix else [])]
            for words in (["address", "add", *address], ["link", "set", "eth0", "up"]):
                done = each.run("ip", *words)
                assert done.returncode == 0, done.stderr
        yield found


_SLURM = """ClusterName=machines
SlurmctldHost=alpha
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Without munge and cgroups, like the Slurm of `tests.launch.scheduled`, but each node is a machine with a name."""


def start_slurm(machines: Mapping[str, Machine]) -> str:
    """Start a Slurm whose controller is alpha and whose nodes are the machines; it ends with them.

    Returns:
        What Slurm's clients need in their environment. Skips where Slurm is not installed.
    """
    missing = [command for command in ("sbatch", "srun", "slurmctld", "slurmd") if shutil.which(command) is None]
    if missing:
        pytest.skip(f"Slurm is not installed here ({', '.join(missing)})")
    folder = machines["alpha"].shared / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "slurm.conf").write_text(_SLURM.format(folder=folder, nodes=",".join(NAMES)), encoding="utf-8")
    client = f"SLURM_CONF={folder}/slurm.conf"
    daemons = [(machines["alpha"], "slurmctld"), *((each, "slurmd") for each in machines.values())]
    for machine, daemon in daemons:
        done = machine.run("env", client, daemon)
        assert done.returncode == 0, done.stderr
    give_up, asked = time.monotonic() + _READY_S, ("env", client, "sinfo", "-h", "-N", "-o", "%T")
    while (told := machines["alpha"].run(*asked)).stdout.count("idle") < len(NAMES):
        assert time.monotonic() < give_up, told.stdout + told.stderr
        time.sleep(0.1)
    return client


def _make_keys(folder: Path, prefix: str) -> None:
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    shutil.copy2(folder / "user_key.pub", folder / "authorized_keys")
    key = (folder / "host_key.pub").read_text(encoding="utf-8")
    addresses = [f"{prefix}{number}" for number in (1, 2)]
    (folder / "known_hosts").write_text(f"{','.join([*NAMES, *addresses])} {key}", encoding="utf-8")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user_key\nUserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile none\n"
        "ControlMaster no\n",
        encoding="utf-8",
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\n",
        encoding="utf-8",
    )


def _start(stack: ExitStack, name: str, keys: Path, folder: Path) -> int:
    """Start a machine; return the process in its namespaces."""
    spaces = ["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]
    script = Path(__file__).with_name("machines.sh")
    command = ["unshare", *spaces, *map(str, (script, name, keys, folder, ROOT))]
    with (keys / f"{name}.log").open("wb") as log:
        outer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop() -> None:
        outer.kill()
        outer.wait()

    stack.callback(stop)
    begin = time.monotonic()
    while not (keys / f"{name}.ready").exists():
        text = (keys / f"{name}.log").read_text(encoding="utf-8")
        if outer.poll() is not None and ("not permitted" in text or "unshare failed" in text):
            pytest.skip(f"this machine allows no namespaces: {text}")
        assert outer.poll() is None, text
        assert time.monotonic() < begin + _READY_S, text
        time.sleep(0.02)
    return int(psutil.Process(outer.pid).children()[0].pid)


def _connect(one: int, other: int) -> None:
    command = f"link add name eth0 netns {one} type veth peer name eth0 netns {other}"
    subprocess.run(["ip", *command.split()], check=True)
