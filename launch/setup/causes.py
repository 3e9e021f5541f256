"""The probable causes of a failed set-up command, by patterns in its output, each with what to do."""

import re

TRY_AGAIN = "run ./run.sh again: it goes on where it stopped"
_AGAIN = f"then {TRY_AGAIN}"

_CAUSES = (
    (r"No space left on device|Errno 28\b", f"the disk is full; free some space, {_AGAIN}"),
    (
        r"Killed signal terminated program|internal compiler error: Killed|^Killed$|virtual memory exhausted",
        "the compiler ran out of memory; close programs, or compile one file at a time: MAKEFLAGS=-j1 ./run.sh setup",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        f"the package index's certificate is not trusted; point PIP_CERT at your site's certificates, {_AGAIN}",
    ),
    (
        r"name resolution|Failed to establish a new connection|Max retries exceeded|[Rr]ead timed out|ConnectionReset"
        r"|Connection refused|ProxyError|IncompleteRead",
        f"the package index was not reached; check network, proxy and pip's settings (pip config list), {_AGAIN}",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES(?s:.*?)^ +(?P<what>\S+)[^\n]*:\n +Expected",
        "{what} is not a file that the lock file names: it was damaged (pip cache purge, then ./run.sh again), "
        "or your index has a build of its own (./run.sh setup --without-hashes)",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "the package index has no {what} for this Python; check pip's index settings (pip config list)",
    ),
    (r"[Pp]ermission denied", f"a file could not be written; give yourself this folder (chown -R), {_AGAIN}"),
    (
        r"Could NOT find MPI|error: .*mpi\.h",
        "MPI was found but cannot be compiled with; install its headers (libopenmpi-dev), or take mpicxx off the PATH",
    ),
    (
        r"cublas_v2\.h|cuda_runtime\.h: No such|Could NOT find CUDAToolkit|No CMAKE_CUDA_COMPILER",
        "the CUDA toolkit is not complete; install CUDA 11.8 with its headers and set CUDA_HOME",
    ),
    (
        r"libcuda\.so\.1: cannot open",
        "no NVIDIA driver library; install the driver, or the CUDA toolkit with its stubs",
    ),
    (r"Illegal instruction", "this CPU lacks AVX, FMA or F16C, which Horovod is built with; use a newer machine"),
    (r"fatal error: (?P<what>\S+): No such file", "the header {what} is missing; install the package that has it"),
    (r"unsupported GNU version", "the compiler is too new for this CUDA; set CXX to an older one (g++-11)"),
)


_CONSEQUENCE = re.compile(
    r"ERROR: Failed (to build|building)|error: subprocess-exited|error: metadata-generation|g?make(\[\d+\])?: \*\*\*"
    r"|(subprocess\.)?CalledProcessError"
)
"""Lines with "error" in which pip, make and Python say that another program failed."""


def explain(output: str) -> str:
    """Return the probable cause of a failure and the remedy in one line.

    Args:
        output: All that the failed command printed. If no known cause matches, the last line that tells an error of
            its own is returned, or else the last line.
    """
    for pattern, words in _CAUSES:
        match = re.search(pattern, output, re.MULTILINE)
        if match:
            return words.format(**match.groupdict())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|Error: ", line, re.IGNORECASE)]
    telling = [line for line in errors if not _CONSEQUENCE.match(line)] or errors
    return (telling or lines or ["the command printed nothing"])[-1][:200]
