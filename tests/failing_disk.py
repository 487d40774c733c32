"""A disk that fails: each call by which a command writes gets an error, one after the other.

A small library in C is loaded before all others (``LD_PRELOAD``), so that it also sees the calls of HDF5 and
Arrow, which are not made by Python.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long at = -1, count;
static int code;

/* From now on call number n that writes in a folder fails. */
void arm(const char *where, long n, int error) {
    snprintf(folder, sizeof folder, "%s", where);
    count = 0, code = error, at = n;
}
long calls(void) { return count; }

static int fails(int fd) {
    char link[64], path[PATH_MAX];
    if (at < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < (ssize_t)strlen(folder) || strncmp(path, folder, strlen(folder))) return 0;
    long n = __sync_fetch_and_add(&count, 1);
    if (n == at) errno = code;
    return n == at;
}
#define WATCH(type, name, parameters, arguments) \
    type name parameters { \
        static type (*real) parameters; \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
        return fails(fd) ? -1 : real arguments; \
    }
WATCH(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n))
WATCH(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t to), (fd, data, n, to))
WATCH(ssize_t, pwrite64, (int fd, const void *data, size_t n, off64_t to), (fd, data, n, to))
WATCH(ssize_t, writev, (int fd, const struct iovec *data, int n), (fd, data, n))
WATCH(ssize_t, pwritev, (int fd, const struct iovec *data, int n, off_t to), (fd, data, n, to))
WATCH(int, ftruncate, (int fd, off_t size), (fd, size))
WATCH(int, ftruncate64, (int fd, off64_t size), (fd, size))
WATCH(ssize_t, sendfile, (int fd, int from, off_t *at, size_t n), (fd, from, at, n))
WATCH(ssize_t, sendfile64, (int fd, int from, off64_t *at, size_t n), (fd, from, at, n))
WATCH(ssize_t, copy_file_range, (int from, off64_t *a, int fd, off64_t *b, size_t n, unsigned flags),
      (from, a, fd, b, n, flags))
WATCH(int, fsync, (int fd), (fd))
WATCH(int, fdatasync, (int fd), (fd))
"""


def library(folder):
    """Compile the library; skip the test where this is not possible."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs Linux and gcc")
    (folder / "failing.c").write_text(SOURCE)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "failing.so", folder / "failing.c", "-ldl"],
        check=True,
    )
    return folder / "failing.so"


def failed_writes(library, disk, arguments, every=1):
    """Run a command once for each of its writes to a folder, which fails; yield how, and what it did.

    That is the number of the error (a full disk or a broken one by turns; none in the last run), the exit
    code, and the output. The folder has its old content before each run. ``every`` leaves out writes.
    """
    start = json.dumps([str(disk), every, *map(str, arguments)])
    process = subprocess.Popen(
        [sys.executable, __file__, start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"LD_PRELOAD": str(library)},
    )  # fmt: skip
    with process:
        for line in process.stdout:
            yield json.loads(line)
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0  # HDF5 did not crash


def _main(disk, every, *arguments):
    import ctypes
    import io
    from contextlib import redirect_stderr, redirect_stdout

    from typer.main import get_command

    from scbatchprox.cli.app import app

    # One process for all runs: to start and import takes longer than to run.
    run, failing, disk = get_command(app), ctypes.CDLL(None), Path(disk)
    kept = disk.with_name("kept")
    shutil.copytree(disk, kept)
    n, reached, codes = 0, True, [errno.ENOSPC, errno.EIO]
    while reached:
        said, codes = io.StringIO(), codes[::-1]
        failing.arm(os.fsencode(f"{disk}/"), n, codes[0])
        with redirect_stdout(said), redirect_stderr(said):
            try:
                code = run(arguments, standalone_mode=False)
            except SystemExit as end:
                code = end.code
        reached = failing.calls() > n
        failing.arm(b"", -1, 0)
        print(json.dumps([codes[0] * reached, code or 0, said.getvalue()]), flush=True)
        sys.stdin.readline()
        shutil.rmtree(disk)
        shutil.copytree(kept, disk)
        n += every


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
