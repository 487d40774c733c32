"""The ServerApp: it sweeps over the sites. Its run config has ``store`` and the fields of Settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .client import REQUEST
from .records import to_flower, to_plain
from .sweeps import ENDED, Settings, Sweeps

__all__ = ["app"]


class _Grid:
    """Flower's grid as a post."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> Iterable[int]:
        return [int(node) for node in self._grid.get_node_ids()]

    def send(self, node: int, records: Mapping[str, Mapping[str, Any]], ttl: float) -> str | None:
        from flwr.app import Message

        message = Message(to_flower(records), dst_node_id=node, message_type=REQUEST, ttl=ttl)
        numbers = list(self._grid.push_messages([message]))
        return numbers[0] if numbers else None

    def receive(self, numbers: Iterable[str]) -> dict[str, Any]:
        return {
            answer.metadata.reply_to_message_id: (
                None if answer.has_error() else to_plain(answer.content)
            )
            for answer in self._grid.pull_messages(list(numbers))
        }


def _say(line: str) -> None:
    print(line, flush=True)


def _main(grid: Any, context: Any) -> None:
    config = context.run_config
    settings = Settings(**{field.name: config[field.name] for field in fields(Settings)})
    store = Path(str(config["store"]))
    store.mkdir(parents=True, exist_ok=True)
    _say(ENDED + Sweeps(_Grid(grid), store, settings, say=_say).run())


def _app() -> Any:
    """Return the app, or None without Flower: this module can always be imported."""
    if find_spec("flwr") is None:
        return None
    from flwr.serverapp import ServerApp

    made = ServerApp()
    made.main()(_main)
    return made


app = _app()
