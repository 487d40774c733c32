"""The page: facts, pictures and tables in one HTML file that loads nothing."""

from __future__ import annotations

from importlib import resources
from typing import Any

from ..errors import MissingExtra
from .facts import Facts
from .markup import policy
from .tables import batch_table, composition, score_rows
from .words import verdict

__all__ = ["page"]

#: Parts of BokehJS that are used: plots, widgets and tables.
COMPONENTS = ["bokeh", "bokeh-widgets", "bokeh-tables"]


def page(facts: Facts) -> str:
    """Return the report as HTML. Everything that comes from data is escaped by the template."""
    try:
        from bokeh.embed import components
        from bokeh.resources import Resources
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("bokeh to make a report with", "report") from None
    from .controls import MOVES, RESET
    from .pictures import DISTANCES, moved_limit, scatter
    from .sortable import sortable

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
        policy=Markup(policy(scripts)),
        scripts=[Markup(code) for code in scripts],
        places={name: Markup(place) for name, place in places.items()},
    )
    return html.encode("utf-8", "replace").decode()  # a file's name may hold what UTF-8 cannot


def _text(name: str) -> str:
    found: Any = resources.files(__package__).joinpath(name)
    return str(found.read_text(encoding="utf-8"))
