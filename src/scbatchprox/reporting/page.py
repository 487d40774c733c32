"""The page: the verdict in words, pictures and tables, in one HTML file that loads nothing.

No text of data becomes a part of the program that a page is. The template escapes every text. Bokeh takes all
texts as such, except the titles of a table, which are HTML: they are escaped by the same function. And if a
text should ever become markup in spite of that, a browser runs no script but those whose fingerprints the
page has in its first lines.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pandas as pd

from ..core.shown import names
from ..diagnosis.kept import MEASURES, Kept, kept_names
from ..diagnosis.table import COLUMNS, worst_first
from ..diagnosis.verdict import Level, Verdict, clauses, judge_kept, verdicts_of, why
from .contents import SCORES, Contents, Scores
from .pictures import DISTANCES, MOVES, RESET, moved_limit, scatter

__all__ = [
    "Cell", "Conclusion", "Grid", "batch_table", "composition", "page", "score_rows", "sortable",
    "verdict",
]  # fmt: skip

#: Batches that a sentence names.
NAMED = 6
#: A score that gets worse by more than this is worth a sentence.
WORSE = 0.02


@dataclass(frozen=True)
class Conclusion:
    """The verdict: how bad it is, one sentence, and sentences on what to do."""

    kind: Level
    headline: str
    advice: tuple[str, ...]


def _levels(table: pd.DataFrame) -> list[Level]:
    """Return the level of every batch; what has none needs care."""
    return [Level.WEAK if found is None else found.level for found in verdicts_of(table)]


def verdict(facts: Contents) -> Conclusion:
    """Return the verdict on a data set."""
    levels = _levels(facts.table)
    if len(levels) < 2:
        return Conclusion(
            Level.ALONE,
            "There is only one batch, so there is nothing to refine.",
            (f"Use the unrefined embedding ({facts.use_rep}).",),
        )
    kept, (worse, scores) = _kept(facts), _scores(facts)
    worst, headline = max(levels, key=lambda level: level.rank), _headline(levels)
    unrefined = f"the unrefined embedding ({facts.use_rep})"
    if any(len(judge_kept([column])) == len(MEASURES) for column in _columns(facts)):
        # Good scores are no reason to refine what no method can tell apart.
        return Conclusion(worst, headline, (f"Use {unrefined}.", *kept))
    if not facts.table["moved"].any():
        return Conclusion(worst, headline, (f"No cell was moved: use {unrefined}.", *kept))
    if worse:
        worst = max(worst, Level.WEAK, key=lambda level: level.rank)
        advice = f"Scores of cell types got worse. Keep {unrefined}, unless more mixing is worth that to you."
    else:
        advice = f"Use the refined embedding ({facts.key}) for clustering, neighbours and label transfer."
    return Conclusion(worst, headline, (advice, *_attention(facts, levels), *kept, *scores))


def _headline(levels: list[Level]) -> str:
    """Return a sentence on how many batches have each level."""
    number = {level: levels.count(level) for level in Level if level in levels}
    if len(number) == 1:
        return f"All {len(levels)} batches: {levels[0]}."
    *first, last = [f"{n} with {level}" for level, n in number.items()]
    return f"Of {len(levels)} batches, {', '.join(first)} and {last}."


def _attention(facts: Contents, levels: list[Level]) -> list[str]:
    """Return sentences on the batches that somebody has to look at."""
    table, advice = facts.table, []
    care, alone = (
        table.index[[level.tone == tone for level in levels]].tolist() for tone in ("care", "alone")
    )
    if care:
        which = "each batch" if len(care) == len(levels) else names(care, NAMED)
        advice.append(f"Look at {which} before you rely on it: the table says why.")
    if alone:
        moved = table.loc[[level.needs_force for level in levels], "moved"].any()
        what = "Keep the unrefined coordinates of" if moved else "Left as they are:"
        advice.append(f"{what} {names(alone, NAMED)}. Compare them with the others with care.")
    return advice


def _columns(facts: Contents) -> list[Kept]:
    """Return what happens to the columns to keep."""
    return [Kept.of(facts.table, name) for name in facts.kept]


def _kept(facts: Contents) -> list[str]:
    """Return a sentence for each column to keep that a refinement harms, or that batches tell."""
    sentences = []
    for column in _columns(facts):
        found = Verdict(Level.WEAK, tuple(judge_kept([column])))
        for reason in clauses(found, column.numbers):
            sentences.append(
                f"{reason[0].upper()}{reason[1:]}. Compare the values of {column.name} on the unrefined "
                f"embedding."
            )
    return sentences


def _scores(facts: Contents) -> tuple[bool, list[str]]:
    """Return whether a score of cell types got worse, and sentences on those, or on the main one."""
    if facts.scores is None:
        return False, []
    table = facts.scores.table
    f1, over = table.loc["lobo_f1"], table.loc["over_correction"]
    sentences = []
    for row, what, sign in (
        (table.loc["f1_given_batch"], "cell types are harder to tell apart (F1 given batch", 1),
        (f1, "cell types transfer worse between batches (leave-one-batch-out F1", 1),
        (over, "cells have more neighbours of another type (over-correction", -1),
    ):
        if sign * (row["unrefined"] - row["refined"]) > WORSE:
            sentences.append(
                f"After refinement {what} {row['unrefined']:.2f} before, {row['refined']:.2f} after)."
            )
    if sentences or pd.isna(f1).any():
        return bool(sentences), sentences
    return False, [
        f"Labels in {facts.label_key} transfer between batches with F1 {f1['unrefined']:.2f} before and "
        f"{f1['refined']:.2f} after (1 is perfect)."
    ]


#: What is measured of columns to keep, and what it means.
KEPT = {
    "confounded": "how much of it the batch tells: 1 if each batch has one value",
    "removed": "part of the variance between its values that refinement removes",
}
#: Titles of the columns of texts in the table of batches, and what they mean.
TEXT_TITLES = {
    "batch": "name of the batch",
    "verdict": "what was found out about it",
    "why": "the reason",
}
#: A smaller change of a score is neither better nor worse.
NOTICED = 0.005
#: Rows and columns of a composition at most: the largest.
MAX_ROWS, MAX_COLUMNS = 60, 30


@dataclass(frozen=True)
class Grid:
    """A table to show: titles of columns with their meanings, rows of texts, and how serious each is."""

    titles: list[tuple[str, str]]
    rows: list[list[str]]
    tones: list[str]


@dataclass(frozen=True)
class Cell:
    """A cell of a composition: how dark it is (0 to 1), its share of the row, and the count."""

    shade: float
    text: str
    count: str


def batch_table(facts: Contents) -> Grid:
    """Return the diagnosis, batches that need attention first."""
    table = worst_first(facts.table, Level.WEAK.rank)
    shown, texts = _shown(table), _texts(table)
    titles = [*TEXT_TITLES.items(), *((title, meaning) for title, meaning, _ in shown.values())]
    columns = [[_number(x, how) for x in table[name]] for name, (_, _, how) in shown.items()]
    rows = [list(row) for row in zip(*texts.values(), *columns, strict=True)]
    return Grid(titles, rows, [level.tone for level in _levels(table)])


def _texts(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns of texts by their titles."""
    levels = [str(level) for level in _levels(table)]
    names, reasons = [str(batch) for batch in table.index], [why(text) for text in table["verdict"]]
    return dict(zip(TEXT_TITLES, (names, levels, reasons), strict=True))


