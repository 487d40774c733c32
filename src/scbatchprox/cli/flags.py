"""Messages name parameters as in Python; here they become options of the running command."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from typer.core import TyperGroup

__all__ = ["as_typed"]


def as_typed(sentence: str) -> str:
    """Return a sentence with ``--use-rep`` for ``use_rep``, and ``--target moment`` for ``target='moment'``.

    Names in quotes are a user's own, and stay.
    """
    # Messages that name an option in both ways: "force=True (--force)".
    sentence = re.sub(r"\b[a-z_]+=\S+ \((--[^()]+)\)", r"\1", sentence)
    for option in _options():
        name = re.escape(option.name)
        sentence = re.sub(
            rf"(?<!['\"\w])(?<!\w\(){name}=('[^']*'|\w+)",
            lambda found, option=option: _given(option, found[1].strip("'")),  # type: ignore[misc]
            sentence,
        )
        # A name of one word is also a common word, so it is only known where a sentence begins with it.
        bare = (
            rf"(?<![\w'\"./=-]){name}(?![\w'\"=(./-])"
            if "_" in option.name
            else rf"(?<=^Expected ){name}(?= (?:in|to be|only)\b)"
        )
        sentence = re.sub(bare, option.opts[0], sentence)
    return sentence


def _given(option: Any, value: str) -> str:
    if value == "True":
        return str(option.opts[0])
    if value == "False" and option.secondary_opts:
        return str(option.secondary_opts[0])
    return f"{option.opts[0]} {value}"


def _options() -> list[Any]:
    # typer has its own copy of click, or uses click itself, by its version.
    parsing = TyperGroup.__mro__[1].__module__.rpartition(".")[0]
    context = import_module(f"{parsing}.globals").get_current_context(silent=True)
    if context is None:
        return []
    return [option for option in context.command.params if option.param_type_name == "option"]
