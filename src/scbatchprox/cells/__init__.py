"""Cells in memory, in a Dask array or in a file, with the same methods for each."""