def composition(counts: pd.DataFrame) -> tuple[list[str], list[tuple[str, str, list[Cell]]], str]:
    """Return titles of columns, rows (batch, cells, shares), and a note on what was left out."""
    notes = []
    columns = counts.sum().sort_values(ascending=False, kind="stable").index
    if len(columns) > MAX_COLUMNS:
        others = counts[columns[MAX_COLUMNS - 1 :]].sum(axis=1)
        notes.append(f"{len(columns) - MAX_COLUMNS + 1} small columns are shown as one")
        counts = counts[columns[: MAX_COLUMNS - 1]].assign(**{"all others": others})
    if len(counts) > MAX_ROWS:
        notes.append(f"the {MAX_ROWS} largest of {len(counts)} batches are shown")
        largest = counts.sum(axis=1).to_numpy().argsort(kind="stable")[::-1][:MAX_ROWS]
        counts = counts.iloc[sorted(largest)]
    rows = []
    for batch, row in zip(counts.index, counts.to_numpy(), strict=True):
        total = float(row.sum())
        if total > 0:
            shares = [(n / total, f"{n:,.0f}") for n in row.tolist()]
            cells = [Cell(math.sqrt(share), _percent(share), n) for share, n in shares]
            rows.append((str(batch), f"{total:,.0f}", cells))
        else:
            rows.append((str(batch), "unmatched", [Cell(0.0, "–", "–")] * row.size))
    return [str(name) for name in counts.columns], rows, "; ".join(notes)


