"""An alert process on the secured stack: by its role's rights alone, with signed fences; its alerts at the centre."""

from __future__ import annotations

import time
from uuid import uuid4

import pulsar
import pytest

from cloud_jobs.reference.files import Signing, make_version, publish
from deploy.local import LocalStack, stack_operator
from deploy.local.stack_settings import alert_process, alert_settings
from gateway.alerts.config import AlertSettings
from gateway.alerts.status import read_alerts_status
from geo.alerts import Alert, decode_alert
from tests.pulsar_clients import open_client
from tests.system.alert_region import FEATURES, Drive
from tests.waiting import wait_until
from waybill.settings import load

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_an_alert_of_a_region_is_read_at_the_centre_a_moment_later(stack: LocalStack) -> None:
    hq, eu, mark = stack.pulsar["hq"], stack.pulsar["eu"], uuid4().hex[:8]
    fences = [
        make_version("fence", one | {"properties": one["properties"] | {"id": f"{one['properties']['id']}-{mark}"}})
        for one in FEATURES
    ]
    signing = Signing(stack_operator(stack.folder).key, "a test")
    publish([hq.service_url], fences, stack.access("publisher"), signing=signing)
    publish(
        [hq.service_url], [make_version("fence", FEATURES[0] | {"id": f"nobody-{mark}"})], stack.access("publisher")
    )
    process = alert_process(stack, "eu")
    settings = load(AlertSettings, alert_settings(stack, "eu"))
    centre, region = (
        open_client(hq.service_url, stack.access("jobs")),
        open_client(eu.service_url, stack.access("gateway-eu")),
    )
    reader = centre.create_reader("persistent://fleet/alerts-eu/alerts", pulsar.MessageId.latest)
    process.start()
    try:
        wait_until(lambda: process.check() and read_alerts_status(settings.status).healthy, 60)
        # The fences come from the centre.
        wait_until(lambda: read_alerts_status(settings.status).fences >= 1, 30)
        status = read_alerts_status(settings.status)
        assert status.fence_last_refused
        assert len(status.partitions_held) == 2 * len(settings.tenants)
        producer = region.create_producer("persistent://fleet/telemetry-eu/batches")
        drive = Drive(f"secured-{mark}", 4)
        for payload in drive.payloads():
            said = {"tenant": "fleet", "device": drive.device, "region": "eu"}
            producer.send(payload, partition_key=drive.device, properties=said)
        alerts: dict[str, tuple[Alert, float]] = {}
        while {alert.place for alert, _ in alerts.values()} < {f"square-{mark}", f"bridge-{mark}"}:
            message = reader.read_next(timeout_millis=20_000)
            alert = decode_alert(message.data())
            if alert.device == drive.device:
                alerts[alert.id] = alert, time.time() * 1000
    finally:
        process.stop()
        centre.close()
        region.close()
    assert {alert.region for alert, _ in alerts.values()} == {"eu"}
    assert {alert.kind for alert, _ in alerts.values()} <= {"enter", "exit", "forward", "backward"}
    assert all(read_ms - alert.received_ms < 10_000 for alert, read_ms in alerts.values())
