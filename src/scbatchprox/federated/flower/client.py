"""What answers at a site: it sends messages of its outbox, and writes those of others to its inbox."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .folder import CourierFolder
from .letters import BUDGET, BadLetter, Code, Have, Letter, is_name

__all__ = ["CourierSite"]

_log = logging.getLogger(__name__)


class CourierSite:
    """Answers the requests of a server. Only codes and whole messages leave, never an error's text."""

    def __init__(self, outbox: Path, inbox: Path, *, budget: int = BUDGET) -> None:
        self.outbox, self.inbox = CourierFolder(outbox), CourierFolder(inbox)
        self._budget = budget

    def answer(self, records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Store the files of a request, and return the answer, which holds files the server lacks."""
        try:
            return self._answer(Letter.of(records)).records()
        except BadLetter:
            code = Code.BAD_REQUEST
        except Exception:
            # The text may name paths, so it stays here.
            _log.exception("The courier could not answer a request.")
            code = Code.FOLDER
        return Letter(Have({}, {}), codes={"": code}).records()

    def _answer(self, request: Letter) -> Letter:
        own, others = self.outbox.files(), self.inbox.files()
        codes: dict[str, Code] = {}
        for part in request.parts:
            if part.name in own:
                code = Code.OK if own[part.name] == part.entry else Code.CONFLICT
            else:
                code = self.inbox.accept(part, others)
            if code not in (Code.OK, Code.OUT_OF_STEP):
                _log.warning("Refused %s: %s", part.name if is_name(part.name) else "?", code)
                codes[part.name if is_name(part.name) else ""] = code
        sendable = {name: entry for name, entry in own.items() if name not in request.codes}
        parts = self.outbox.parts(sendable, request.have, self._budget)
        # Own files count as present, so that nobody sends them back or others under their names.
        return Letter(Have(others | own, self.inbox.begun()), parts, codes)
