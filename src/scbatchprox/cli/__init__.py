"""The command line: parse, call, print. The only place that configures logging.

Commands import what they use when they run, so that help and completion load nothing of it.
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
