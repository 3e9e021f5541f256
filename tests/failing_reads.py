"""A file system that answers reads of chosen paths with an error, as a file server does for a moment."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.libraries import compile_library

_SOURCE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fails(const char *call, const char *path) {
  const char *wanted = getenv("FAIL_CALL"), *end = getenv("FAIL_PATH"), *once = getenv("FAIL_ONCE");
  if (!path || !wanted || !end || strcmp(call, wanted)) return 0;
  size_t length = strlen(path), tail = strlen(end);
  if (length < tail || strcmp(path + length - tail, end)) return 0;
  if (once) {
    int made = NEXT(open)(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (made < 0) return 0;
    close(made);
  }
  errno = atoi(getenv("FAIL_ERRNO"));
  return 1;
}

#define OPEN(name)                                        \
  int name(const char *path, int flags, ...) {            \
    va_list rest;                                         \
    va_start(rest, flags);                                \
    mode_t mode = va_arg(rest, mode_t);                   \
    va_end(rest);                                         \
    return fails("open", path) ? -1 : NEXT(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

int stat(const char *path, struct stat *found) { return fails("stat", path) ? -1 : NEXT(stat)(path, found); }
int stat64(const char *path, struct stat64 *found) { return fails("stat", path) ? -1 : NEXT(stat64)(path, found); }
DIR *opendir(const char *path) { return fails("opendir", path) ? 0 : NEXT(opendir)(path); }

#define MMAP(name)                                                                          \
  void *name(void *start, size_t length, int protection, int flags, int file, off_t at) {   \
    char link[32], path[4096] = "";                                                         \
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);                                  \
    if (file >= 0 && readlink(link, path, sizeof path - 1) < 0) path[0] = 0;                \
    return fails("mmap", path) ? MAP_FAILED : NEXT(name)(start, length, protection, flags, file, at); \
  }
MMAP(mmap)
MMAP(mmap64)
"""


def failing_reads(folder: Path, call: str, path: Path, number: int, *, once: bool) -> dict[str, str]:
    """Return the variables of a process whose reads of a path fail; skip the test where that cannot be arranged.

    Args:
        folder: Takes the file ``has-failed``, if a call fails ``once``.
        call: ``open``, ``stat``, ``opendir`` or ``mmap``.
        path: The file or the folder.
        number: The error number.
        once: Whether the first call fails and no other, in whichever process.
    """
    variables = _variables(call, number) | {"FAIL_PATH": str(path)}
    return os.environ | variables | ({"FAIL_ONCE": str(folder / "has-failed")} if once else {})


@cache
def _library() -> "TemporaryDirectory[str]":
    """Compile the library once for this process, into a folder that goes with it."""
    folder = TemporaryDirectory()
    compile_library(Path(folder.name) / "failing_reads.so", _SOURCE)
    return folder


@cache
def _variables(call: str, number: int) -> dict[str, str]:
    """Return what lets a call fail, and skip the test if Python does not see it."""
    folder = _library().name
    variables = {"LD_PRELOAD": f"{folder}/failing_reads.so", "FAIL_CALL": call, "FAIL_ERRNO": str(number)}
    mapped = "import mmap; file = open(p); mmap.mmap(file.fileno(), 1, access=1)"
    read = {"open": "open(p).close()", "stat": "os.stat(p)", "opendir": "os.listdir(p)", "mmap": mapped}[call]
    path = f"{folder}/failing_reads.so" if call == "mmap" else folder
    command = [sys.executable, "-S", "-c", f"import os, sys; p = sys.argv[1]; {read}", path]
    environment = os.environ | variables | {"FAIL_PATH": path}
    probe = subprocess.run(command, env=environment, capture_output=True, check=False)
    if f"[Errno {number}]".encode() not in probe.stderr:
        pytest.skip("this Python reads by other calls of the C library")
    return variables
