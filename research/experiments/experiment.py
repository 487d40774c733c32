"""An experiment, and the outcome of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..datasets import Dataset, load
from .journal import Job
from .page import Report
from .settings import Settings
from .trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Experiment", "Outcome"]


@dataclass(frozen=True)
class Experiment:
    """An experiment, such as a table or figure of the paper.

    Attributes
    ----------
    name, title, question
        Its name, and the title and question of its page.
    settings
        Default settings, as in the paper.
    quick
        Settings that a quick run changes.
    jobs
        Returns the jobs of one data set.
    report, draw
        Return the content of the page, and a picture, from all rows.
    load
        Loads a data set by name; by default :func:`~research.datasets.load`.
    about
        Returns a note on how a data set is used.
    """

    name: str
    title: str
    question: str
    settings: Settings
    quick: Mapping[str, Any]
    jobs: Callable[[Trial], Iterable[Job]]
    report: Callable[[pd.DataFrame, Settings], Report]
    draw: Callable[[pd.DataFrame], Figure]
    load: Callable[..., Dataset] = load
    about: Callable[[Trial], str] = lambda trial: ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes
    ----------
    rows
        All numbers, in long form.
    findings
        Sentences that follow from the numbers.
    left_out
        Data sets that could not be loaded, and why.
    written
        Written files.
    reused
        Number of jobs that an earlier run had finished.
    """

    rows: pd.DataFrame
    findings: list[str]
    left_out: dict[str, str]
    written: list[Path]
    reused: int
