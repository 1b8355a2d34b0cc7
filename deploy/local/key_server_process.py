"""Serves the files of one folder over HTTPS: the keys that Pulsar checks tokens with. Standard library only.

Run as `python -I key_server_process.py PORT CERTIFICATE KEY FOLDER`; a request is answered from the disk, so what is
published counts at once.
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
    """A TLS server on loopback; a handshake that is slow holds up its own thread alone."""

    daemon_threads = True

    def __init__(self, port: int, certificate: str, key: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", port), KeyRequestHandler)
        self.published = folder
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)


class KeyRequestHandler(BaseHTTPRequestHandler):
    """Answers a GET of one of two names with the file of that name."""

    timeout = _REQUEST_S
    server: KeyServer

    def do_GET(self) -> None:
        """The file as it is now."""
        file = self.server.published / self.path.removeprefix("/")
        content = file.read_bytes()[:_MAX_BYTES] if self.path in _PATHS and file.is_file() else None
        self.send_response(HTTPStatus.NOT_FOUND if content is None else HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        """Nothing: brokers ask every few seconds."""


if __name__ == "__main__":
    _port, _certificate, _key, _folder = sys.argv[1:]
    KeyServer(int(_port), _certificate, _key, Path(_folder)).serve_forever()
