"""Dask arrays that count how often their blocks are read."""

import os
import time

#: Number of coordinates of the cells in tests of Dask arrays.
D = 5


def counted(Z, chunks, folder, seconds=0.0):
    """Return ``Z`` as a Dask array; each read of a block leaves a file in ``folder`` when it starts."""
    import dask.array as da

    def read(block, block_info=None):
        first = block_info[0]["array-location"][0][0]
        (folder / f"{first}-{time.time_ns()}-{os.getpid()}").touch()
        time.sleep(seconds)
        return block

    lazy = da.from_array(Z, chunks=chunks)
    return lazy.map_blocks(read, dtype=Z.dtype, meta=lazy._meta)


def reads(folder):
    """How many blocks were read."""
    return len(list(folder.iterdir()))
