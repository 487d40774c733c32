"""Sentences name parameters as Python has them, and as options on the command line."""

import ast
import pickle
import re
import warnings

import pytest
import typer

from command_line import app, run
from scbatchprox import errors
from scbatchprox.api import files
from scbatchprox.core.checks import warn_user
from scbatchprox.errors import Advice, BadFile, BadKey, BadValue, MissingExtra, Parameter
from test_architecture import modules

WORDS = [
    ("keep", "--keep"),
    ("lambda_id", "--lambda-id"),
    ("use_rep=NAME", "--use-rep NAME"),
    ("target='moment'", "--target moment"),
    ("force=True", "--force"),
    ("diagnose=False", "--no-diagnose"),
    ("policy='refit'", "policy='refit'"),  # not an option of this command
]


@pytest.fixture
def raising(monkeypatch, path):
    """Run a command in which something raises an error, and return what it prints."""

    def printed(error, warn=False):
        def refine_file(*_, **__):
            if warn:
                warn_user(*error.parts)
            raise error

        monkeypatch.setattr(files, "refine_file", refine_file)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            return run("refine", path, "--batch-key", "batch", "--in-place", code=2).stderr

    return printed


@pytest.mark.parametrize(("python", "typed"), WORDS)
def test_a_new_error_is_printed_with_options(raising, python, typed):
    error = BadValue("Expected ", Parameter(python), " here, found 'keep' and force=True.")
    assert str(error) == f"Expected {python} here, found 'keep' and force=True."
    # Only what the sentence says is a parameter becomes an option, not what is found.
    assert raising(error) == f"Error: Expected {typed} here, found 'keep' and force=True.\n"


def test_a_new_warning_too(raising):
    said = raising(BadValue("Expected ", Parameter("mu"), "."), warn=True)
    assert said.splitlines() == ["Warning: Expected --mu.", "Error: Expected --mu."]


def test_an_option_of_another_name(raising):
    error = BadValue("Expected ", Parameter("accepted=True", "--yes"), ", found no yes.")
    assert str(error) == "Expected accepted=True (--yes), found no yes."
    assert raising(error) == "Error: Expected --yes, found no yes.\n"


@pytest.mark.parametrize("kind", [BadValue, BadKey, BadFile, Advice])
def test_sentences_survive(kind):
    error = kind("Expected ", Parameter("keep"), ", found none.")
    error.found_in("a.h5ad")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert type(same) is kind
        assert str(same) == "Expected keep, found none (in a.h5ad)."
        assert same.worded(lambda p: f"--{p.python}") == "Expected --keep, found none (in a.h5ad)."
    missing = MissingExtra("umap for ", Parameter("view='umap'"), "report")
    assert str(pickle.loads(pickle.dumps(missing))) == str(missing)


def options(command):
    """The names of options of a command and those below it."""
    below = getattr(command, "commands", {}).values()
    own = {option.name for option in command.params if option.param_type_name == "option"}
    return own.union(*map(options, below))


def text_of(node):
    """The text of a literal, with dots for what is filled in and for examples of calls."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
        text = "".join(parts)
    else:
        return ""
    return re.sub(r"[\w.]+\([^()]*\)", "...", text)


def as_text(tree, names):
    """Find sentences that name a parameter in their text, where no door could word it."""
    bare = "|".join(name for name in names if "_" in name)  # others are common words
    said = re.compile(rf"\b(?:{bare})\b|\b(?:{'|'.join(names)})=['\w]")
    makers = {*errors.__all__, "warn_user"} - {"Parameter"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in makers:
            yield from (node.lineno for part in node.args if said.search(text_of(part)))


def test_every_sentence_that_names_an_option_knows_it():
    names = options(typer.main.get_command(app))
    assert {"use_rep", "lambda_target", "population_key"} <= names
    own = [(name, path) for name, path in modules() if name.split(".")[0] not in ("bench", "cli")]
    found = {name: [*as_text(ast.parse(path.read_text()), names)] for name, path in own}
    assert {name: lines for name, lines in found.items() if lines} == {}
    for wrong in ("'Expected use_rep in obsm.'", "f\"Expected target='moment', found {x}.\""):
        assert [*as_text(ast.parse(f"raise BadValue({wrong})"), names)] == [1]
