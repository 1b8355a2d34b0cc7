"""Reference data over a real Pulsar: published from files, compacted, collected by several at once, and billed."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cloud_jobs.billing.contracts import Tariff, usable_contract
from cloud_jobs.reference.commands import app
from cloud_jobs.reference.files import Signing, make_version, publish
from cloud_jobs.reference.tables import CollectionResult, collect, in_force, publications_in, quarantined_messages
from deploy.local import LocalStack, PulsarCluster, stack_operator
from geo.reference.messages import ReferenceTrust
from tests.new_lakes import new_lake
from tests.pulsar_clients import open_client, source_access
from waybill.identity.signatures import (
    OperatorKey,
    Publication,
    next_publication_id,
    read_operators,
    sign_publication,
    trusted_key,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def tariff(name: str, price: str) -> Any:
    prices = [{"meter": "distance", "unit": "km", "unit_amount": price}]
    body = {"id": name, "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": prices}
    return make_version("tariff", body)


def send_junk(cluster: PulsarCluster, key: str, operator: OperatorKey) -> None:
    """Messages that are no publications, and one that came twice, as after a retry of its producer."""
    version = tariff(f"{key}-twice", "1")
    publication = Publication("tariff", version.key, version.body.encode())
    properties = sign_publication(operator, publication, next_publication_id(None, 1, 0), "a test")
    client = open_client(cluster.service_url, cluster.access)
    try:
        producer = client.create_producer("persistent://fleet/reference/tariffs")
        producer.send(b"no JSON", partition_key=key, properties=properties)
        producer.send(version.body.encode(), partition_key=key)
        for _ in range(2):
            producer.send(version.body.encode(), partition_key=version.key, properties=properties)
    finally:
        client.close()


def test_a_price_that_is_set_back_holds_and_collectors_at_once_have_each_publication_once(
    spark: SparkSession, stack: LocalStack, tmp_path: Path
) -> None:
    hq, name = stack.pulsar["hq"], f"t-{uuid4().hex[:8]}"
    operator = stack_operator(stack.folder)
    signing, trust = Signing(operator.key, "a test"), ReferenceTrust(read_operators(operator.operators_file))
    lake = new_lake(tmp_path / "lake")
    # each with a clock that is behind the one before
    now_s, access = time.time(), stack.access("publisher")
    for clock_s, price in ((now_s, "0.45"), (now_s - 100, "4.50"), (now_s - 200, "0.45")):
        publish([hq.service_url], [tariff(name, price)], access, clock=lambda: clock_s, signing=signing)  # noqa: B023
    send_junk(hq, name, operator.key)
    options = {"clusters": f"hq={hq.service_url}|{hq.admin_url}", **source_access(stack.access("jobs"))}

    def collected(_: int) -> CollectionResult:
        return collect(spark, lake, options, trust)

    with ThreadPoolExecutor(3) as running:
        results = list(running.map(collected, range(3)))
    assert len({one.publications for one in results}) == 1
    assert sum(one.added for one in results) == results[0].publications
    assert collect(spark, lake, options, trust).added == 0
    mine = [row for row in publications_in(lake) if row["id"].startswith(name)]
    assert [row["id"] for row in mine] == [f"{name}-twice", name, name, name]
    found = in_force((row for row in mine if row["id"] == name), usable_contract)
    assert (
        [str(one.made.prices[0].unit_amount) for one in found.held if isinstance(one.made, Tariff)],
        found.refused,
    ) == (["0.45"], ())
    bad = [row for row in quarantined_messages(lake) if row["key"] == name]
    assert len(bad) == 2
    for result in results:
        assert {(row["topic"], row["message_id"], row["reason"]) for row in bad} <= {
            (one.topic, one.message_id, one.reason) for one in result.quarantined
        }


def test_what_nobody_signed_who_may_is_in_quarantine_and_the_history_names_who_when_and_why(
    spark: SparkSession, stack: LocalStack, tmp_path: Path
) -> None:
    hq, name = stack.pulsar["hq"], f"s-{uuid4().hex[:8]}"
    operator, acme, lost = stack_operator(stack.folder), OperatorKey.generate(), OperatorKey.generate()
    trusted = {acme.key_id: trusted_key(acme, "acme clerk", tenants=("acme",), kinds=("*",), accounts=("acme",))}
    keys = read_operators(operator.operators_file)
    trust = ReferenceTrust(keys.model_copy(update={"keys": {**keys.keys, **trusted}}))
    lake = new_lake(tmp_path / "lake")
    urls, access = [hq.service_url], stack.access("publisher")
    publish(urls, [tariff(name, "0.45")], access, signing=Signing(operator.key, "as agreed"))
    publish(urls, [tariff(name, "9.99")], access)
    publish(urls, [tariff(name, "9.98")], access, signing=Signing(lost, "a key that nobody trusts"))
    publish(urls, [tariff(name, "9.97")], access, signing=Signing(acme, "a tenant's own"))
    altered(hq, tariff(name, "9.96"), operator.key)
    options = {"clusters": f"hq={hq.service_url}|{hq.admin_url}", **source_access(stack.access("jobs"))}
    for _ in range(2):
        found = collect(spark, lake, options, trust)
        refused = [one.reason.partition(":")[0] for one in found.quarantined if one.key.startswith(f"{name}@")]
        # the topic is compacted by key, so what stands last there is what a later reader sees
        assert sorted(refused) == ["altered", "no-right", "unknown-key", "unsigned"]
    done = CliRunner().invoke(
        app, ["history", name, "--lake", f"{tmp_path}/lake", "--operators", str(operator.operators_file), "--json"]
    )
    first, *rest = json.loads(done.stdout)["publications"]
    assert (first["published_by"], first["reason"], first["signature"], first["state"]) == (
        *("operator", "as agreed", "signed", "in force"),
    )
    assert [one["state"] for one in rest] == ["refused"] * 4
    assert "0.45" in first["body"]


def altered(cluster: PulsarCluster, version: Any, operator: OperatorKey) -> None:
    """A publication whose price was changed after it was signed."""
    body = version.body.encode()
    signed = Publication("tariff", version.key, body.replace(b"9.96", b"0.01"))
    properties = sign_publication(operator, signed, next_publication_id(None, round(time.time() * 1000), 0), "altered")
    client = open_client(cluster.service_url, cluster.access)
    try:
        producer = client.create_producer("persistent://fleet/reference/tariffs")
        producer.send(body, partition_key=version.key, properties=properties)
    finally:
        client.close()
