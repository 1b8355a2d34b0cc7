"""One turn of the process that delivers alerts."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

from gateway.webhooks.intake import TakenMessage
from gateway.webhooks.notifier import GoingBy
from gateway.webhooks.service import NotifierService
from tests.gateway.webhooks.notifier_world import TOPIC
from tests.gateway.webhooks.test_routes import EVERYBODY, rules

BY = GoingBy(rules({"id": "acme/all"}), EVERYBODY)
MESSAGE = TakenMessage(TOPIC, "m1", b"", lambda: None)


class _Rules:
    """They become known while the first message is awaited, and let it be read."""

    rules: Any = None


class _Taken(queue.Queue[TakenMessage]):
    def __init__(self, known: _Rules) -> None:
        super().__init__()
        self._known = known

    def get(self, block: bool = True, timeout: float | None = None) -> TakenMessage:
        if self._known.rules is None:
            self._known.rules = BY.rules
            return MESSAGE
        return super().get(block, timeout)


def test_what_is_read_while_rules_become_known_is_decided_by_them() -> None:
    taken, known = list[Any](), _Rules()
    service = NotifierService.__new__(NotifierService)
    parts: dict[str, Any] = {
        "_rules": known,
        "_accounts": SimpleNamespace(rules=BY.accounts),
        "_intake": SimpleNamespace(taken=_Taken(known)),
        "_notifier": SimpleNamespace(settle=lambda: None, take=lambda *several: taken.append(several)),
    }
    vars(service).update(parts)
    service._turn()
    assert taken == [([MESSAGE], BY)]
