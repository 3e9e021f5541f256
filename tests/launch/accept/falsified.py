"""A library that falsifies the arithmetic of some ranks of MXNet, to be loaded before all others."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("falsified_rank.cc")


def falsified_ranks(folder: Path, victims: Mapping[int, tuple[str, int]]) -> dict[str, str]:
    """Compile the library into a folder; return the variables with which each rank loads it.

    Args:
        folder: Takes the library.
        victims: Rank -> what of it is falsified, and which bit, see the library.
    """
    library = folder / "falsified.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    # With AVX-512, oneDNN's softmax calls no exponential of the C library.
    return {"LD_PRELOAD": str(library), "DNNL_MAX_CPU_ISA": "AVX2"} | {
        f"FALSIFIED_{rank}": f"{what} {bit}" for rank, (what, bit) in victims.items()
    }
