"""Alerts are delivered over a real Pulsar to real servers: none is lost, whatever becomes of either side."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from geo.alerts import VerdictKind
from tests.gateway.webhooks.hook_server import HookServer, Request, answers, hook_server
from tests.system.notifier_centre import TENANT, VERDICTS, NotifierCentre, NotifierProcess, alert, verdict
from tests.system.own_pulsar import own_pulsar
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

NUMBERS = count(1)


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotifierCentre]:
    """A Pulsar of our own: what is in its topics is known."""
    folder = tmp_path_factory.mktemp("notifier")
    with own_pulsar("hq", folder, f"{TENANT}/alerts-eu", f"{TENANT}/events", "fleet/reference") as pulsar:
        made = NotifierCentre(pulsar, folder)
        made.publish_account("acme", ["bus-1", "bus-2"])
        made.publish_rules({"id": "acme/all"})
        yield made


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


@pytest.fixture
def notifier(centre: NotifierCentre) -> Iterator[Callable[..., NotifierProcess]]:
    made: list[NotifierProcess] = []

    def make(webhooks: dict[str, str], more: str = "") -> NotifierProcess:
        one = centre.notifier(f"n{next(NUMBERS)}", webhooks, more)
        made.append(one)
        return one

    yield make
    for one in made:
        one.process.stop()


def numbered(several: int, device: str = "bus-1", **more: Any) -> list[Any]:
    return [alert(device, next(NUMBERS), **more) for _ in range(several)]


def keys_of(alerts: list[Any]) -> set[str]:
    return {f"{one.id}/provisional" for one in alerts}


def test_alerts_and_verdicts_of_the_account_s_devices_arrive_signed_and_soon(
    centre: NotifierCentre, notifier: Callable[..., NotifierProcess], server: HookServer
) -> None:
    process = notifier({"ops": f"{server.url}/hook"})
    process.begin()
    alerts = numbered(20)
    strangers = numbered(3, "bus-9")
    began_s = time.monotonic()
    centre.send(*alerts, *strangers, *(verdict(one) for one in alerts[:10]), verdict(alerts[10], VerdictKind.WITHDRAWN))
    expected = keys_of(alerts) | {f"{one.id}/verdict-0" for one in alerts[:11]}
    wait_until(lambda: set(server.keys) >= expected, 20)
    assert time.monotonic() - began_s < 15 * PATIENCE
    assert sorted(server.keys) == sorted(expected), "each once, and none of a device of nobody"
    assert all(one.is_signed() for one in server.requests)
    assert Counter(one.content["type"] for one in server.requests) == {"alert": 20, "verdict": 11}
    wait_until(lambda: centre.unacknowledged() == centre.unacknowledged(VERDICTS) == 0, 10)
    wait_until(lambda: process.status().deliveries == {"delivered": 31}, 5)
    status = process.status()
    assert status.healthy is True
    assert (status.read, status.passed_over) == ({"alert": 23, "verdict": 11}, {"no-rule": 3})
    assert (status.rules, status.devices) == (1, 2)
    base = f"http://127.0.0.1:{process.endpoint.port}"
    assert httpx.get(f"{base}/health").status_code == 200
    metrics = httpx.get(f"{base}/metrics").text
    assert 'waybill_webhooks_deliveries_total{outcome="delivered",webhook="ops"} 31.0' in metrics
    assert "waybill_webhooks_healthy 1.0" in metrics
    code, said = process.command("status")
    assert (code, "webhook ops" in said) == (0, True)
    code, said = process.command("check-config")
    assert (code, "valid. Webhooks: ops" in said) == (0, True)


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.nightly)])
def test_killed_in_mid_flight_nothing_is_lost_and_repeats_have_the_same_key(
    centre: NotifierCentre, notifier: Callable[..., NotifierProcess], server: HookServer, kills: int
) -> None:
    seen: Counter[str] = Counter()

    def behave(connection: Any, request: Request) -> None:
        seen[request.key] += 1
        time.sleep(0.05)
        # each third message is refused at first, so that some wait for their next attempt when the process dies
        answer = "503 Busy" if seen[request.key] == 1 and int(request.key[:24], 16) % 3 == 0 else "200 OK"
        answers(answer)(connection, request)

    server.behave = behave
    process = notifier({"ops": f"{server.url}/hook"})
    process.begin()
    # 80 a second are taken, also while a process that was started anew is waited for: enough for each kill, and fewer
    # than a queue holds
    alerts = numbered(150 * kills)
    centre.send(*alerts)
    for _ in range(kills):
        before = len(server.requests)
        wait_until(
            lambda before=before: len(server.requests) > before + 10,  # type: ignore[misc]
            30,
            said=lambda: f"{len(server.requests)} requests, {centre.unacknowledged()} wait, {process.status()}",
        )
        process.kill()
        process.begin()
    wait_until(lambda: centre.unacknowledged() == 0, 60)
    assert set(server.keys) == keys_of(alerts)
    assert len(server.keys) > len(alerts), "some came again"
    bodies = {key: {one.body for one in server.requests if one.key == key} for key in seen}
    assert all(len(several) == 1 for several in bodies.values()), "with the same content"
    assert process.undelivered() == []
