"""Cells, wherever they are: in memory, in a Dask array, in a file."""
