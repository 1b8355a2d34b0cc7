"""What the page says of delivery is so: its settings, its rules, and the receiver's check of its request."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.contracts import contracts_of_toml
from deploy.local.stack import DEFAULT_TOPOLOGY
from gateway.webhooks.config import BACKOFF_MAX_S, NotifierSettings, WebhookSettings
from gateway.webhooks.notebook import HeldBack, digests_of
from geo.alerts import AlertRule
from geo.replication import Topology
from waybill.settings import parse

PAGE = (Path(__file__).parents[3] / "docs/alerts.md").read_text(encoding="utf-8")
RULES, DELIVERY = PAGE.split("\n## Rules\n")[1].split("\n## Delivery\n")


def blocks(text: str, language: str) -> list[str]:
    # of all languages at once: the end of one block is no beginning of the next
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for one, block in found if one == language]


def test_the_rules_of_the_page_can_be_published() -> None:
    (text,) = blocks(RULES, "toml")
    made, faults = contracts_of_toml(text)
    assert (len(made), faults) == (2, [])


@pytest.mark.parametrize("text", [one for one in blocks(DELIVERY, "toml") if "[roles." not in one])
def test_the_settings_of_the_page_can_be_used(text: str) -> None:
    assert parse(NotifierSettings, text, "alerts.md").webhooks


def test_the_role_of_a_program_may_read_one_customers_alerts_and_verdicts_and_nothing_else() -> None:
    (role,) = [one for one in blocks(DELIVERY, "toml") if "[roles." in one]
    local = DEFAULT_TOPOLOGY.read_text(encoding="utf-8").replace("tenants.fleet", "tenants.acme")
    topology = parse(Topology, f"{local}\n[tenants.fleet]\n{role}", "topology.toml")
    grants = [topology.grants("hq", one) for one, (_, clusters) in topology.placed().items() if "hq" in clusters]
    held = {topic: roles["acme-dispatch"] for one in grants for topic, roles in one.items() if "acme-dispatch" in roles}
    assert held.keys() == {"acme/alerts-eu/alerts", "acme/alerts-us/alerts", "acme/events/verdicts"}
    assert {right for rights in held.values() for right in rights} == {"consume"}


def test_the_receiver_of_the_page_takes_the_request_of_the_page_and_no_other() -> None:
    (program,) = blocks(DELIVERY, "python")
    (request,) = [text for text in blocks(DELIVERY, "") if text.startswith("POST ")]
    (secret,) = re.findall(r"`(whsec_[^`]+)`", DELIVERY.split("signed with")[1])
    head, _, body = request.rstrip("\n").partition("\n\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    assert len(body) == int(headers["Content-Length"])
    made: dict[str, Any] = {}
    exec(compile(program, "alerts.md", "exec"), made)  # noqa: S102 - the project's own page
    is_right, now_s = made["is_right"], int(headers["webhook-timestamp"]) + 3
    assert is_right(headers, body.encode(), secret, now_s)
    assert not is_right(headers, body.replace("depot", "gates").encode(), secret, now_s)
    assert not is_right(headers, body.encode(), secret, now_s + 3600), "what was recorded an hour ago"
    assert not is_right(headers, body.encode(), secret.replace("MDEy", "MDEz"), now_s)


def test_the_summary_of_the_page_is_the_one_that_follows_from_the_messages_in_it() -> None:
    (text,) = [block for block in blocks(DELIVERY, "json") if '"type":"digest"' in block]
    (reason,) = json.loads(text)["digest"]["by_reason"]
    held = [HeldBack(**one, decision=reason) for one in json.loads(text)["digest"]["messages"]]
    rule = {"id": "acme/depot", "effective_from": "2026-11-01T00:00:00Z", "webhook": "acme-ops"}
    (digest,) = digests_of(AlertRule.model_validate_json(json.dumps(rule)), held, {})
    assert digest.body.decode() == text.rstrip("\n")


def test_the_schedule_of_the_page_is_that_of_the_settings() -> None:
    settings = {name: field.default for name, field in WebhookSettings.model_fields.items()}
    assert (settings["backoff_first_s"], BACKOFF_MAX_S, settings["max_age_s"]) == (1, 300, 3600)
    assert "doubles from 1 s to 5 min" in DELIVERY
