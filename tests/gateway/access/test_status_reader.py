"""What an access daemon says of itself is asked for with one end for the whole answer."""

from __future__ import annotations

from gateway.access.config import AccessEndpoint
from gateway.access.status import AccessStatus, read_access_status
from waybill.daemon.status_server import StatusServer, json_answer


def test_what_a_daemon_serves_is_read() -> None:
    said = AccessStatus(region="eu", pid=7, started_at="now", enrolments={"enrolled": 3})
    with StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer(said.model_dump_json())}) as server:
        assert read_access_status(AccessEndpoint(port=server.port)) == said
