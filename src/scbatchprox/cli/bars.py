"""Progress bars."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["bars_of"]


class _Count(ProgressColumn):
    """For progress in other units than cells: bytes of a download, rows of a table of results."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:,.0f} / {task.total or 0:,.0f}", style="progress.data.speed")


class _RowsPerSecond(_Count):
    def render(self, task: Task) -> Text:
        if task.description == "rounds":
            return super().render(task)
        speed = task.completed / max(task.elapsed or 0.0, 1e-3)
        return Text(f"{speed:,.0f} rows/s", style="progress.data.speed")


def bars_of(console: Console, *, cells: bool, silent: bool) -> Progress:
    """Return bars for a console, in cells or in other units; silent bars print nothing."""
    return Progress(
        TextColumn("{task.description:<8}", markup=False), BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        _RowsPerSecond() if cells else _Count(), TimeRemainingColumn(), console=console, disable=silent,
    )  # fmt: skip
