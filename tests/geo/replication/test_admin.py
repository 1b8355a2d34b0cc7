"""The admin client asks who answers, follows a redirect with its token, and takes nothing for Pulsar's that is not."""

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter

from deploy.local import free_port
from geo.replication import (
    AdminClient,
    AdminRefused,
    ApplyStopped,
    Change,
    ClusterUnreachable,
    Registration,
    WrongCluster,
)
from geo.replication.admin import RestAnswer
from geo.replication.apply import _make, cluster_data
from geo.replication.cluster_state import read_registration
from geo.replication.errors import NoConnection, UnusableAccess
from geo.replication.rest_types import CLUSTER, CLUSTERS, NAMESPACE, PARTITIONS, STATS, TENANT
from tests.geo.replication.brokers import RUNTIME, Answer, FakeBroker
from tests.tokens import token_file
from waybill.pulsar.pulsar_client import PulsarAccess


@pytest.mark.parametrize(
    "request_of",
    [
        lambda client: client.get("clusters"),
        lambda client: client.put("tenants/fleet", {}),
        lambda client: client.post("tenants/fleet", {}),
        lambda client: client.delete("namespaces/fleet/a", force=True),
        lambda client: client.configuration(),
    ],
)
def test_nothing_is_asked_of_a_cluster_that_was_not_meant(
    broker: Callable[[str], FakeBroker], request_of: Callable[[AdminClient], object]
) -> None:
    other = broker("eu")
    with AdminClient("us", other.url) as client, pytest.raises(WrongCluster, match="belongs to cluster eu"):
        request_of(client)
    assert {path for _, path, _, _ in other.asked} == {RUNTIME}


def test_a_redirect_to_the_broker_that_owns_a_topic_keeps_the_token_the_method_and_the_body(
    broker: Callable[[str], FakeBroker],
) -> None:
    first, owner = broker("eu"), broker("eu")
    path = "/admin/v2/persistent/fleet/a/b/partitions"
    first.answers[path] = (307, {"location": f"{owner.url}{path}"}, b"")
    owner.answers[path] = (204, {}, b"")
    with AdminClient("eu", first.url, access=PulsarAccess(token=SecretStr("secret"))) as client:
        client.post("persistent/fleet/a/b/partitions", 4)
    assert owner.asked == [("POST", path, "Bearer secret", b"4")]


def test_the_next_host_of_a_cluster_is_asked_where_nobody_listens_at_the_first(
    broker: Callable[[str], FakeBroker],
) -> None:
    first, second = broker("eu"), broker("eu")
    for one in (first, second):
        one.answers["/admin/v2/persistent/fleet/a/b/partitions"] = (204, {}, b"")
    hosts = [f"127.0.0.1:{free_port()}", *(one.url.removeprefix("http://") for one in (first, second))]
    url = f"http://{','.join(hosts)}"
    with AdminClient("eu", url) as client:
        client.post("persistent/fleet/a/b/partitions", 4)
        client.post("persistent/fleet/a/b/partitions", 5)
    assert [body for method, _, _, body in first.asked if method == "POST"] == [b"4", b"5"]
    assert not second.asked


def test_a_cluster_none_of_whose_hosts_listens_is_not_connected(broker: Callable[[str], FakeBroker]) -> None:
    url = f"http://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with AdminClient("eu", url, unavailable_s=0) as client, pytest.raises(NoConnection):
        client.get("clusters")


@pytest.mark.parametrize("status", [200, 403, 404, 503])
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("x" * 5000, b"{}"),
        ("application/json\x1b[2J", b"{}"),
        ("text/html", b"\x1b[2J\x07" + b"y" * 5000),
        ("application/json", json.dumps({"reason": "\x1b[2J" + "z" * 5000}).encode()),
        ("application/json", json.dumps({"z" * 5000: "\x1b[2J"}).encode()),
    ],
)
def test_what_somebody_answered_is_shown_on_one_short_line_that_moves_no_cursor(
    status: int, content_type: str, body: bytes
) -> None:
    answer = RestAnswer(
        cluster="eu", url="http://eu", action="GET x", status=status, content_type=content_type, body=body
    )
    with pytest.raises((AdminRefused, ClusterUnreachable)) as refused:
        answer.value(CLUSTERS, 409)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


