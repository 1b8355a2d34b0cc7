"""What is written for the brokers of Apache's chart, beside the files of Pulsar's server."""

import pytest

from deploy.local.pulsar import pulsar_home
from geo.replication.model import Cluster, ClusterAddress, Region, Tenant, Topology
from geo.replication.pulsar_chart import ChartOptions, chart_values

pytestmark = pytest.mark.system


def test_each_line_for_brokers_is_one_that_pulsar_knows() -> None:
    """The chart replaces lines of broker.conf; one that is not there would be dropped without a word."""
    lines = (pulsar_home() / "conf/broker.conf").read_text(encoding="utf-8").splitlines()
    address = ClusterAddress(service_url="pulsar+ssl://a:6651", admin_url="https://a:8443")
    topology = Topology(
        centre="hq",
        clusters={"hq": Cluster(address=address)},
        regions={"eu": Region(cluster="hq")},
        tenants={"fleet": Tenant()},
    )
    values = chart_values(topology, "hq", ChartOptions(issuer="https://keys.example"))
    known = {line.partition("=")[0] for line in lines}
    assert values["broker"]["configData"].keys() <= known
