"""The command line: parse, call, print. The only place that configures logging."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``scbatchprox``."""
    try:
        from .app import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"Expected {error.name} for the command line, found none: pip install 'scbatchprox[cli]'."
        )
    app()
