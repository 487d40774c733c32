"""Tables as text: on wide and narrow terminals, and in files."""

import io

import pandas as pd
import pytest
from rich.console import Console

from scbatchprox.cli.output import print_table


def printed(table, width, verbatim=()):
    file = io.StringIO()
    print_table(Console(file=file, width=width, soft_wrap=True), table, verbatim)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.fixture
def table():
    return pd.DataFrame(
        {"what_was_done": ["add (frozen)", "forget"], "n_cells": [1200, 7], "X_pca_new": [0.5, 10]},
        index=pd.Index(["donor one", "d2"], name="batch"),
    )


def test_words_are_to_the_left_and_numbers_to_the_right(table):
    assert printed(table, 1000, ["X_pca_new"]) == [
        "batch      what was done  n cells  X_pca_new",
        "donor one  add (frozen)      1200      0.500",
        "d2         forget               7     10.000",
    ]


def test_narrow_headers_are_broken_between_words(table):
    assert printed(table, 42, ["X_pca_new"]) == [
        "           what was          n  X_pca_",
        "batch      done          cells     new",
        "donor one  add (frozen)   1200   0.500",
        "d2         forget            7  10.000",
    ]


def test_nothing_is_cut_off_however_narrow(table):
    lines = printed(table, 10, ["X_pca_new"])
    text = " ".join(lines)
    for part in ("donor one", "(frozen)", "1200", "0.500", "10.000", "X_pca_", "new", "cells"):
        assert part in text
    assert "…" not in text


@pytest.mark.parametrize("width", [5, 10, 20])
def test_names_are_whole_however_narrow(width):
    index = pd.Index(["患者 donor one", "d2"], name="batch")
    for values in ([0.5, 1e6], ["forget", "rollback to 2020-01-02"]):
        text = "\n".join(printed(pd.DataFrame({"x": values}, index), width))
        parts = ("0.500", "1,000,000.000") if values[0] == 0.5 else ("forget", "2020-01-02")
        for part in (*index, *parts):
            assert part in text


def test_markup_and_commands_to_a_terminal_are_text():
    table = pd.DataFrame({"[red]x": ["[bold]a\x1b[2J"]}, index=pd.Index(["[b]"], name="n"))
    for width in (5, 100):
        text = "\n".join(printed(table, width))
        assert "[red]x" in text
        assert r"[bold]a\x1b[2J" in text
        assert "\x1b" not in text