HTML = {"content-type": "text/html"}
PAGE = b"<html>\n<head><title>Error 401</title></head><body><h2>HTTP ERROR 401</h2></body></html>"


def test_who_is_not_known_hears_why_and_reads_no_page(broker: Callable[[str], FakeBroker], tmp_path: Path) -> None:
    one = broker("eu")
    one.answers[RUNTIME] = (401, HTML, PAGE)
    with (
        AdminClient("eu", one.url) as client,
        pytest.raises(AdminRefused, match="401: authentication failed: the token has expired") as said,
    ):
        client.get("clusters")
    assert "<" not in str(said.value)
    access = PulsarAccess(token_file=token_file(tmp_path, "jobs", ends_in_s=86_400))
    with AdminClient("eu", one.url, access=access) as client:
        token_file(tmp_path, "jobs", ends_in_s=-1)
        with pytest.raises(AdminRefused, match=r"token of jobs in .* ended at"):
            client.get("clusters")
    asked = len(one.asked)
    with pytest.raises(UnusableAccess, match=r"token of jobs in .* ended at"):
        AdminClient("eu", one.url, access=access)
    assert len(one.asked) == asked, "nobody is asked in vain"


ASKING: list[Callable[[AdminClient], object]] = [
    lambda client: client.get("namespaces/fleet/a"),
    lambda client: client.put("namespaces/fleet/a", {}),
    lambda client: client.post("namespaces/fleet/a", {}),
    lambda client: client.delete("namespaces/fleet/a"),
]


@pytest.mark.parametrize("request_of", ASKING)
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, HTML, b"<html>Sorry</html>"), ClusterUnreachable),
        ((200, HTML, b""), ClusterUnreachable),
        ((200, {}, b""), ClusterUnreachable),
        ((200, {}, b"null"), ClusterUnreachable),
        ((200, {}, b"7"), ClusterUnreachable),
        ((202, HTML, b""), ClusterUnreachable),
        ((404, HTML, b"<html>Sorry</html>"), ClusterUnreachable),
        ((409, {}, b"[]"), ClusterUnreachable),
        ((429, {}, b'{"reason": "slow down"}'), ClusterUnreachable),
        ((502, HTML, b"<html>Sorry</html>"), ClusterUnreachable),
        ((503, {}, b""), ClusterUnreachable),
        ((401, HTML, b"<html>Log in</html>"), AdminRefused),
        ((403, {}, b"{}"), AdminRefused),
        ((412, {}, b'{"reason": "Pulsar says no"}'), AdminRefused),
    ],
)
def test_what_a_balancer_answers_is_neither_absence_nor_success(
    broker: Callable[[str], FakeBroker],
    request_of: Callable[[AdminClient], object],
    answer: Answer,
    error: type[Exception],
) -> None:
    one = broker("eu")
    one.answers["/admin/v2/namespaces/fleet/a"] = answer
    with AdminClient("eu", one.url, unavailable_s=0) as client, pytest.raises(error):
        request_of(client)


@pytest.mark.parametrize("request_of", ASKING)
def test_a_broker_that_has_no_bookie_yet_is_asked_again(
    broker: Callable[[str], FakeBroker], request_of: Callable[[AdminClient], object]
) -> None:
    one = broker("eu")
    one.first = [(500, {}, b'{"reason": "Not enough non-faulty bookies available"}')] * 3
    with AdminClient("eu", one.url) as client, contextlib.suppress(AdminRefused):  # a 404, which is its answer
        request_of(client)
    assert one.first == []
    assert one.asked[-1][1] == "/admin/v2/namespaces/fleet/a"


def test_absence_and_conflict_are_pulsars_words_for_no(broker: Callable[[str], FakeBroker]) -> None:
    one = broker("eu")
    with AdminClient("eu", one.url) as client:
        assert client.get("namespaces/fleet/a") is None
        assert not client.delete("namespaces/fleet/a")
        with pytest.raises(AdminRefused, match="404"):
            client.put("namespaces/fleet/a")
        one.answers["/admin/v2/namespaces/fleet/a"] = (409, {}, b'{"reason": "exists"}')
        assert not client.put("namespaces/fleet/a")
        with pytest.raises(AdminRefused, match="409"):
            client.get("namespaces/fleet/a")


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (TENANT, {}),
        (NAMESPACE, {"x": 1}),
        (CLUSTERS, {}),
        (STATS, {"subscriptions": {}}),
        (PARTITIONS, {"partitions": -1}),
    ],
)
def test_json_of_another_form_than_was_asked_for_is_no_answer(
    broker: Callable[[str], FakeBroker], shape: TypeAdapter[Any], value: object
) -> None:
    one = broker("eu")
    one.answers["/admin/v2/tenants/fleet"] = (200, {}, json.dumps(value).encode())
    with AdminClient("eu", one.url) as client, pytest.raises(ClusterUnreachable, match="not by Pulsar"):
        client.get("tenants/fleet", shape)


