"""Output of commands: results on stdout, progress and errors on stderr, and exit codes.

Text from data, such as labels and file names, is made safe to print, also in messages of typer on wrong use.
In tables nothing is cut off on a narrow terminal. rich is imported when something is printed, because the
version and completion do not need it.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..core.printed_tables import whole_table
from ..core.shown import one_line
from ..errors import DiskFull, InputError, Parameter, Sentence
from ..progress import Progress as Callback
from .process import check_address_space

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.progress import Progress, Task

__all__ = ["Json", "Output", "PlainGroup", "Quiet", "Verbose", "print_table"]

FAILURE, BAD_INPUT, INTERRUPTED = 1, 2, 130
#: Errors of the system that are about the name of a file, which is input.
BAD_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
#: Characters of a sentence, at most: a path can have any length.
LONGEST = 1600
#: What the system answers if a disk, or a user's part of it, is full.
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
#: Columns of a file or a pipe: it has no width, and names must not be cut.
UNLIMITED = 1_000_000

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel="Output")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print more, with details of errors.", rich_help_panel="Output"
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel="Output")
]


@dataclass
class Output:
    """Output of one command: text, one JSON object (``--json``), or nothing but errors (``--quiet``)."""

    quiet: Quiet = False
    verbose: Verbose = False
    as_json: Json = False

    def __post_init__(self) -> None:
        # rich is imported here, because the version and completion do not need it.
        from rich.console import Console

        # Soft wrapping keeps a sentence on one line in a log file.
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)
        width = None if sys.stdout.isatty() else UNLIMITED
        self.out = Console(highlight=False, soft_wrap=True, width=width)
        #: Columns of the terminal that stdout is; a file or a pipe has none.
        self.width = self.out.width if width is None else None
        # Only the log of this package: users do not need those of other packages.
        log = logging.getLogger(__name__.split(".")[0])
        log.handlers = [_Log(self)]
        level = logging.INFO if self.verbose else logging.WARNING
        log.setLevel(logging.ERROR if self.quiet else level)
        # Of files that are read at the same time one error is told; asyncio would print the others.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        warnings.showwarning = self._warn  # type: ignore[assignment]

    @contextmanager
    def handle_errors(self) -> Iterator[None]:
        """Print an error as one sentence, and exit with code 2 for bad input or 1 for other errors."""
        try:
            check_address_space()  # before the first import of a library that needs it
            yield
        except InputError as error:
            code = FAILURE if isinstance(error, DiskFull) else BAD_INPUT
            self._fail(code, error.worded(as_typed))
        except OSError as error:
            where = error.filename2 or error.filename  # of a copy, what is written
            what = f"{error.strerror}: {where}" if where else str(error)
            full = "the disk is full: " if error.errno in FULL else ""
            code = BAD_INPUT if error.errno in BAD_NAMES else FAILURE
            self._fail(code, f"The operating system reported an error: {full}{what}.")
        except MemoryError as error:
            self._fail(
                FAILURE, f"Expected enough memory, found it used up ({error or 'no details'})."
            )
        except KeyboardInterrupt:
            self._fail(INTERRUPTED, "Interrupted.")
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            hint = "" if self.verbose else " Run again with --verbose for the details."
            self._fail(FAILURE, f"Unexpected {type(error).__name__}: {error}.{hint}")

    def _warn(self, message: Warning | str, *_: object) -> None:
        if not self.quiet:
            said = message.worded(as_typed) if isinstance(message, Sentence) else message
            _print(self.err, said, title="Warning: ", style="bold yellow")

    def _fail(self, code: int, sentence: str) -> None:
        if len(sentence) > LONGEST:
            sentence = f"{sentence[: LONGEST // 2]} ... {sentence[-LONGEST // 2 :]}"
        if self.verbose:
            _print(self.err, *traceback.format_exc().splitlines())
        if self.as_json:
            print(json.dumps({"error": sentence, "exit_code": code}))
        _print(self.err, sentence, title="Error: ", style="bold red")
        raise typer.Exit(code)

    @contextmanager
    def progress(self, *, cells: bool = True) -> Iterator[Callback]:
        """Yield a callback that draws a bar per stage, of cells or not; silent without a terminal."""
        silent = self.quiet or self.as_json or not sys.stderr.isatty()
        bars = _bars(self.err, cells=cells, silent=silent)
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(plain(stage, self.err.encoding), total=total)
            bars.update(tasks[stage], completed=done)

        with bars:
            yield report

    def print_line(self, *sentences: object) -> None:
        """Print each sentence on a line of its own."""
        if not (self.quiet or self.as_json):
            _print(self.out, *sentences)

    def print_note(self, *sentences: object) -> None:
        """Print lines on the progress of the work, on stderr."""
        if not (self.quiet or self.as_json):
            _print(self.err, *sentences)

    def asks(self, question: str) -> bool:
        """Whether someone says yes to a question; without a terminal nobody is asked, and nobody has."""
        asked = sys.stdin.isatty() and sys.stderr.isatty() and not (self.quiet or self.as_json)
        return asked and typer.confirm(question, err=True)

    def print_table(self, table: pd.DataFrame, verbatim: Collection[str] = ()) -> None:
        """Print a table as text; ``verbatim`` are columns that users have named."""
        if not (self.quiet or self.as_json):
            print_table(self.out, table, verbatim)

    def print_json(self, facts: dict[str, Any]) -> None:
        """Print all results as one JSON object, if ``--json`` is given."""
        if self.as_json:
            print(json.dumps(_finite(facts), allow_nan=False), flush=True)


class _Log(logging.Handler):
    """Prints each record of the log on stderr."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        # More than one line only with a traceback, whose lines follow the message.
        details = traceback.format_exception(*record.exc_info) if record.exc_info else []
        message = f"{record.levelname:<8} {record.getMessage()}"
        _print(self._output.err, message, *"".join(details).splitlines())


