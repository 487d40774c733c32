"""Small .zarr stores for tests, and processes that get a signal at a chosen step of writing one."""

import itertools
import os
import signal
import sys
import threading
import time
import traceback
import warnings

import numpy as np
import pandas as pd
from anndata import AnnData

from anndata_files import write
from scbatchprox.io.formats import open_cells

#: The calls by which folders change, also those of shutil.rmtree and pathlib.
CALLS = ["rename", "replace", "mkdir", "unlink", "rmdir"]
#: The removal of a store has many steps that are alike; this part of them counts.
EVERY = 25


def cells(path, n=12, seed=0, kind="zarr3"):
    """Write a small store."""
    rng = np.random.default_rng(seed)
    index = [f"cell{seed}-{i}" for i in range(n)]
    adata = AnnData(obs=pd.DataFrame({"batch": list("ab") * (n // 2)}, index=index))
    adata.obsm["X_pca"] = rng.normal(size=(n, 2)).astype("f4")
    write(adata, path, kind)
    return path


def add(path, out, value):
    """Write a result of one value."""
    with open_cells(path) as file:
        shape = file.embedding("X_pca").shape
        file.obs(["batch"])
        with file.writer(out, "result", shape, np.dtype("f4")) as writer:
            writer.write(0, np.full(shape, value, "f4"))
            writer.finish({"value": value})


def signalled(work, number, step, moment="commit"):
    """Run in a child that sends itself a signal before a step; return whether there was such a step.

    Steps count from when the result is complete (``commit``), or from the start.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # zarr's threads are made anew in a child
        child = os.fork()
    if child == 0:
        try:
            sent = _hook(number, step, moment)
            try:
                work()
            except KeyboardInterrupt:
                assert sent
            code = 100 if sent else 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    end = time.monotonic() + 30
    while (waited := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(waited[1])
    assert code in (0, 100, -number)
    return code != 0


def _hook(number, step, moment):
    from scbatchprox.io.formats import zarr_folder
    from scbatchprox.io.formats.zarr import _ZarrWriter

    sent, count, removals, begun = [], itertools.count(), itertools.count(), [moment != "commit"]
    guard = threading.Lock()

    def before(real, removal=False):
        def call(*arguments, **options):
            with guard:
                counts = begun[0] and not (removal and next(removals) % EVERY)
                now = counts and next(count) == step
            if now:
                sent.append(True)
                os.kill(os.getpid(), number)
            return real(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, before(getattr(os, name), name in CALLS[3:]))
    zarr_folder._exchanged = before(zarr_folder._exchanged)
    real = _ZarrWriter.finish

    def finish(self, record):
        real(self, record)
        begun[0] = True

    _ZarrWriter.finish = finish
    return sent


def in_two_steps(monkeypatch):
    """As on a file system that cannot exchange names, such as NFS."""
    monkeypatch.setattr(
        "scbatchprox.io.formats.zarr_folder._EXCHANGE", 1 << 20
    )  # answered by EINVAL
