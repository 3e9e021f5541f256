"""The network interfaces of this machine. Linux only; imports the standard library only."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_REQUEST = struct.Struct("256s")
_ADDRESS = slice(20, 24)
"""Where ``struct ifreq`` holds the IPv4 address."""


def ipv4_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one, by the interface's name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, _REQUEST.pack(name.encode()))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[_ADDRESS])
    return found
