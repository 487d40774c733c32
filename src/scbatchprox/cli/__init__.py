"""The command line: parse, call, print. Only this package configures logging.

Commands import the library when they run, so that help and completion are fast.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run ``scbatchprox``."""
    from .process import open_streams

    open_streams()
    from .app import app

    app()
