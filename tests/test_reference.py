"""Every public name has an example in its docstring, which the tests run, and is on the page of the API."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
MODULES = [
    "scbatchprox", "scbatchprox.pl", "scbatchprox.atlas", "scbatchprox.evaluate", "scbatchprox.upstream",
]  # fmt: skip
NAMES = [(module, name) for module in MODULES for name in import_module(module).__all__]


#: Public classes and functions; constants have no docstring.
OBJECTS = [
    pytest.param(found, id=f"{module}.{name}")
    for module, name in NAMES
    if callable(found := getattr(import_module(module), name))
]


def listed(module):
    """Return the names that the page lists for a module."""
    (part,) = re.findall(
        rf"^## `{re.escape(module)}`\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S
    )
    return re.findall(r"^   (\w+)$", part, re.MULTILINE)


@pytest.mark.parametrize("found", OBJECTS)
def test_public_names_have_an_example(found):
    assert ">>> " in inspect.getdoc(found)


@pytest.mark.parametrize("found", OBJECTS)
def test_public_methods_have_a_docstring(found):
    own = vars(found) if inspect.isclass(found) else {}
    methods = [name for name, value in own.items() if callable(value) and not name.startswith("_")]
    assert not [name for name in methods if not inspect.getdoc(getattr(found, name))]


@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_all_public_names_and_no_other(module):
    names = import_module(module).__all__
    public = [name for name in names if callable(getattr(import_module(module), name))]
    # `Atlas` is a name of two modules, and is listed where its page is.
    elsewhere = {"Atlas"} if module == "scbatchprox" else set()
    assert sorted(listed(module)) == sorted(set(public) - elsewhere)
