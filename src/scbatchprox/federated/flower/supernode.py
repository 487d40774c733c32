"""A supernode that ends when the courier that started it does, also when that is killed.

Run as ``python -m scbatchprox.federated.flower.supernode OPTIONS``, with the options of ``flower-supernode``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

__all__ = ["main"]

#: Seconds that Flower has to say goodbye to its server.
GRACE = 8.0


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def main() -> None:
    """Run the supernode."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    from flwr.supernode.cli import flower_supernode

    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
