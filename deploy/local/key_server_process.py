"""Serves the files of one folder over HTTPS: the keys with which Pulsar checks tokens. Standard library only.

Run as `python -I key_server_process.py PORT CERTIFICATE KEY FOLDER`. Each request reads the disk, so a published key is
served at once.
"""

import ssl
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_PATHS = frozenset({"/.well-known/openid-configuration", "/keys.json"})
_MAX_BYTES = 1 << 20
_REQUEST_S = 5


class KeyServer(ThreadingHTTPServer):
    """A TLS server on loopback; a slow handshake blocks only its own thread."""

    daemon_threads = True

    def __init__(self, port: int, certificate: str, key: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", port), KeyRequestHandler)
        self.published = folder
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)


class KeyRequestHandler(BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server: KeyServer

    def do_GET(self) -> None:
        file = self.server.published / self.path.removeprefix("/")
        content = file.read_bytes()[:_MAX_BYTES] if self.path in _PATHS and file.is_file() else None
        self.send_response(HTTPStatus.NOT_FOUND if content is None else HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        """Log nothing: brokers ask every few seconds."""


if __name__ == "__main__":
    _port, _certificate, _key, _folder = sys.argv[1:]
    KeyServer(int(_port), _certificate, _key, Path(_folder)).serve_forever()
