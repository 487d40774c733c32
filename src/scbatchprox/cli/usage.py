"""Messages on wrong use of the command line, which typer prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from .plain import plain

__all__ = ["PlainGroup"]


class PlainGroup(TyperGroup):
    """The commands; a message on wrong use may quote a file name, which is made safe to print."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse options that come before a command."""
        with _plain_messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse and run a command."""
        with _plain_messages():
            return super().invoke(ctx)


@contextmanager
def _plain_messages() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Known by its method, because the module of the class depends on the version of typer.
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = plain(error.message)  # type: ignore[attr-defined]
        raise
