"""What a fitted model says of itself, as text and in a notebook."""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING

from ..core.shown import count, names
from ..diagnosis.verdict import verdicts_of

if TYPE_CHECKING:
    from .estimator import BatchProx

__all__ = ["fitted_html", "fitted_text"]


def fitted_text(model: BatchProx) -> str:
    """Return the lines that follow the parameters of a fitted model."""
    return "\n".join(f"    {name}: {value}" for name, value in _facts(model).items())


def fitted_html(model: BatchProx) -> str:
    """Return the same as a table."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in _facts(model).items()
    )
    return f"<table>{rows}</table>"


def _facts(model: BatchProx) -> dict[str, str]:
    fit = model.fit_
    batches = fit.adapter.batches.tolist()
    rounds = "fixed point" if fit.method.rounds is None else count(fit.method.rounds, "round")
    facts = {
        "cells": f"{fit.moments.n_cells:,}, {count(model.n_features_in_, 'coordinate')}",
        "batches": f"{len(batches):,}" + (f" ({names(batches)})" if batches else ""),
    }
    cells, others = fit.elsewhere
    if others:
        size = f"{count(cells, 'cell')} in {count(others, 'batch', 'batches')}"
        facts["reference"] = f"{size} that are not in this model"
    facts |= {
        "fitted": f"{fit.method.rule!r}, {rounds}",
    }
    if batches:
        moved = model.movement()["relative"]
        least, most = f"{moved.min():.2f}", f"{moved.max():.2f}"
        span = most if least == most else f"{least} to {most}"
        facts["moved"] = f"{span} of the spread of a batch; movement() has a row per batch"
    table = model.diagnosis_
    if table is None:  # also after a model is loaded: a file does not hold them
        facts["verdicts"] = "not examined here; diagnose(..., model=model) does so"
    else:
        found = Counter(verdict.level for verdict in verdicts_of(table) if verdict is not None)
        told = [f"{number} {level}" for level, number in found.most_common()]
        more = len(batches) - len(table)
        facts["verdicts"] = ", ".join([*told, *[f"{more} not examined"] * (more > 0)])
    return facts
