"""Tables that fit a screen, with names that can still be told apart."""

import numpy as np
import pandas as pd
import pytest

from scbatchprox.core.printed_tables import narrow_table, short_names

SAMPLES = [f"GSM4339{i}_C1{i}_filtered_feature_bc_matrix" for i in range(70, 90)]
NESTED = [f"{donor}_{site}_library" for donor in ("anna", "bert") for site in ("left", "right")]


@pytest.mark.parametrize("names", [SAMPLES, NESTED, ["x" * 50 + "a" * i for i in range(1, 9)]])
@pytest.mark.parametrize("room", [8, 12, 20, 60])
def test_names_stay_different(names, room):
    short = short_names(names, room)
    assert len(set(short)) == len(names)
    for name, text in zip(names, short, strict=True):
        if len(name) <= room:
            assert text == name
        parts = text.split("…")
        assert len(text) <= max(room, 14)  # of these, none needs more
        # What is left is the name, in its order.
        at = 0
        for part in parts:
            at = name.index(part, at) + len(part)
        assert "…" not in text or len(text) <= len(name)


def test_no_name_is_shortened_without_need():
    assert short_names(SAMPLES, 41) == SAMPLES
    assert {len(name) for name in short_names(SAMPLES, 40)} == {40}


def test_equal_names_are_no_reason_for_longer_ones():
    assert short_names(["a" * 30, "a" * 30], 10) == ["aaaaa…aaaa"] * 2


@pytest.fixture
def table(rng):
    columns = [
        "n_cells",
        "moved",
        "scale_min",
        "scale_max",
        "composition",
        "neighbours_kept",
        "NaN",
    ]
    table = pd.DataFrame(rng.normal(size=(len(SAMPLES), 7)), SAMPLES, columns).assign(NaN=np.nan)
    return table.assign(n_cells=100_000)


@pytest.mark.parametrize("width", [72, 80, 100, 200])
def test_fits(table, width):
    lines = narrow_table(table, width)
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines[-len(table) :]]
    assert all(row[1] == "100,000" for row in rows)
    np.testing.assert_allclose([float(row[2]) for row in rows], table["moved"], atol=0.006)
    assert len(rows[0]) == table.shape[1]  # the name, and all columns but the empty one


def test_names_cannot_break_lines(table):
    table.index = [f"a\nb\x1b[2J{i}" for i in range(len(table))]
    lines = narrow_table(table, 80)
    assert len(lines) == len(narrow_table(table.set_axis(range(len(table))), 80))
    assert r"a\x0ab\x1b[2J0" in "\n".join(lines)
