"""Admin addresses on loopback that answer as a test prescribes."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = tuple[int, dict[str, str], bytes]
RUNTIME = "/admin/v2/brokers/configuration/runtime"


class FakeBroker:
    """An HTTP server that answers as the test prescribes, and notes what it was asked."""

    def __init__(self, name: str) -> None:
        self.answers: dict[str, Answer] = {RUNTIME: (200, {}, json.dumps({"clusterName": name}).encode())}
        self.first: list[Answer] = []  # given before all others, but for the question for the name
        self.asked: list[tuple[str, str, str, bytes]] = []
        broker = self

        class FakeBrokerHandler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                broker.asked.append((self.command, self.path, self.headers.get("authorization", ""), body))
                absent: tuple[int, dict[str, str], bytes] = 404, {}, b'{"reason": "not there"}'
                status, headers, content = broker.answers.get(self.path, absent)
                if broker.first and self.path != RUNTIME:
                    status, headers, content = broker.first.pop(0)
                self.send_response(status)
                given = {"content-type": "application/json", **headers, "content-length": str(len(content))}
                for key, value in given.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - named by the library

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing is said."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), FakeBrokerHandler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
