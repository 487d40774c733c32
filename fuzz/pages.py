"""Hostile names in every place of a file that reaches a report, and the report read as a browser does.

A browser makes elements of the page itself, and Bokeh makes more of some texts in its models. No element,
handler, address or script may come from the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

from scbatchprox.errors import InputError
from scbatchprox.io.formats import kind_of

from .damage import pick
from .target import Stopped, Wrong, run

__all__ = ["damage_texts", "report_page"]

#: A part of every payload: what holds it comes from the file.
MARK = "zqx"
_PAYLOADS = (
    f"<img src=x onerror={MARK}()>", f"<svg onload={MARK}()>", f"<script>{MARK}()</script>",
    f"</script><script>{MARK}()</script>", f'"><img src=x onerror="{MARK}()">', f"'><b onclick='{MARK}()'>",
    f"<a href=javascript:{MARK}()>x</a>", f"<iframe srcdoc='<script>{MARK}()</script>'>", f"<{MARK}-x>",
    f"--><img src={MARK}>", f"<!--{MARK}", f"</title><img src={MARK}>", f"</style><link href={MARK}>",
    f"<meta http-equiv=refresh content='0;url=//{MARK}'>", f'" onmouseover="{MARK}()" x="',
    f"' autofocus onfocus='{MARK}()' x='", f"&lt;img src=x onerror={MARK}()&gt;", f"{{{{ {MARK} }}}}",
    f"\\u003cimg src=x onerror={MARK}()\\u003e", f"</textarea><input autofocus onfocus={MARK}()>",
    f"<form action=//{MARK}><button>x", f"<base href=//{MARK}>", f"\u2028</script>{MARK}", f"${{{MARK}}}",
    f"$$\\href{{javascript:{MARK}()}}{{x}}$$", f"<details open ontoggle={MARK}()>", f"@{{{MARK}}}{{safe}}",
    f"</noscript><img src=x onerror={MARK}()>", f"<math><a xlink:href=javascript:{MARK}()>x", f"`{MARK}`",
)  # fmt: skip
#: Attributes that a browser shows as they are.
_SHOWN = ("title", "aria-label", "alt", "placeholder")
#: Texts of Bokeh's models that are turned into elements.
_MARKUP = {
    "TableColumn": ("title",), "Div": ("text",), "Paragraph": ("text",), "PreText": ("text",),
    "HoverTool": ("tooltips",), "Tooltip": ("content",), "HTML": ("html",), "CustomJS": ("code",),
    "HTMLTemplateFormatter": ("template",), "HelpButton": ("tooltip",), "CustomJSHover": ("code",),
    "InlineStyleSheet": ("css",), "ImportedStyleSheet": ("url",), "Select": ("description",),
}  # fmt: skip
#: Names of obs in the files, and of the embedding and its result.
_COLUMNS = ("batch", "type", "kept")
_RESULT = "X_pca_batchprox"


def damage_texts(rng: np.random.Generator, path: Path) -> None:
    """Replace some texts of a refined file, or of a table, by payloads."""
    if kind_of(path) == ".h5ad":
        with h5py.File(path, "r+") as file:
            for _ in range(1 + int(rng.geometric(0.6)) % 3):
                pick(rng, (_values, _column, _diagnosis, _diagnosis, _params))(rng, file)
            if rng.random() < 0.2:
                _name(rng, file)
        return
    table = pd.read_csv(path) if kind_of(path) == ".csv" else pd.read_parquet(path)
    names = {name: payload(rng) for name in ("batch", "site") if rng.random() < 0.5}
    for name in ("batch", "site"):
        values = {value: payload(rng) for value in table[name].unique() if rng.random() < 0.5}
        table[name] = table[name].replace(values)
    table = table.rename(columns=names)
    table.to_csv(path, index=False) if kind_of(path) == ".csv" else table.to_parquet(path)


def payload(rng: np.random.Generator, name: bool = False) -> str:
    """A hostile text; the name of an object in HDF5 has no slash."""
    text = f"{pick(rng, _PAYLOADS)}{pick(rng, ('', '', ' removed', ' confounded', '0' * 300))}"
    return text.replace("/", "\\") if name else text


def _values(rng: np.random.Generator, file: h5py.File) -> None:
    """Names of batches, types and values to keep; those of batches also in the record."""
    for name in _COLUMNS:
        values = file[f"obs/{name}/categories"]
        new = {text: payload(rng) for text in values.asstr()[()] if rng.random() < 0.5}
        places = [values]
        if name == "batch":
            record = file[f"uns/{_RESULT}"]
            places += [record[part] for part in ("batches", "row_batch", "diagnosis/batch")]
        for place in places:
            place = place["categories"] if isinstance(place, h5py.Group) else place
            place[...] = [new.get(text, text) for text in place.asstr()[()].tolist()]


def _column(rng: np.random.Generator, file: h5py.File) -> None:
    """The name of a column of obs, also in the record."""
    name, new = pick(rng, _COLUMNS), payload(rng, name=True)
    obs = file["obs"]
    obs.move(name, new)
    obs.attrs["column-order"] = [new if old == name else old for old in obs.attrs["column-order"]]
    if name == "batch":
        key = file[f"uns/{_RESULT}/params/batch_key"]
        key[...] = [new] if key.shape else new


def _diagnosis(rng: np.random.Generator, file: h5py.File) -> None:
    """Columns and verdicts of the table that was written with the result."""
    table = file[f"uns/{_RESULT}/diagnosis"]
    for _ in range(int(rng.integers(1, 3))):
        what = rng.random()
        if what < 0.6:
            old = pick(rng, [name for name in table if name not in ("batch", "verdict", "n_cells")])
            end = pick(rng, (" removed", " confounded", ""))
            new = f"{payload(rng, name=True)}{end}"
            if rng.random() < 0.5:
                table.move(old, new)
            else:
                table[new] = table[old]
            order = [name for name in table.attrs["column-order"] if name in table]
            table.attrs["column-order"] = [*order, new]
        else:
            verdicts = table["verdict"]
            verdicts = verdicts["categories"] if isinstance(verdicts, h5py.Group) else verdicts
            kept = verdicts.asstr()[0].partition(": ")[0]
            verdicts[0] = pick(rng, (payload(rng), f"{kept}: {payload(rng)}"))


def _params(rng: np.random.Generator, file: h5py.File) -> None:
    """Parameters in the record, and names of them."""
    params = file[f"uns/{_RESULT}/params"]
    name = pick(rng, [*params, payload(rng, name=True)])
    if name in params:
        del params[name]
    params[name] = payload(rng)
    params[name].attrs.update({"encoding-type": "string", "encoding-version": "0.2.0"})


def _name(rng: np.random.Generator, file: h5py.File) -> None:
    """The name of the embedding, and with it of the result."""
    new = payload(rng, name=True)
    file.move("obsm/X_pca", f"obsm/{new}")
    for place in ("obsm", "uns"):
        file.move(f"{place}/{_RESULT}", f"{place}/{new}_batchprox")
    if "use_rep" in file[f"uns/{new}_batchprox/params"]:
        file[f"uns/{new}_batchprox/params/use_rep"][()] = new


def report_page(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox report``, on a file of any name."""
    columns, more = _named(path)
    call = [f"--batch-key={columns[0]}", "--view", "pca"]
    if rng.random() < 0.7:
        call += [f"--label-key={columns[1]}"]
    if rng.random() < 0.5:
        call += [f"--keep={columns[-1]}"]
    if rng.random() < 0.2:
        call += ["--target", "moment"]
    if rng.random() < 0.3:
        path = path.rename(path.with_name(f"out{payload(rng, name=True)[:100]}{kind_of(path)}"))
    out = path.with_name("out.html")
    try:
        run("report", "report", path, *call, *more, "--out", out)
    except InputError as error:
        if path.name[:12] not in str(error):
            raise Wrong(f"a sentence that names no file: {error}") from None
        raise Stopped from None
    check_page(out.read_text("utf-8"))


