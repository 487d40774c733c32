"""The apps that Flower runs: the only module that needs Flower to be imported.

``scbatchprox federated courier`` calls :func:`reply` itself, and never runs an app that a server sends. The
ClientApp is for a supernode that is started by other means; its ``--node-config`` names ``outbox`` and
``inbox``. The run config of the ServerApp has ``store`` and the fields of Settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from .client import CourierSite
from .letters import Code, Have, Letter, Records
from .runs import ENDED, Settings
from .server import Sweeps

__all__ = ["client", "reply", "server"]

#: The type of all requests.
REQUEST = "query"


def reply(message: Any, site: CourierSite | None) -> Any:
    """Return the answer to a message; it holds codes and messages of the outbox only."""
    try:
        records = _plain(message.content) if message.metadata.message_type == REQUEST else {}
    except Exception:
        records = {}
    no_folders = Letter(Have({}, {}), codes={"": Code.FOLDER})
    answer = no_folders.records() if site is None else site.answer(records)
    return Message(_flower(answer), reply_to=message)


def _answer(message: Any, context: Any) -> Any:
    try:
        site = CourierSite(Path(context.node_config["outbox"]), Path(context.node_config["inbox"]))
    except (KeyError, TypeError, OSError):
        site = None
    return reply(message, site)


class _Grid:
    """Flower's grid as a post."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> Iterable[int]:
        return [int(node) for node in self._grid.get_node_ids()]

    def send(self, node: int, records: Mapping[str, Mapping[str, Any]], ttl: float) -> str | None:
        message = Message(_flower(records), dst_node_id=node, message_type=REQUEST, ttl=ttl)
        numbers = list(self._grid.push_messages([message]))
        return numbers[0] if numbers else None

    def receive(self, numbers: Iterable[str]) -> dict[str, Any]:
        return {
            answer.metadata.reply_to_message_id: (
                None if answer.has_error() else _plain(answer.content)
            )
            for answer in self._grid.pull_messages(list(numbers))
        }


def _sweep(grid: Any, context: Any) -> None:
    config = context.run_config
    settings = Settings(**{field.name: config[field.name] for field in fields(Settings)})
    store = Path(str(config["store"]))
    store.mkdir(parents=True, exist_ok=True)
    say = partial(print, flush=True)
    say(ENDED + Sweeps(_Grid(grid), store, settings, say=say).run())


def _flower(records: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a RecordDict of ConfigRecords."""
    return RecordDict({name: ConfigRecord(dict(record)) for name, record in records.items()})


def _plain(content: Any) -> Records:
    """Return the ConfigRecords of a RecordDict; others are left out."""
    return {name: dict(record) for name, record in content.config_records.items()}


client = ClientApp()
client.query()(_answer)
server = ServerApp()
server.main()(_sweep)
