"""The ClientApp: what answers at a site.

``scbatchprox federated courier`` calls :func:`reply` itself, and never runs an app that a server sends. The
app here is for a supernode that is started by other means; its ``--node-config`` names ``outbox`` and
``inbox``.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .letters import Code, Have
from .records import to_flower, to_plain
from .site import Site
from .wire import Letter

__all__ = ["app", "reply"]

#: The type of all requests.
REQUEST = "query"


def reply(message: Any, site: Site | None) -> Any:
    """Return the answer to a message; it holds codes and messages of the outbox only."""
    from flwr.app import Message

    try:
        records = to_plain(message.content) if message.metadata.message_type == REQUEST else {}
    except Exception:
        records = {}
    no_folders = Letter(Have({}, {}), codes={"": Code.FOLDER})
    answer = no_folders.records() if site is None else site.answer(records)
    return Message(to_flower(answer), reply_to=message)


def _query(message: Any, context: Any) -> Any:
    try:
        site = Site(Path(context.node_config["outbox"]), Path(context.node_config["inbox"]))
    except (KeyError, TypeError, OSError):
        site = None
    return reply(message, site)


def _app() -> Any:
    """Return the app, or None without Flower: this module can always be imported."""
    if find_spec("flwr") is None:
        return None
    from flwr.clientapp import ClientApp

    made = ClientApp()
    made.query()(_query)
    return made


app = _app()
