"""Settings of another program are named, with the right file beside them."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from cloud_jobs.config import CloudSettings
from edge_agent.config import AgentSettings
from gateway.access.config import AccessSettings
from gateway.alerts.config import AlertSettings
from gateway.canary.config import CanarySettings
from gateway.config import GatewaySettings
from gateway.webhooks.config import NotifierSettings
from geo.replication import Topology
from waybill.identity.operator_settings import OperatorSettings
from waybill.settings import Settings, SettingsError, load
from waybill.settings.loading import KINDS

MODELS: dict[str, type[Settings]] = {
    "edge-agent run": AgentSettings,
    "fleet-gateway run": GatewaySettings,
    "fleet-gateway alerts run": AlertSettings,
    "fleet-gateway access run": AccessSettings,
    "cloud-jobs": CloudSettings,
    "waybill device": OperatorSettings,
    "waybill alerts": NotifierSettings,
    "waybill canary run": CanarySettings,
    "waybill topology": Topology,
}


def test_each_program_is_known_by_keys_that_no_other_has() -> None:
    def known_as(model: type[BaseModel]) -> list[str]:
        return [name for name, kind in KINDS.items() if kind <= {*model.model_fields}]

    assert {name: known_as(model) for name, model in MODELS.items()} == {name: [name] for name in KINDS}


@pytest.mark.parametrize("wanted", MODELS)
@pytest.mark.parametrize("given", MODELS)
def test_a_file_of_another_program_is_said_so_with_the_right_file(tmp_path: Path, given: str, wanted: str) -> None:
    for number, (name, keys) in enumerate(KINDS.items()):
        (tmp_path / f"{number}.toml").write_text("".join(f"{key} = 1\n" for key in sorted(keys)))
        if name == wanted:
            right = tmp_path / f"{number}.toml"
        if name == given:
            wrong = tmp_path / f"{number}.toml"
    with pytest.raises(SettingsError) as caught:
        load(MODELS[wanted], wrong)
    expected = f"this file has the settings of `{given}`, not of `{wanted}`; those of `{wanted}` are in {right}"
    assert (caught.value.problems == [expected]) == (given != wanted)
