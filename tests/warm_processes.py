"""Processes that start warm: forked from one that has imported the package, which takes two seconds.

They are processes of their own: they can be killed, hold locks and have files as standard streams. They know
nothing of the process of the tests. For tests of what happens when a process starts there is ``subprocess``.
"""

import functools
import io
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

IMPORTED = ["anndata", "h5py", "numba", "zarr", "scbatchprox.api.files", "scbatchprox.cli.app"]


@functools.cache
def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


class WarmProcess:
    """Runs ``code`` with these arguments; used like a ``subprocess.Popen`` with three pipes of text."""

    def __init__(self, code, *arguments):
        (self._in, write), (read, self._out), (errors, self._err) = (os.pipe() for _ in range(3))
        self.stdin, self.stdout, self.stderr = open(write, "w"), open(read), open(errors)  # noqa: SIM115
        ends = [Connection(self._in, writable=False)]
        ends += [Connection(end, readable=False) for end in (self._out, self._err)]
        words = ["-c", *map(str, arguments)]
        self._process = _context().Process(target=_run, args=(code, words, os.getcwd(), *ends))
        self._process.start()
        self._said = None
        for end in ends:
            end.close()

    def kill(self):
        """As ``kill -9``."""
        self._process.kill()

    def wait(self, timeout=None):
        """Wait for its end; return its exit code."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a warm process", timeout)
        return self._process.exitcode

    @property
    def returncode(self):
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def communicate(self, text="", timeout=None):
        """Write a text, wait for the end, and return what was printed."""
        if self._said is None:
            with ThreadPoolExecutor(1) as reader, self.stdout, self.stderr:
                errors = reader.submit(self.stderr.read)
                with suppress(BrokenPipeError), self.stdin:
                    self.stdin.write(text)
                self._said = self.stdout.read(), errors.result()
            self.wait(timeout)
        return self._said


def run(code, *arguments):
    """Run code to its end; return a ``subprocess.CompletedProcess``."""
    process = WarmProcess(code, *arguments)
    printed, errors = process.communicate()
    return subprocess.CompletedProcess(["-c", *arguments], process.returncode, printed, errors)


def _run(code, words, folder, *ends):
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    sys.argv = words
    os.chdir(folder)
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
