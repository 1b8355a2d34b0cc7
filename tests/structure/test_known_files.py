"""A settings file that was given to another command is recognised, and by the keys that its class has."""

from __future__ import annotations

import pytest

from cloud_jobs.config import CloudSettings
from deploy.canary.config import CanarySettings
from edge_agent.config import AgentSettings
from gateway.access.config import AccessSettings
from gateway.alerts.config import AlertSettings
from gateway.config import GatewaySettings
from gateway.webhooks.config import NotifierSettings, TailSettings
from geo.replication import Topology
from waybill.identity.operator_settings import OperatorSettings
from waybill.settings import Settings, SettingsError, parse
from waybill.settings.loading import KNOWN_FILES, command_of

MODELS: list[type[Settings]] = [
    AccessSettings, AgentSettings, AlertSettings, CanarySettings, CloudSettings, GatewaySettings, NotifierSettings,
    OperatorSettings, TailSettings, Topology,
]  # fmt: skip
ALERTS = """name = "eu-1"
region = "eu"
tenants = ["acme"]
[pulsar]
service_url = "pulsar://127.0.0.1:6650"
[fences]
unsigned = true
"""


def test_the_keys_of_each_file_are_those_of_its_class() -> None:
    assert {one.__name__ for one in MODELS} == KNOWN_FILES.keys()
    for model in MODELS:
        known = KNOWN_FILES[model.__name__]
        needed = {name for name, field in model.model_fields.items() if field.is_required()}
        assert known.needed == needed, model.__name__
        assert known.others == model.model_fields.keys() - needed, model.__name__


def test_each_file_is_known_from_each_other_one() -> None:
    for known in KNOWN_FILES.values():
        assert command_of(known.needed) == command_of(known.needed | known.others) == known.command


@pytest.mark.parametrize("model", [NotifierSettings, TailSettings])
def test_the_file_of_another_command_is_called_so_and_nothing_else_is_said_of_it(model: type[Settings]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(model, ALERTS, "alerts.toml")
    said = "has the settings of `fleet-gateway alerts`, and those of `waybill alerts` are needed"
    assert caught.value.problems == [said]


def test_mistakes_in_the_right_file_are_named_as_ever() -> None:
    with pytest.raises(SettingsError) as caught:
        parse(AlertSettings, f"rewind_s = -1\n{ALERTS}", "alerts.toml")
    assert caught.value.problems[0].startswith("rewind_s: ")
