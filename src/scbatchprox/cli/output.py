"""How commands speak: progress and errors on stderr, results on stdout, exit codes for machines."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InputError
from ..progress import Progress as Callback

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Speaker"]

FAILURE, BAD_INPUT, INTERRUPTED = 1, 2, 130


@dataclass
class Speaker:
    """What a command says, and to whom: a person, a machine (``--json``) or nobody (``--quiet``)."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        # rich is imported where something is said: the version and completion do without.
        from rich.console import Console

        # Soft wrapping: a sentence stays one line for whoever reads it from a log.
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)
        self.out = Console(highlight=False, soft_wrap=True)
        # Our own log alone: what other packages log is for their developers.
        log = logging.getLogger(__name__.split(".")[0])
        log.handlers = [_Log(self)]
        spoken = logging.INFO if self.verbose else logging.WARNING
        log.setLevel(logging.ERROR if self.quiet else spoken)
        warnings.showwarning = self._warn  # type: ignore[assignment]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn errors into one sentence and an exit code: 2 for bad input, 1 for anything else."""
        try:
            yield
        except InputError as error:
            self._fail(BAD_INPUT, str(error))
        except BrokenPipeError:
            # Whoever read our answer has seen enough of it; the work itself is done by then.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
        except OSError as error:
            what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            self._fail(FAILURE, f"The system refused: {what}.")
        except KeyboardInterrupt:
            self._fail(INTERRUPTED, "Interrupted.")
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            hint = "" if self.verbose else " Run again with --verbose for the details."
            self._fail(FAILURE, f"Unexpected {type(error).__name__}: {error}.{hint}")

    def _warn(self, message: Warning | str, *_: object) -> None:
        from rich.text import Text

        if not self.quiet:
            self.err.print(
                Text("Warning: ", style="bold yellow").append(str(message), style="default")
            )

    def _fail(self, code: int, sentence: str) -> None:
        from rich.text import Text

        if self.verbose:
            traceback.print_exc()
        if self.as_json:
            print(json.dumps({"error": sentence, "exit_code": code}))
        self.err.print(Text("Error: ", style="bold red").append(sentence, style="default"))
        raise typer.Exit(code)

    @contextmanager
    def progress(self, *, cells: bool = True) -> Iterator[Callback]:
        """Offer a callback that draws a bar per stage, of cells or not; silent where nobody looks."""
        from .bars import bars_of

        silent = self.quiet or self.as_json or not sys.stderr.isatty()
        bars = bars_of(self.err, cells=cells, silent=silent)
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        with bars:
            yield report

    def say(self, sentence: str) -> None:
        """Say something to a person."""
        from rich.text import Text

        if not (self.quiet or self.as_json):
            self.out.print(Text(sentence))

    def show(self, table: pd.DataFrame) -> None:
        """Show a table to a person."""
        if self.quiet or self.as_json:
            return
        from rich.table import Table

        drawn = Table(box=None, header_style="bold", pad_edge=False)
        for name in [table.index.name or "", *table.columns]:
            title = str(name).replace("_", " ")  # so that it may take two lines
            # Names of batches are shown whole, whatever the width of the screen.
            of_rows = name == table.index.name
            drawn.add_column(title, justify="left" if of_rows else "right", no_wrap=of_rows)
        for row in table.itertuples():
            drawn.add_row(*(_cell(value) for value in row))
        self.out.print(drawn)

    def answer(self, facts: dict[str, Any]) -> None:
        """Give a machine all facts as one JSON object."""
        if self.as_json:
            print(json.dumps(_finite(facts), allow_nan=False), flush=True)


class _Log(logging.Handler):
    """Lines of our own log, each on one line, among all else that is said to a person."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self._speaker = speaker

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        self._speaker.err.print(Text(f"{record.levelname:<8} {self.format(record)}"))


def _cell(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    """Facts in JSON's terms, which know no infinity: the fixed point's round becomes null."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
