"""A link of a chosen speed between the ranks of one machine: a network namespace with a rate limit on its loopback."""

import functools
import os
import subprocess

from configs.errors import UserError

CANNOT_SHAPE = (
    "the loopback cannot be shaped here: it needs root or user namespaces, unshare, ip, tc, and a kernel with token "
    "buckets (sch_tbf)"
)

_BURST_BYTES = 128 << 10
"""Bytes that the token bucket lets pass at once: two of the loopback's largest packets."""

_QUEUE_MS = 400

_SCRIPT = (
    "ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst {burst} latency {queue}ms || exit 71\n"
    'exec "$@"'
)


def shaped(bytes_per_s: float, senders: int) -> list[str]:
    """Return the words that, put before a command line, run the command with a rate limit on the loopback.

    All processes of the command share the loopback. Processes that send at the same time, as the ranks of a ring do,
    get an equal part of the bucket's rate each; so that rate is ``senders`` times ``bytes_per_s``.

    This needs root or user namespaces, and ``unshare``, ``ip`` and ``tc``. The command ends with status 71 where the
    kernel has no token bucket.

    Args:
        bytes_per_s: The rate at which a process can send, in bytes per second, while it receives as much.
        senders: Number of processes that send at the same time.
    """
    script = _SCRIPT.format(rate=f"{8 * round(senders * bytes_per_s)}bit", burst=_BURST_BYTES, queue=_QUEUE_MS)
    own_user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", *own_user, "bash", "-c", script, "link"]


def require_link() -> None:
    """Raise if the loopback cannot be shaped.

    Raises:
        UserError: This machine or user lacks something that shaping needs.
    """
    if not can_shape():
        raise UserError(f"communication.link_bytes_per_s: {CANNOT_SHAPE}; leave the key out to use the plain loopback")


@functools.cache
def can_shape() -> bool:
    """Return whether the loopback can be shaped on this machine; it is tried once."""
    try:
        return subprocess.run([*shaped(1e8, senders=1), "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
