"""A link of a chosen speed between ranks of one machine: a network namespace whose loopback is shaped."""

from __future__ import annotations

import functools
import os
import subprocess

from configs.errors import UserError

__all__ = ["NO_LINK", "can_shape", "require_link", "shaped"]

NO_LINK = (
    "the loopback cannot be shaped here: it takes root or user namespaces, unshare, ip, tc, and a kernel with token "
    "buckets (sch_tbf)"
)

_BURST_BYTES = 128 << 10
"""What a token bucket lets pass at once: two of the loopback's largest packets."""

_QUEUE_MS = 400

_SCRIPT = (
    "ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst {burst} latency {queue}ms || exit 71\n"
    'exec "$@"'
)


def shaped(bytes_per_s: float) -> list[str]:
    """Give the words before a command line that make it run with such a link.

    All its processes share the loopback, so that two ranks that both send, as in a ring, get half of the bucket's
    rate each: the rate is set to twice ``bytes_per_s``, which is what a rank can send while it receives as much.

    Needs root or user namespaces, and ``unshare``, ``ip`` and ``tc``; the command ends with status 71 where
    the kernel has no token bucket.
    """
    script = _SCRIPT.format(rate=f"{16 * round(bytes_per_s)}bit", burst=_BURST_BYTES, queue=_QUEUE_MS)
    own_user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", *own_user, "bash", "-c", script, "link"]


def require_link() -> None:
    """Refuse where no loopback can be shaped.

    Raises:
        UserError: It takes more than this machine or user has.
    """
    if not can_shape():
        raise UserError(f"communication.link_bytes_per_s: {NO_LINK}; leave it out to take the loopback as it is")


@functools.cache
def can_shape() -> bool:
    """Try it, once."""
    try:
        return subprocess.run([*shaped(1e8), "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
