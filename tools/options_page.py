"""Write docs/options.md from the declarations in src/scbatchprox/options.py: python tools/options_page.py."""

from __future__ import annotations

from pathlib import Path

from scbatchprox.options import OF_OBJECTS, Option, options_of

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
HEAD = """\
# Options

<!-- Written by tools/options_page.py: change src/scbatchprox/options.py instead. -->

Parameters of `BatchProx`, `refine`, `diagnose`, `report` and `Atlas.create`, and flags of `scbatchprox`
`refine`, `diagnose`, `atlas init` and `federated plan`. Plans of sites have `--target moment` by default.
Flags marked \\* are only for `refine`.

| Python | flag | meaning |
|---|---|---|
"""
MIDDLE = """
Options of one target or solver are parameters of its object, such as `target=MomentTarget(eps=1e-6)` or
`solver=Adam(seed=1)`. The flags need that target or solver.

| of | Python | flag | meaning |
|---|---|---|---|
"""


def flag(option: Option) -> str:
    """Return the flag in a table."""
    return f"`--{option.typed_name.replace('_', '-')}`" + r"\*" * (not option.everywhere)


def page() -> str:
    """Return the page."""
    own = [f"| `{one.name}={one.default!r}` | {flag(one)} | {one.help} |\n" for one in options_of()]
    others = []
    for one in OF_OBJECTS:
        name = one.name if one.sets is None else f"{one.name}={one.sets!r}"
        others.append(f"| {', '.join(one.of)} | `{name}` | {flag(one)} | {one.help} |\n")
    return "".join([HEAD, *own, MIDDLE, *others])


if __name__ == "__main__":
    PAGE.write_text(page())
