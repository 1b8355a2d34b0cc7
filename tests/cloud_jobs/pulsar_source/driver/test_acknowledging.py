"""What acknowledging makes of a broker that does not answer."""

import socket

from cloud_jobs.pulsar_source.acknowledging import acknowledge
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition


def test_a_broker_that_never_answers_takes_no_acknowledgement_and_is_not_waited_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        clusters = f"hq=pulsar://127.0.0.1:{silent.getsockname()[1]}|http://127.0.0.1:1"
        known = {"clusters": clusters, "topics": "t", "subscription": "s", "operationTimeoutSeconds": "1"}
        options = PulsarOptions.parse(known)
        ends = {f"persistent://public/default/t-partition-{number}": LedgerPosition(1, 1) for number in range(600)}
        assert acknowledge(options.cluster_named("hq"), options, ends) == {}