def score_rows(scores: Scores) -> list[tuple[str, str, str, str, str, str]]:
    """Return rows of scores: name, meaning, before, after, change, and ``better`` or ``worse``."""
    rows = []
    for name, (title, meaning, higher) in SCORES.items():
        before, after = scores.table.loc[name, ["unrefined", "refined"]]
        change = after - before
        sign = ""
        if abs(change) >= NOTICED:
            sign = "better" if (change > 0) == higher else "worse"
        texts = (_number(before, "{:.3f}"), _number(after, "{:.3f}"), _number(change, "{:+.3f}"))
        rows.append((title, meaning, *texts, sign))
    return rows


def _shown(table: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return the columns that a table has: those of every diagnosis but details, and those on kept labels."""
    kept = {
        f"{name} {what}": (f"{name} {what}", meaning, "{:.0%}")
        for name in kept_names(table)
        for what, meaning in KEPT.items()
    }
    shown = {
        name: (of.title, of.meaning, of.how)
        for name, of in COLUMNS.items()
        if name in table and not of.detail
    }
    return shown | kept


def _number(x: Any, how: str) -> str:
    return "–" if math.isnan(x) else how.format(x)


def _percent(share: float) -> str:
    if share == 0:
        return "0"
    return "<1%" if share < 0.01 else f"{share:.0%}"


def _policy(scripts: Iterable[str]) -> str:
    """Return the rules of a page: nothing is loaded or sent, and these scripts run but no others."""
    # Bokeh makes functions of the code of a CustomJS, all of which is ours: 'unsafe-eval'.
    hashes = (b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


#: Pixels of a row, for three lines of a reason.
ROW_HEIGHT = 54
#: Sorts the table by the chosen title.
SORT = """
const rows = orders[cb_obj.options.indexOf(cb_obj.value)]
source.data = Object.fromEntries(names.map((name, i) => [name, rows.map((row) => columns[i][row])]))
"""
#: Colours of the table are those of the page.
TABLE_CSS = """
:host { font-size: .875rem; }
.slick-header-column, .slick-cell { color: var(--text) !important; }
.slick-header-column { font-weight: 600; }
.slick-row, .slick-header, .slick-header-columns, .slick-header-column, .slick-viewport, .slick-pane {
  background: var(--page) !important; }
.slick-cell { font-size: .8125rem; line-height: 1.25; white-space: normal;
  border: none; border-bottom: 1px solid var(--line); }
.slick-row:hover .slick-cell { background: var(--panel); }
"""
#: So are those of the list of titles.
SELECT_CSS = """
:host { font-size: .875rem; color: var(--text); }
select { color: var(--text) !important; background-color: var(--page) !important; border-color: #808080;
  appearance: auto; background-image: none !important; }
select:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
"""


def sortable(facts: Contents) -> dict[str, Any]:
    """Return the same table as a Bokeh model, sorted by a click on a title, or by a list of titles."""
    from bokeh.models import (
        ColumnDataSource,
        CustomJS,
        DataTable,
        InlineStyleSheet,
        Select,
        StringFormatter,
        TableColumn,
    )
    from markupsafe import escape  # as the template does

    table = worst_first(facts.table, Level.WEAK.rank)
    data: dict[str, list[Any]] = {**_texts(table)}
    titles, formatters = {name: name for name in data}, {}
    for i, (name, (title, _, how)) in enumerate(_shown(table).items()):
        field = name if name in COLUMNS else f"kept{i}"  # not a name that comes from the data
        data[field] = [None if math.isnan(x) else float(x) for x in table[name]]
        titles[field], formatters[field] = title, _formatter(how)
    source = ColumnDataSource(data)
    # All columns of a diagnosis fit a page as wide as ours; columns to keep are further to the right.
    widths = {"batch": 130, "verdict": 105, "why": 300}
    columns = [
        TableColumn(
            field=field,
            title=str(escape(title)),  # the only text that Bokeh takes as HTML
            width=widths.get(field, 22 + 7 * len(title)),
            formatter=formatters.get(field) or StringFormatter(),
        )
        for field, title in titles.items()
    ]
    css = InlineStyleSheet(css=TABLE_CSS)
    height = min(ROW_HEIGHT * len(table) + 60, 480)
    grid = DataTable(
        source=source, columns=columns, index_position=None, sizing_mode="stretch_width",
        autosize_mode="none", row_height=ROW_HEIGHT, height=height, stylesheets=[css], name="sortable",
        selectable=False, reorderable=False, frozen_columns=1,
    )  # fmt: skip
    orders = {"the worst verdict first": list(range(len(table)))}
    for field, title in titles.items():
        ordered = pd.Series(data[field]).sort_values(
            ascending=field in widths, kind="stable", na_position="last"
        )
        orders[title] = ordered.index.tolist()
    select = Select(
        title="Sort by", options=list(orders), value=next(iter(orders)), name="sort",
        stylesheets=[InlineStyleSheet(css=SELECT_CSS)],
    )  # fmt: skip
    args = {"orders": list(orders.values()), "names": list(data), "columns": list(data.values())}
    select.js_on_change("value", CustomJS(args=args | {"source": source}, code=SORT))
    return {"sortable": grid, "sort": select}


def _formatter(how: str) -> Any:
    from bokeh.models import NumberFormatter

    formats = {"{:,.0f}": "0,0", "{:.2f}": "0.00", "{:.0%}": "0%"}
    return NumberFormatter(format=formats[how], nan_format="–", null_format="–", text_align="right")


#: Parts of BokehJS that are used: plots, widgets and tables.
COMPONENTS = ["bokeh", "bokeh-widgets", "bokeh-tables"]


def page(facts: Contents) -> str:
    """Return the report as HTML. Everything that comes from data is escaped by the template."""
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment
    from markupsafe import Markup

    models = scatter(facts.drawn, facts.label_key) | sortable(facts)
    script, places = components(models, wrap_script=False)
    scripts = [*Resources(mode="inline", components=COMPONENTS).js_raw, script]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_text("page.html"))
    html: str = template.render(
        facts=facts,
        verdict=verdict(facts),
        table=batch_table(facts),
        composition=composition(facts.counts),
        kept={name: composition(counts) for name, counts in facts.kept.items()},
        scores=None if facts.scores is None else score_rows(facts.scores),
        moves=[*MOVES, RESET],
        distances=DISTANCES,
        most_moved=moved_limit(facts.drawn),
        style=Markup(_text("style.css")),
        policy=Markup(_policy(scripts)),
        scripts=[Markup(code) for code in scripts],
        places={name: Markup(place) for name, place in places.items()},
    )
    return html.encode("utf-8", "replace").decode()  # a file's name may hold what UTF-8 cannot


def _text(name: str) -> str:
    found: Any = resources.files(__package__).joinpath(name)
    return str(found.read_text(encoding="utf-8"))