@pytest.mark.parametrize("answer", [(204, HTML, b""), (204, {}, b""), (200, {"content-type": ""}, b"")])
def test_a_command_is_done_by_the_statuses_that_pulsar_has_for_it_and_a_question_is_never_answered_by_nothing(
    broker: Callable[[str], FakeBroker], answer: Answer
) -> None:
    one = broker("eu")
    one.answers["/admin/v2/namespaces/fleet/a"] = answer
    with AdminClient("eu", one.url) as client:
        assert client.put("namespaces/fleet/a")
        assert client.delete("namespaces/fleet/a")
        with pytest.raises(ClusterUnreachable, match="not by Pulsar"):
            client.get("namespaces/fleet/a")


def test_a_registration_that_could_not_be_read_is_not_written_anew_without_what_it_had(
    broker: Callable[[str], FakeBroker],
) -> None:
    one = broker("eu")
    one.answers["/admin/v2/clusters/us"] = (200, HTML, b"")
    wanted = Registration(service_url="pulsar://us:6650", admin_url="http://us:8080")
    change = Change(cluster="eu", action="update", kind="cluster", name="us", before=wanted, after=wanted)
    with AdminClient("eu", one.url) as client, pytest.raises(ApplyStopped, match="not by Pulsar"):
        _make(client, change, [])
    assert {method for method, *_ in one.asked} == {"GET"}


def test_an_answer_that_comes_byte_by_byte_ends_at_the_time_out() -> None:
    closing = Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{")
            while not closing.wait(0.05):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=drip, args=(server,), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        try:
            with (
                AdminClient("eu", url, timeout_s=0.3, unavailable_s=0) as client,
                pytest.raises(ClusterUnreachable, match="whole answer"),
            ):
                client.get("clusters")
        finally:
            closing.set()


@pytest.mark.parametrize("admin_url", ["http://x:8080", "https://x:8443"])
@pytest.mark.parametrize("service_url", ["pulsar://x:6650", "pulsar+ssl://x:6651"])
@pytest.mark.parametrize("enabled", [False, True])
def test_a_registration_is_read_back_as_it_was_written_over_any_other(
    service_url: str, admin_url: str, enabled: bool
) -> None:
    old = {
        "serviceUrl": "http://old",
        "serviceUrlTls": "https://old",
        "brokerServiceUrl": "pulsar://old",
        "brokerServiceUrlTls": "pulsar+ssl://old",
        "brokerClientTlsEnabled": enabled,
        "authenticationPlugin": "kept",
        "peerClusterNames": ["kept"],
    }
    wanted = Registration(service_url=service_url, admin_url=admin_url, listener="from-eu")
    written = {key: value for key, value in (old | cluster_data(wanted)).items() if value is not None}
    assert read_registration(CLUSTER.validate_python(written)) == wanted
    assert written["authenticationPlugin"] == "kept"
    assert written["peerClusterNames"] == ["kept"]


def test_an_apply_that_stops_says_what_it_was_doing_and_what_it_had_done(broker: Callable[[str], FakeBroker]) -> None:
    one = broker("eu")
    one.answers["/admin/v2/clusters/us"] = (412, {}, b'{"reason": "Cluster is in use"}')
    done = Change(cluster="eu", action="create", kind="topic", name="fleet/a/b", after=0)
    doing = Change(cluster="eu", action="delete", kind="cluster", name="us")
    with AdminClient("eu", one.url) as client, pytest.raises(ApplyStopped) as stopped:
        _make(client, doing, [done])
    message = str(stopped.value)
    assert "Cluster is in use" in message
    assert "perhaps applied in part: eu: delete cluster us" in message
    assert "1 made before:\n  eu: create topic fleet/a/b" in message
    assert "apply again" in message
