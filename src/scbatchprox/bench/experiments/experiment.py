"""What an experiment is, and what a run of it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..datasets import Dataset, load
from .journal import Job
from .page import Story
from .settings import Settings
from .trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Experiment", "Outcome"]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes
    ----------
    name, title, question
        What it is called, and what it asks.
    settings
        The paper's choices.
    quick
        What is changed for a quick look.
    jobs
        The work on one data set.
    tell, draw
        Words, tables and a picture from all rows.
    load
        How a data set is found by its name; by default :func:`~scbatchprox.bench.datasets.load`.
    about
        What a reader must know of how a data set is used.
    """

    name: str
    title: str
    question: str
    settings: Settings
    quick: Mapping[str, Any]
    jobs: Callable[[Trial], Iterable[Job]]
    tell: Callable[[pd.DataFrame, Settings], Story]
    draw: Callable[[pd.DataFrame], Figure]
    load: Callable[..., Dataset] = load
    about: Callable[[Trial], str] = lambda trial: ""


@dataclass(frozen=True)
class Outcome:
    """What a run left behind.

    Attributes
    ----------
    rows
        All numbers, in long form.
    findings
        What they say.
    left_out
        Data sets that were not there, and why.
    written
        Files.
    reused
        Rows that an earlier run had finished.
    """

    rows: pd.DataFrame
    findings: list[str]
    left_out: dict[str, str]
    written: list[Path]
    reused: int
