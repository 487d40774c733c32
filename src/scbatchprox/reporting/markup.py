"""What keeps text of data from becoming a part of the program that a page is.

The template escapes every text. Bokeh takes all texts as such, except the titles of a table, which are HTML:
they are escaped by the same function. And if a text should ever become markup in spite of that, a browser
runs no script but those whose fingerprints the page has in its first lines.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable

__all__ = ["as_html", "policy"]


def as_html(text: str) -> str:
    """Return the HTML that shows a text as it is."""
    from markupsafe import escape  # as the template does

    return str(escape(text))


def policy(scripts: Iterable[str]) -> str:
    """Return the rules of a page: nothing is loaded or sent, and these scripts run but no others."""
    # Bokeh makes functions of the code of a CustomJS, all of which is ours: 'unsafe-eval'.
    hashes = (b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
