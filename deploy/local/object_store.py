"""A real S3 server for one machine: Versity's S3 gateway on loopback, with one bucket for the lake."""

import configparser
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from deploy.local.errors import ProgramMissing
from deploy.local.ports import PortBook
from deploy.local.pulsar import cache_folder
from deploy.local.server import Server, http_health
from waybill.daemon.durable_file import replace_durably

VERSITYGW_VERSION: Final = "1.8.0"
_HOST: Final = "127.0.0.1"
_HEALTH_PATH: Final = "/health"
_PROFILE: Final = "default"


class LakePlace(StrEnum):
    """The location of a local stack's lake: a folder, or an S3 server of its own."""

    FOLDER = "folder"
    S3 = "s3"


class ObjectStore(Server):
    """One S3 server whose bucket is a folder of its own folder.

    A conditional PUT is atomic, so several writers may commit to one Delta table. The first start draws the access key
    and its secret, and writes them to a private file in the form of AWS's shared credentials file.
    """

    start_timeout_s = 20.0
    stop_timeout_s = 5.0
    region = "us-east-1"
    """The region that a client must sign for."""
    bucket = "lake"
    """The one bucket, which is there from the start."""

    def __init__(self, folder: Path, *, ports: PortBook | None = None) -> None:
        super().__init__("s3", folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = (ports or PortBook(self.folder / "ports.json")).port(self.name)
        self.endpoint = f"http://{_HOST}:{self.port}"
        self.credentials_file = self.folder / "credentials"
        """Access key and secret, as AWS_SHARED_CREDENTIALS_FILE names such a file; there after the first start."""
        self._data = self.folder / "data"
        self._program = versitygw()

    def job_settings(self) -> str:
        """The table `[object_store]` of a job whose lake is here, as TOML."""
        return f"""[object_store]
endpoint = "{self.endpoint}"
region = "{self.region}"
credentials_file = "{self.credentials_file}"
"""

    def lake(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def addresses(self) -> dict[str, str]:
        """Endpoint and bucket, and where the credentials stand; never the credentials."""
        return {
            "endpoint": self.endpoint,
            "bucket": f"s3://{self.bucket}",
            "credentials_file": str(self.credentials_file),
        }

    def prepare(self) -> None:
        """Make the bucket, and credentials if there are none yet."""
        (self._data / self.bucket).mkdir(parents=True, exist_ok=True)
        if not self.credentials_file.exists():
            key, secret = secrets.token_hex(10).upper(), secrets.token_hex(20)
            text = f"[{_PROFILE}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
            replace_durably(self.credentials_file, text.encode(), mode=0o600)

    def command(self) -> Sequence[str]:
        """The gateway, without its log of requests."""
        address = f"{_HOST}:{self.port}"
        shown = ["--port", address, "--region", self.region, "--health", _HEALTH_PATH, "--quiet"]
        return [str(self._program), *shown, "posix", str(self._data)]

    def environment(self) -> Mapping[str, str]:
        """The credentials: on the command line every user of the machine could read them."""
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(self.credentials_file, encoding="utf-8")
        found = parser[_PROFILE]
        return {
            "ROOT_ACCESS_KEY_ID": found["aws_access_key_id"],
            "ROOT_SECRET_ACCESS_KEY": found["aws_secret_access_key"],
        }

    def probe(self) -> bool:
        return http_health(f"{self.endpoint}{_HEALTH_PATH}")()


def versitygw() -> Path:
    """The gateway's program; raises ProgramMissing when it was not built."""
    program = cache_folder() / f"versitygw-{VERSITYGW_VERSION}" / "versitygw"
    if not program.is_file():
        raise ProgramMissing(
            f"the S3 server versitygw {VERSITYGW_VERSION}",
            f"install Go 1.25 or newer and run `make setup`, which builds it (looked for {program})",
        )
    return program
