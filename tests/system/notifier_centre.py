"""A centre for the tests of delivery: Pulsar, rules and accounts, alerts and verdicts, and whoever delivers them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cloud_jobs.reference.files import make_version, publish
from deploy.local import DaemonProcess, PulsarCluster, free_port, http_health
from gateway.errors import NoAnswer
from gateway.webhooks.config import NotifierEndpoint
from gateway.webhooks.status import NotifierStatus, read_notifier_status
from geo.alerts import Alert, AlertVerdict, FinalEvent, VerdictKind, encode_alert, encode_verdict
from tests.cloud_jobs.billing.contracts.makers import account
from tests.gateway.webhooks.hook_server import write_secret
from tests.pulsar_clients import open_client
from tests.waiting import PATIENCE, wait_until

TENANT = "acme"
ALERTS = f"persistent://{TENANT}/alerts-eu/alerts"
VERDICTS = f"persistent://{TENANT}/events/verdicts"
BEGIN = "2026-01-01T00:00:00Z"


def alert(device: str, number: int, **more: Any) -> Alert:
    now_ms = round(time.time() * 1000)
    plain = {"tenant": TENANT, "device": device, "region": "eu", "epoch": 1, "seq": number, "kind": "enter"}
    times = {"t_ms": now_ms - 800, "received_ms": now_ms - 100, "raised_ms": now_ms}
    return Alert.model_validate(plain | times | {"id": f"{number:024x}", "place": "yard"} | more)


def verdict(of: Alert, kind: VerdictKind = VerdictKind.CONFIRMED, revision: int = 0) -> AlertVerdict:
    said = FinalEvent(kind=of.kind, place=of.place, t_ms=of.t_ms, epoch=of.epoch, seq=of.seq)
    facts = {"event": None, "alerted": said} if kind is VerdictKind.WITHDRAWN else {"event": said}
    return AlertVerdict(
        id=of.id,
        revision=revision,
        verdict=kind,
        tenant=of.tenant,
        device=of.device,
        decided_ms=round(time.time() * 1000),
        **facts,
    )


@dataclass
class NotifierCentre:
    """One Pulsar, and what is published there."""

    pulsar: PulsarCluster
    folder: Path

    @property
    def url(self) -> str:
        return self.pulsar.service_url

    def publish_account(self, name: str, devices: Iterable[str]) -> None:
        body = account(name) | {
            "effective_from": BEGIN,
            "devices": [{"tenant": TENANT, "device": one, "region": "eu", "begin": BEGIN} for one in devices],
        }
        publish([self.url], [make_version("account", body)], self.pulsar.access)

    def publish_rules(self, *rules: dict[str, Any]) -> None:
        versions = [make_version("alert_rule", {"effective_from": BEGIN, "webhook": "ops"} | one) for one in rules]
        publish([self.url], versions, self.pulsar.access)

    def send(self, *messages: Alert | AlertVerdict) -> None:
        """As a region and the centre publish them."""
        client = open_client(self.url, self.pulsar.access)
        try:
            alerts, verdicts = client.create_producer(ALERTS), client.create_producer(VERDICTS)
            for one in messages:
                if isinstance(one, Alert):
                    alerts.send_async(encode_alert(one), None, partition_key=one.device)
                else:
                    verdicts.send_async(encode_verdict(one), None, partition_key=f"{one.id}/{one.revision}")
            for producer in (alerts, verdicts):
                producer.flush()
        finally:
            client.close()

    def unacknowledged(self, topic: str = ALERTS, subscription: str = "notifier") -> int:
        """How many messages are neither taken nor acknowledged, by the broker."""
        name = topic.removeprefix("persistent://")
        stats = httpx.get(f"{self.pulsar.admin_url}/admin/v2/persistent/{name}/stats").json()
        return int(stats["subscriptions"].get(subscription, {}).get("msgBacklog", 0))

    def notifier(self, name: str, webhooks: dict[str, str], more: str = "") -> NotifierProcess:
        """One that is not started. `webhooks`: the URL of each."""
        return NotifierProcess(name, self, webhooks, more)


class NotifierProcess:
    """`waybill alerts deliver`, and its settings."""

    def __init__(self, name: str, centre: NotifierCentre, webhooks: dict[str, str], more: str = "") -> None:
        self.endpoint = NotifierEndpoint(port=free_port())
        folder = centre.folder / name
        folder.mkdir()
        secret = folder / "secret"
        write_secret(secret)
        self.config = folder / "notifier.toml"
        parts = "".join(
            f'[webhooks.{hook}]\nurl = "{url}"\nsecret_file = "{secret}"\n'
            'networks = ["127.0.0.0/8"]\naccounts = ["acme"]\n'
            "timeout_s = 2\nbackoff_first_s = 0.1\nmax_age_s = 60\n"
            for hook, url in webhooks.items()
        )
        self.config.write_text(
            f'insecure = true\ntenants = ["{TENANT}"]\nregions = ["eu"]\nstate_file = "{folder}/state.sqlite"\n'
            f'{more}\n[pulsar]\nservice_url = "{centre.url}"\n[rules]\nunsigned = true\n'
            f"[status]\nport = {self.endpoint.port}\n{parts}",
            encoding="utf-8",
        )
        self.process = DaemonProcess.python(
            name,
            "waybill",
            ["alerts", "deliver", "--config", str(self.config)],
            folder,
            healthy_when=http_health(f"http://127.0.0.1:{self.endpoint.port}/alive"),
        )

    def start(self) -> None:
        self.process.start()

    def begin(self) -> None:
        """Starts it, and waits until it delivers."""
        self.start()
        wait_until(lambda: self.state == "running", 60)

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def status(self) -> NotifierStatus:
        return read_notifier_status(self.endpoint)

    @property
    def state(self) -> str:
        try:
            return self.status().state
        except NoAnswer:
            return ""

    def command(self, *words: str) -> tuple[int, str]:
        """A command of `waybill alerts` with the same settings: its exit status, and what it said."""
        command = [sys.executable, "-m", "waybill", "alerts", *words, "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
        return done.returncode, done.stdout + done.stderr

    def undelivered(self, *words: str) -> list[dict[str, Any]]:
        code, said = self.command("undelivered", "list", "--json", *words)
        assert code == 0, said
        return [json.loads(line) for line in said.splitlines()]
