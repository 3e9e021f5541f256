"""``python -m launch.start.horovodrun``: horovodrun with a closer rendezvous, and ssh that checks and notices hosts.

Horovod's own command listens on every address of the machine, also if all ranks are on this one, and asks nobody for a
password. It accepts every host key, and waits for ever for a host that is gone. Before it starts a rank, it imports
MXNet to learn whether Horovod has Gloo, which set-up has made sure of. The arguments are those of ``horovodrun``.
"""

import os
import sys
from typing import Any

from horovod.runner import gloo_run, launch
from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.driver import driver_service
from horovod.runner.http import http_server
from horovod.runner.util import lsf, remote

from configs.errors import REFUSED_STATUS
from configs.outputs import guard_outputs

_SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
"""Asks nothing, takes host keys as the user's own settings say, and ends 20 s after its host has ceased to answer."""


def main() -> int:
    """Run horovodrun with the arguments of this process; return 0, or 1 if a rank ended with another status.

    Where the hosts do not reach each other, the process ends with `REFUSED_STATUS`.
    """
    launch_gloo, find_port = gloo_run.launch_gloo, http_server.find_port
    common_interfaces = driver_service.get_common_interfaces

    def interfaces(settings: Any, all_hosts: Any, remote_hosts: Any, cache: Any) -> Any:
        """Leave the loopback out, over which the ranks of a single host meet, unless that host is this one."""
        found = common_interfaces(settings, all_hosts, remote_hosts, cache)
        return (set(found) - {"lo"} or found) if remote_hosts and found else found

    def launch_where_told(*arguments: Any) -> None:
        address = arguments[-1]  # of this machine, which the ranks get as that of the rendezvous
        http_server.find_port = lambda serve: find_port(lambda place: serve((address, place[1])))
        launch_gloo(*arguments)

    driver_service.get_common_interfaces = interfaces
    gloo_run.launch_gloo = launch_where_told
    launch.gloo_built = lambda **_: True
    if "-H" in sys.argv:  # Else it asks IBM's CSM about the hosts of an LSF job, which few sites of LSF have.
        lsf.LSFUtils.using_lsf = staticmethod(lambda: False)
    remote.SSH_COMMAND_PREFIX = _SSH
    try:
        launch.run_commandline()
    except RuntimeError as error:  # The ranks have told why they ended, and a traceback of horovodrun tells nothing.
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 1
    except TimeoutException:
        sys.stderr.write(
            "error: horovodrun's hosts have not reached each other in time; set cluster.node.interface to the network "
            "interface by which they do (ip route get ADDRESS names it)\n"
        )
        sys.stderr.flush()
        os._exit(REFUSED_STATUS)  # before horovodrun's threads print their tracebacks, and end with 1
    return 0


if __name__ == "__main__":
    guard_outputs()
    sys.exit(main())