def _named(path: Path) -> tuple[list[str], list[str]]:
    """The columns of batches, types and values to keep, whatever they are called now; and the embedding."""
    if kind_of(path) != ".h5ad":
        table = pd.read_csv(path) if kind_of(path) == ".csv" else pd.read_parquet(path)
        return [str(name) for name in table.columns[1:3]], ["--use-rep", "PC"]
    with h5py.File(path, "r") as file:
        names = [str(name) for name in file["obs"].attrs["column-order"]]
        rep = next(name for name in file["obsm"] if f"{name}_batchprox" in file["obsm"])
    hostile = [name for name in names if MARK in name]
    found = [name if name in names else hostile[0] for name in _COLUMNS]
    return found, [f"--use-rep={rep}"]


def check_page(html: str) -> None:
    """Raise an error if something of the file is more than a text in a page."""
    page = _Page()
    page.feed(html)
    page.close()
    if page.problems:
        raise Wrong(f"in the page: {page.problems[0][:200]}")
    for script in page.scripts:
        for kind, name, text in _texts(script):
            if MARK in text and (live := _live(kind, name, text)):
                raise Wrong(f"Bokeh makes an element of {kind}.{name}: {live}")


def _live(kind: str, name: str, text: str) -> str:
    if name in ("code", "css", "url"):
        return text[:200]
    page = _Page()
    page.feed(text)
    page.close()
    return page.problems[0][:200] if page.problems else ""


class _Page(HTMLParser):
    """Collects what a browser would make of payloads: elements, attributes, comments and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.scripts: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._inside.append(tag)
        for name, value in [(tag, ""), *attrs]:
            if MARK in name or (MARK in (value or "") and name not in _SHOWN):
                self.problems.append(f"<{tag} {name}={value}>")

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_comment(self, data: str) -> None:
        if MARK in data:
            self.problems.append(f"<!--{data[:100]}")

    def handle_data(self, data: str) -> None:
        if not self._inside or MARK not in data:
            return
        # What Bokeh draws is a document in a script, of texts only.
        rest = _DOCUMENT.sub("", data)
        if self._inside[-1] == "style" or MARK in rest:
            at = rest.find(MARK)
            self.problems.append(f"a {self._inside[-1]}: {rest[max(0, at - 80) : at + 80]}")
        self.scripts.extend(_DOCUMENT.findall(data))


_DOCUMENT = re.compile(r"const docs_json = (.*?);\n", re.DOTALL)


def _texts(document: str) -> Iterator[tuple[str, str, str]]:
    """All texts of models that Bokeh may turn into elements: kind, property and text."""
    document = document.strip()
    if document.startswith("'"):  # a text of JavaScript, which Bokeh unescapes
        document = unescape(re.sub(r"\\(.)", r"\1", document[1:-1]))
    stack: list[Any] = [json.loads(document)]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            kind, attributes = item.get("name"), item.get("attributes")
            if isinstance(attributes, dict):
                for name in _MARKUP.get(str(kind), ()):
                    value = attributes.get(name)
                    if name == "tooltips" and isinstance(
                        value, list
                    ):  # pairs of a label and markup
                        value = [pair[-1] for pair in value]
                    yield from ((str(kind), name, text) for text in _strings(value))
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
