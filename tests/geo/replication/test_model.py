"""A topology file is read strictly, and its meaning is where things live."""

import re
from pathlib import Path

import pytest

import deploy.local
from geo.replication import Topology, desired
from geo.replication.topic_naming import is_addressable, partition_name, split_partition, topic_path
from waybill.settings import SettingsError, load, parse

LOCAL = Path(deploy.local.__file__).parent
TEXT = (LOCAL / "topology.toml").read_text()
ADDRESSES = "".join(
    f'[clusters.{name}.address]\nservice_url = "pulsar://{name}"\nadmin_url = "http://{name}"\n'
    for name in ("eu", "us", "hq")
)


def problem(old: str, new: str) -> str:
    assert old in TEXT
    with pytest.raises(SettingsError) as caught:
        parse(Topology, TEXT.replace(old, new, 1), "topology.toml")
    return str(caught.value)


def test_each_region_has_a_namespace_on_its_cluster_and_the_centre() -> None:
    placed = {name: clusters for name, (_, clusters) in load(Topology, LOCAL / "topology.toml").placed().items()}
    assert placed == {
        **{f"{tenant}/telemetry-{region}": {region, "hq"} for tenant in ("canary", "fleet") for region in ("eu", "us")},
        **{f"{tenant}/alerts-{region}": {region, "hq"} for tenant in ("canary", "fleet") for region in ("eu", "us")},
        "fleet/reference": {"eu", "us", "hq"},
        "fleet/access": {"eu", "us", "hq"},
        "canary/registry": {"eu", "us", "hq"},
        "fleet/registry": {"eu", "us", "hq"},
        "canary/events": {"hq"},
        "fleet/events": {"hq"},
    }


TWO = TEXT.replace(
    "[tenants.fleet]\noperator = true",
    """[tenants.fleet]
operator = true
[tenants.kaze]
operator = true
quotas."telemetry-{region}" = { backlog_quota = { size_mb = 7 }, publish_rate = { messages_per_s = 5, kb_per_s = 6 } }
[tenants.shared]
""",
)


def test_each_operator_has_namespaces_of_its_own_and_no_other_tenant_has() -> None:
    topology = parse(Topology, TWO, "topology.toml")
    placed = topology.placed()
    assert topology.operators == ("canary", "fleet", "kaze")
    assert set(placed) == {
        "fleet/reference",
        "fleet/access",
        *(f"{tenant}/telemetry-{region}" for tenant in topology.operators for region in ("eu", "us")),
        *(f"{tenant}/alerts-{region}" for tenant in topology.operators for region in ("eu", "us")),
        *(f"{tenant}/events" for tenant in topology.operators),
        *(f"{tenant}/registry" for tenant in topology.operators),
    }
    assert placed["kaze/telemetry-eu"][1] == {"eu", "hq"}
    assert placed["kaze/events"][1] == {"hq"}


def test_the_quotas_of_a_tenant_are_of_its_own_namespace_only() -> None:
    namespaces = desired(parse(Topology, TWO + ADDRESSES, "topology.toml"))["eu"].namespaces
    own, other = namespaces["kaze/telemetry-eu"], namespaces["fleet/telemetry-eu"]
    assert (own.backlog_quota, own.publish_rate) == ((7, "producer_request_hold"), (5, 6))
    assert (other.backlog_quota, other.publish_rate) == ((3072, "producer_request_hold"), None)
    assert own.retention == other.retention


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[tenants.shared]", '[tenants.shared]\nquotas."telemetry-{region}" = {}', "tenants.shared.quotas.telemetry-"),
        (
            'quotas."telemetry-{region}"',
            "quotas.telemetry",
            "of an operator only; known are alerts-{region}, events, registry, telemetry-{region}",
        ),
        ("size_mb = 7 ", "size_mb = 5000 ", "backlog_quota.size_mb must be smaller than retention.size_mb"),
        ("operator = true", "operator = false", "namespaces with {tenant} need a tenant with operator = true"),
        ('"{tenant}/events"]', '"fleet/{tenant}"]', "must be tenant/namespace with a tenant"),
        (
            "[tenants.shared]",
            '[namespaces."kaze/events"]\nclusters = "all"\n[tenants.shared]',
            "kaze/events is defined by",
        ),
    ],
)
def test_a_mistake_in_a_tenant_is_named(old: str, new: str, said: str) -> None:
    assert old in TWO
    text = TWO.replace(old, new, 1) if old != "operator = true" else TWO.replace(old, new)
    with pytest.raises(SettingsError, match=re.escape(said)):
        parse(Topology, text, "topology.toml")