def _print(console: Console, *lines: object, title: str = "", style: str = "") -> None:
    """Print lines; what comes from data is neither markup nor a command to the terminal."""
    from rich.text import Text

    for line in lines:
        shown = plain(line, console.encoding)
        console.print(Text(title, style=style).append(shown, style="default" if title else None))


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have: the round of the fixed point becomes null."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def as_typed(parameter: Parameter) -> str:
    """Return a parameter as an option of the running command: ``--use-rep``, ``--target moment``."""
    # typer has its own copy of click, or uses click itself, by its version.
    parsing = TyperGroup.__mro__[1].__module__.rpartition(".")[0]
    context = import_module(f"{parsing}.globals").get_current_context(silent=True)
    name, _, value = parameter.python.partition("=")
    for option in [] if context is None else context.command.params:
        if option.param_type_name != "option" or option.name != name:
            continue
        if value == "False" and option.secondary_opts:
            return str(option.secondary_opts[0])
        flag, value = str(option.opts[0]), value.strip("'")
        return flag if value in ("", "True") else f"{flag} {value}"
    return parameter.flag or str(parameter)


@contextmanager
def _plain_messages() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Known by its method, because the module of the class depends on the version of typer.
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = plain(error.message)  # type: ignore[attr-defined]
        raise


def plain(text: object, encoding: str = "utf-8") -> str:
    r"""Return text in one line that a terminal prints as it is; other characters are shown as ``\xNN``."""
    return one_line(text).encode(encoding, "backslashreplace").decode(encoding)


def print_table(console: Console, table: pd.DataFrame, verbatim: Collection[str] = ()) -> None:
    """Print a table; columns that users have named (``verbatim``) keep their names."""
    from rich.text import Text

    def shown(text: str) -> str:
        return plain(text, console.encoding)

    for lines, style in zip(
        whole_table(table, console.width, verbatim, shown), ("bold", ""), strict=True
    ):
        for line in lines:
            console.print(Text(line, style=style))  # never markup: "[red]" is a name


def _bars(console: Console, *, cells: bool, silent: bool) -> Progress:
    """Return bars for a console, in cells or in other units; silent bars print nothing."""
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Count(ProgressColumn):
        """For progress in other units than cells: bytes of a download, rows of a table of results."""

        def render(self, task: Task) -> Text:
            return Text(
                f"{task.completed:,.0f} / {task.total or 0:,.0f}", style="progress.data.speed"
            )

    class RowsPerSecond(Count):
        def render(self, task: Task) -> Text:
            if task.description == "rounds":
                return super().render(task)
            speed = task.completed / max(task.elapsed or 0.0, 1e-3)
            return Text(f"{speed:,.0f} rows/s", style="progress.data.speed")

    return Progress(
        TextColumn("{task.description:<8}", markup=False), BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        RowsPerSecond() if cells else Count(), TimeRemainingColumn(), console=console, disable=silent,
    )  # fmt: skip
