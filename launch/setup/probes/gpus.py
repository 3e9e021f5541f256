"""Print name and compute capability of each GPU that CUDA's driver library sees; fail if the library cannot be used.

The library is loaded in this process alone, because a library that does not fit the kernel's driver may crash.
"""

import ctypes
import sys

_CAPABILITY = (75, 76)
"""CUDA's attributes of a device for the major and the minor number of the compute capability."""


def main() -> None:
    """Print a line for each GPU: the name, a tab, and for example 8.0."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(function: str, *arguments: object) -> None:
        if cuda[function](*arguments):
            sys.exit(f"{function} failed")

    count, device, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        name, capability = ctypes.create_string_buffer(256), []
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, len(name), device)
        for attribute in _CAPABILITY:
            call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
            capability.append(str(number.value))
        sys.stdout.write(f"{name.value.decode()}\t{'.'.join(capability)}\n")


if __name__ == "__main__":
    main()
