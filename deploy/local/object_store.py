"""A real S3 server for one machine: Versity's S3 gateway on loopback, with one bucket for the lake."""

import configparser
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from deploy.local.errors import FolderDamaged, ProgramMissing
from deploy.local.ports import PortBook
from deploy.local.pulsar import cache_folder
from deploy.local.server import Health, Server, http_health
from waybill.daemon.durable_file import replace_durably

VERSITYGW_VERSION: Final = "1.8.0"
_HOST: Final = "127.0.0.1"
_HEALTH_PATH: Final = "/health"
_REGION: Final = "us-east-1"
_BUCKET: Final = "lake"
_PROFILE: Final = "default"


class LakePlace(StrEnum):
    """Where the lake of a local stack is: a folder beside its servers, or an S3 server of its own."""

    FOLDER = "folder"
    S3 = "s3"


class ObjectStore(Server):
    """One S3 server whose bucket is a folder of its own folder.

    A conditional PUT is atomic, so several may commit to one Delta table. The access key and its secret are drawn at
    the first start, and stand in a file that only its owner can read, in the form of AWS's shared credentials file.
    """

    kind = "s3"
    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(self, folder: Path, *, ports: PortBook | None = None) -> None:
        super().__init__("s3", folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = (ports or PortBook(self.folder / "ports.json")).port(self.name)
        self._program = versitygw()

    @property
    def endpoint(self) -> str:
        """For S3 clients: http://host:port."""
        return f"http://{_HOST}:{self.port}"

    @property
    def region(self) -> str:
        """The region that a client must sign for."""
        return _REGION

    @property
    def bucket(self) -> str:
        """The name of the one bucket that is there from the start."""
        return _BUCKET

    @property
    def credentials_file(self) -> Path:
        """Access key and secret, as AWS_SHARED_CREDENTIALS_FILE names such a file; there after the first start."""
        return self.folder / "credentials"

    def job_settings(self) -> str:
        """The table `[object_store]` of a job whose lake is here, as TOML."""
        return f"""[object_store]
endpoint = "{self.endpoint}"
region = "{self.region}"
credentials_file = "{self.credentials_file}"
"""

    def lake(self, name: str) -> str:
        """Where a lake of that name is, as settings of jobs say it."""
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
        try:
            parser.read_string(self.credentials_file.read_text(encoding="utf-8"))
            found = parser[_PROFILE]
            key, secret = found["aws_access_key_id"], found["aws_secret_access_key"]
        # what it holds is not shown, and neither is the parser's error, which would quote it
        except (configparser.Error, KeyError, UnicodeDecodeError):
            raise FolderDamaged(
                self.credentials_file, "is no file of credentials", "delete it: the next start draws new ones"
            ) from None
        return {"ROOT_ACCESS_KEY_ID": key, "ROOT_SECRET_ACCESS_KEY": secret}

    def health(self) -> Health:
        """Whether it answers a GET of its health path."""
        return http_health(f"{self.endpoint}{_HEALTH_PATH}")

    @property
    def _data(self) -> Path:
        return self.folder / "data"


def versitygw() -> Path:
    """The gateway's program; raises ProgramMissing when it was not built."""
    program = cache_folder() / f"versitygw-{VERSITYGW_VERSION}" / "versitygw"
    if not program.is_file():
        raise ProgramMissing(
            f"the S3 server versitygw {VERSITYGW_VERSION}",
            f"install Go 1.25 or newer and run `make setup`, which builds it (looked for {program})",
        )
    return program
