"""Who has no token is refused where that was seen: silence alone may be a dead address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pydantic import SecretStr

from geo.replication import verification as grant_probe
from geo.replication.admin import AdminClient
from geo.replication.apply import ServiceAddress
from geo.replication.verification import NOBODY, VerifyResult, try_rights
from tests.geo.replication.brokers import RUNTIME, FakeBroker
from tests.geo.replication.test_roles import topology
from waybill.pulsar.pulsar_client import PulsarAccess

_SAID = b'{"clusterName": "eu", "authorizationEnabled": "true"}'


class _Client:
    """Of a service address that gives an answer, or none within the time."""

    def __init__(self, answer: pulsar.PulsarException | None) -> None:
        self._answer = answer

    def create_producer(self, *_: object) -> Any:
        if self._answer is not None:
            raise self._answer
        return self

    create_reader = create_producer

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "of_operator", "was"),
    [
        (401, None, False),
        (403, pulsar.AuthorizationError("not this topic"), False),
        (401, pulsar.Timeout("TimeOut"), None),
        (500, None, None),
        (200, None, None),
    ],
)
def test_silence_to_nobody_is_a_refusal_where_http_refuses_and_the_operator_is_answered(
    broker: Callable[[str], FakeBroker],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    of_operator: pulsar.PulsarException | None,
    was: bool | None,
) -> None:
    eu = broker("eu")
    eu.answers |= {RUNTIME: (200, {}, _SAID), "/admin/v2/tenants": (status, {}, b"[]")}

    def connect(admin: AdminClient, _: ServiceAddress, **__: object) -> _Client:
        return _Client(of_operator if admin.access.token is not None else pulsar.Timeout("TimeOut"))

    monkeypatch.setattr(grant_probe, "connect", connect)
    with AdminClient("eu", eu.url, access=PulsarAccess(token=SecretStr("operator"))) as admin:
        asked, produced = try_rights(topology(), {"eu": admin}, None)
    assert (asked.role, asked.action) == (produced.role, "ask for") == (NOBODY, "ask for")
    assert (produced.action, produced.was) == ("produce", was)
    assert ("TimeOut" in str(produced)) is (was is None)


@pytest.mark.parametrize(("was", "verdict"), [((False, False), True), ((False, None), None), ((True, None), False)])
def test_what_got_no_answer_is_unknown_unless_something_is_wrong(
    was: tuple[bool | None, ...], verdict: bool | None
) -> None:
    rights = tuple(
        grant_probe.TriedRight(role=NOBODY, cluster="eu", action="produce", resource="a/b", may=False, was=one)
        for one in was
    )
    assert VerifyResult(links=(), unreachable={}, rights=rights).is_good is verdict
