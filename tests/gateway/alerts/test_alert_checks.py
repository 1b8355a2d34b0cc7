"""What the settings of an alert process need, and what it warns of."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.alerts.config import AlertSettings, warnings
from gateway.alerts.service import AlertService
from tests.tokens import token_file
from waybill.settings import parse

TEXT = """
name = "eu-1"
region = "eu"
tenants = {tenants}
insecure = true

[pulsar]
service_url = "pulsar://127.0.0.1:6650"
{more}

[fences]
unsigned = true
"""


def settings(more: str = "", tenants: str = '["acme"]') -> AlertSettings:
    return parse(AlertSettings, TEXT.format(more=more, tenants=tenants), "alerts.toml")


@pytest.mark.parametrize(("ends_in_s", "said"), [(-1.0, "ended at"), (3600.0, "nobody has renewed it")])
def test_a_token_that_ended_or_ends_soon_is_a_warning(tmp_path: Path, ends_in_s: float, said: str) -> None:
    file = token_file(tmp_path, "alerts-eu", ends_in_s=ends_in_s)
    made = settings(f'access = {{ token_file = "{file}" }}')
    (found,) = [one for one in warnings(made, tmp_path / "alerts.toml", time.time()) if said in one]
    assert found.startswith("pulsar.access.token_file: token of alerts-eu")


@pytest.mark.parametrize(("ends_in_s", "said"), [(-1.0, "ended at"), (3600.0, "nobody has renewed it")])
def test_a_process_says_that_its_token_ended_before_what_follows_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_in_s: float, said: str
) -> None:
    file = token_file(tmp_path, "alerts-eu", ends_in_s=ends_in_s)
    service = AlertService(settings(f'access = {{ token_file = "{file}" }}'))
    for other in ("", "fences are not known"):
        monkeypatch.setattr(AlertService, "_problem", lambda *_, said=other: said)
        service._update(time.monotonic())
        assert not service._status.healthy
        # what is wrong anyhow comes before a token that is good for a while
        assert (said in service._status.last_error) == (not other or ends_in_s < 0)
