"""The command line: parse, call, print. Only this package configures logging.

Commands import the library when they run, so that help and completion are fast.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run ``scbatchprox``."""
    for name in ("typer", "rich"):
        if find_spec(name) is None:
            sys.exit(
                f"Expected {name} for the command line, found none: pip install 'scbatchprox[cli]'."
            )
    from .app import app

    app()
