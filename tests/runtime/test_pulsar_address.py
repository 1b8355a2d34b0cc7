"""The address of a cluster reads the same in the settings of every program, with one host or with several."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cloud_jobs.config import ClusterSettings
from cloud_jobs.pulsar_source.options import PulsarOptions
from deploy.canary.config import WatchedCluster
from edge_agent.config import UplinkSettings
from gateway.config import ClusterSource, Pulsar, RegistrySettings
from geo.replication.model import ClusterAddress
from tests.examples import examples
from waybill.identity.operator_settings import OperatorSettings
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl, each_host
from waybill.pulsar.pulsar_client import PulsarAccess, close_quietly, open_pulsar_client
from waybill.settings import Settings

ADMIN = "http://a:8080"
TWO = "pulsar://a:6650,b:6650"
PROGRAMS = {
    "gateway": lambda url: Pulsar(service_url=url),
    "alerts": lambda url: ClusterSource(service_url=url),
    "registry": lambda url: RegistrySettings(service_url=url, tenants=("acme",), unsigned=True),
    "operator": lambda url: OperatorSettings(
        service_url=url, admin_url=ADMIN, regions=("eu",), tenants=("acme",), unsigned=True
    ),
    "canary": lambda url: WatchedCluster(service_url=url),
    "agent": lambda url: UplinkSettings(region="eu", kind="pulsar", service_url=url, topic="persistent://a/b/c"),
    "topology": lambda url: ClusterAddress(service_url=url, admin_url=ADMIN),
    "jobs": lambda url: ClusterSettings(name="hq", service_url=url, admin_url=ADMIN),
    "source": lambda url: PulsarOptions.parse({"serviceUrl": url, "adminUrl": ADMIN, "topics": "t"}),
}
GOOD = {
    TWO: TWO,
    "pulsar+ssl://a.example:6651,b.example:6651/": "pulsar+ssl://a.example:6651,b.example:6651",
    " pulsar://a:6650 , b:6650 ": TWO,
    "pulsar://a,b": "pulsar://a,b",
    "pulsar://127.0.0.1:6650": "pulsar://127.0.0.1:6650",
    "pulsar://pulsar_broker-0.svc.:6650": "pulsar://pulsar_broker-0.svc.:6650",
}
BAD = {
    "": "begin with pulsar:// or pulsar",
    "a:6650": "begin with pulsar:// or pulsar",
    "http://a:8080": "begin with pulsar:// or pulsar",
    "PULSAR://a": "begin with pulsar:// or pulsar",
    "pulsar://": "is not HOST:PORT",
    "pulsar://a:6650,": "is not HOST:PORT",
    "pulsar://a:66500": "is not HOST:PORT",
    "pulsar://a:0": "is not HOST:PORT",
    "pulsar://a b": "is not HOST:PORT",
    "pulsar://a:6650/tenant": "is not HOST:PORT",
    "pulsar://a:6650;b:6650": "is not HOST:PORT",
    "pulsar://a:6650,pulsar://b:6650": "the scheme stands once",
    "pulsar://user:secret@a:6650": "no user and no password",
    "pulsar://[::1]:6650": "no IPv6 address",
    "pulsar://a:6650,a:6650": "named twice",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_reads_an_address_alike(program: str) -> None:
    for text, url in GOOD.items():
        assert _service_url(PROGRAMS[program](text)) == url
    for text, reason in BAD.items():
        with pytest.raises(Exception, match=reason) as refused:
            PROGRAMS[program](text)
        assert isinstance(refused.value, ValidationError) or type(refused.value).__name__ == "OptionError"


def _service_url(settings: Settings) -> str:
    return str(settings.service_url)  # type: ignore[attr-defined] # each of them has one


@pytest.mark.parametrize("url", GOOD.values())
def test_pulsar_s_own_client_takes_what_the_settings_take(url: str) -> None:
    close_quietly(open_pulsar_client(url, PulsarAccess(), timeout_s=1))


HOSTS = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}(\.example)?(:[1-9][0-9]{0,3})?", fullmatch=True), min_size=1)


@given(
    hosts=HOSTS.filter(lambda hosts: len({*hosts}) == len(hosts)),
    scheme=st.sampled_from(["pulsar", "pulsar+ssl", "http", "https"]),
    blanks=st.sampled_from(["", " "]),
)
@settings(max_examples=examples(100))
def test_an_address_has_as_many_hosts_as_are_written(hosts: list[str], scheme: str, blanks: str) -> None:
    kind: TypeAdapter[str] = TypeAdapter(ServiceUrl if scheme.startswith("pulsar") else AdminUrl)
    url = kind.validate_python(f"{scheme}://{f'{blanks},{blanks}'.join(hosts)}{blanks}")
    assert each_host(url) == tuple(f"{scheme}://{host}" for host in hosts)
    assert kind.validate_python(url) == url