def test_the_subscription_of_the_centre_is_not_made_in_the_regions() -> None:
    wanted = desired(parse(Topology, TEXT + ADDRESSES, "x"))
    assert wanted["hq"].topics["fleet/telemetry-eu/batches"].subscriptions == {"ingest": True}
    assert wanted["eu"].topics["fleet/telemetry-eu/batches"].subscriptions == {}
    assert "fleet/telemetry-us" not in wanted["eu"].namespaces


@pytest.mark.parametrize("file", ["topology.toml", "topology-dr.toml"])
def test_the_console_reads_registries_at_the_centre_with_the_token_of_the_jobs(file: str) -> None:
    topology = load(Topology, LOCAL / file)
    for tenant in ("fleet", "canary"):
        assert topology.grants("hq", f"{tenant}/registry")[f"{tenant}/registry/devices"]["jobs"] == {"consume"}
        assert "jobs" not in topology.grants("eu", f"{tenant}/registry")[f"{tenant}/registry/devices"]


def test_a_cluster_is_registered_as_the_other_sees_it() -> None:
    seen = '[clusters.hq.address.seen_from.eu]\nservice_url = "pulsar://private"\nlistener = "inside"\n'
    wanted = desired(parse(Topology, TEXT + ADDRESSES + seen, "x"))
    assert wanted["eu"].registrations["hq"].service_url == "pulsar://private"
    assert wanted["eu"].registrations["hq"].listener == "inside"
    assert wanted["us"].registrations["hq"].service_url == "pulsar://hq"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('centre = "hq"', 'center = "hq"', "center: no such setting; did you mean 'centre'?"),
        ('centre = "hq"', 'centre = "bq"', "centre: no cluster 'bq'; known are eu, hq, us"),
        ('centre = "hq"', 'centre = "hq"\nstandby = "hq"', "standby: must be another cluster"),
        ('cluster = "us"', 'cluster = "uk"', "regions.us.cluster: no cluster 'uk'"),
        ("partitions = 2", "partition = 2", "partition: no such setting; did you mean 'partitions'?"),
        ("size_mb = 3072", "size_mb = 4096", "backlog_quota.size_mb must be smaller than retention.size_mb"),
        ('"producer_request_hold"', '"hold"', "backlog_quota.policy"),
        ("[tenants.fleet]", "[tenants.flot]", "must be tenant/namespace with a tenant of this topology"),
        ('clusters = "all"', "", "set either {region} in the name or clusters"),
        ('clusters = "all"', 'clusters = ["eu", "xx"]', "namespaces.fleet/reference.clusters: no cluster 'xx'"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, said: str) -> None:
    assert said in problem(old, new)


@pytest.mark.parametrize("end", ["a", "01", "-1", "1\n", "\u0663", "9999999999", ""])
def test_what_pulsar_does_not_read_as_a_number_is_no_partition(end: str) -> None:
    assert split_partition(f"persistent://t/n/x-partition-{end}") == (f"persistent://t/n/x-partition-{end}", -1)
    assert split_partition("persistent://t/n/-partition-3")[1] == -1


def test_the_name_of_a_partition_is_taken_apart_as_it_was_put_together() -> None:
    assert split_partition(partition_name("persistent://t/n/x-partition-1", 3)) == ("persistent://t/n/x-partition-1", 3)


def test_every_level_of_an_address_is_quoted_and_nothing_above_the_topic() -> None:
    assert topic_path("t/n/a b/c?") == "persistent/t/n/a%20b%2Fc%3F"


@pytest.mark.parametrize("name", [".", "..", "a\0b", "x" * 5_000, "é" * 1_000])
def test_a_name_that_no_address_can_hold_is_not_asked_for(name: str) -> None:
    assert not is_addressable(f"t/n/{name}")
    assert not is_addressable(f"persistent://t/n/{name}")
