"""Run an experiment: ``python -m research classify --data my.h5ad --out results``."""

from scbatchprox.cli.process import open_streams

open_streams()

from .command import app  # noqa: E402 - streams may be closed, and files that are opened take their numbers

app()
