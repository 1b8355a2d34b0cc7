"""Pulsar clients of the tests: they wait long for a broker that is slow."""

from typing import Any

import httpx
import pulsar

from deploy.local import PulsarCluster
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarToken, access_tls_context, open_pulsar_client

# A broker that has just been started again loads a topic within its topicLoadTimeoutSeconds (60) or refuses, and the
# client asks again. The client's own 30 s would end a test whose broker is only late.
OPERATION_TIMEOUT_S = 150
CONNECT_TIMEOUT_S = 10


NOBODY = PulsarAccess()


def http_access(access: PulsarAccess) -> dict[str, Any]:
    """What an `httpx.Client` needs to be somebody."""
    if access.tls_ca is None:
        return {}
    token = PulsarToken(access)
    return {"verify": access_tls_context(access), "headers": {"Authorization": f"Bearer {token()}"} if token else {}}


def source_access(access: PulsarAccess) -> dict[str, str]:
    """What the format `pulsar` needs to be somebody."""
    given = {"tokenFile": access.token_file, "tlsCa": access.tls_ca}
    return {name: str(file) for name, file in given.items() if file is not None}


def open_client(service_url: str, access: PulsarAccess = NOBODY) -> pulsar.Client:
    """A client of `service_url`."""
    return open_pulsar_client(service_url, access, timeout_s=OPERATION_TIMEOUT_S, connect_timeout_s=CONNECT_TIMEOUT_S)


def create_topic(cluster: PulsarCluster, topic: str, producer: str = "jobs") -> str:
    """A topic that no topology names, where a role may produce: a secured cluster creates none. Returns its name."""
    path = f"{cluster.admin_url}/admin/v2/{topic.replace('://', '/')}"
    with httpx.Client(timeout=20, **http_access(cluster.access)) as http:
        http.put(path).raise_for_status()
        http.post(f"{path}/permissions/{producer}", json=["produce"]).raise_for_status()
    return topic


def allow_new_topics(cluster: PulsarCluster) -> None:
    """In `public/default`, which no topology names, a client may create a topic by using it."""
    path = f"{cluster.admin_url}/admin/v2/namespaces/public/default/autoTopicCreation"
    with httpx.Client(timeout=20, **http_access(cluster.access)) as http:
        body = {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
        http.post(path, json=body).raise_for_status()
