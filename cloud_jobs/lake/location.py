"""Where a lake is: a folder, or a prefix of a bucket in an object store, for delta-rs and Arrow.

A location can be pickled for executors; its text has no secret.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pyarrow.fs import (
    AwsStandardS3RetryStrategy,
    FileSystem,
    FileType,
    LocalFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
)
from pydantic import Field, SecretStr, model_validator

from cloud_jobs.errors import CloudError, LocationError, StoreUnavailable
from waybill.daemon.durable_file import sync_folder
from waybill.settings import Settings, local_path, read_file

# Access to the object store: address, region and credentials, from settings or the environment.

_ENVIRONMENT: Final = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_CREDENTIALS_ENVIRONMENT: Final = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
_ANY_REGION: Final = "us-east-1"
"""The region for a server of one's own, which ignores it."""


class S3Access(Settings):
    """Access to the object store of a lake. The environment completes it; without credentials, the role of the machine
    or pod is used."""

    endpoint: str | None = Field(
        None, pattern=r"^https?://[^/?#@\s]+/?$", description="address of a store that is not AWS: http(s)://host:port"
    )
    region: str | None = Field(None, min_length=1, description="region to sign for; needed where there is no endpoint")
    access_key_id: str | None = Field(None, min_length=1, description="who we are")
    secret_access_key: SecretStr | None = Field(None, min_length=1, description="the secret of that key")
    session_token: SecretStr | None = Field(None, min_length=1, description="with credentials that expire")
    credentials_file: Path | None = Field(
        None, description="file with key and secret in its section [default], in the format of AWS"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token and not self.access_key_id:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        if self.credentials_file and self.access_key_id:
            raise ValueError("set either access_key_id or credentials_file")
        return self

    def completed(self, environment: Mapping[str, str]) -> S3Access:
        """Adds the address, region and credentials of the environment or the file where they are not set.

        Raises LocationError, which quotes no secret.
        """
        found: dict[str, Any] = self.model_dump(exclude_none=True, exclude={"credentials_file"})
        for field, names in _ENVIRONMENT.items():
            if given := next((environment[name] for name in names if environment.get(name)), None):
                found.setdefault(field, given)
        if self.credentials_file is not None:
            found |= _read(self.credentials_file)
        elif not self.access_key_id:
            given_keys = {field: environment.get(name) for field, name in _CREDENTIALS_ENVIRONMENT.items()}
            found |= {field: value for field, value in given_keys.items() if value}
        if "region" not in found:
            if "endpoint" not in found:
                raise LocationError("object_store.region is missing: set it, or AWS_REGION")
            found["region"] = _ANY_REGION
        try:
            return S3Access(**found)
        # pydantic's own message would quote what it was given
        except ValueError:
            raise LocationError(
                "the environment has AWS settings that cannot be used: AWS_ENDPOINT_URL is http(s)://host:port, "
                "and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together"
            ) from None

    @property
    def secret(self) -> str | None:
        return self.secret_access_key.get_secret_value() if self.secret_access_key else None

    @property
    def token(self) -> str | None:
        return self.session_token.get_secret_value() if self.session_token else None

    @property
    def is_encrypted(self) -> bool:
        return self.endpoint is None or self.endpoint.startswith("https:")


def _read(path: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(read_file(path).decode("utf-8"))
        section = parser["default"]
        found = {"access_key_id": section["aws_access_key_id"], "secret_access_key": section["aws_secret_access_key"]}
    except OSError as error:
        raise LocationError(f"object_store.credentials_file {path} cannot be read: {error.strerror}") from error
    # the parser's own message would quote a line of the file
    except (configparser.Error, KeyError, UnicodeDecodeError):
        raise LocationError(
            f"object_store.credentials_file {path} has no aws_access_key_id and aws_secret_access_key in [default]"
        ) from None
    token = section.get("aws_session_token")
    return found | ({"session_token": token} if token else {})


_SCHEME: Final = "s3://"
# characters that neither library escapes
_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9_.=-]+)*/?")
_NO_PLACE: Final = "neither a folder nor s3://BUCKET/PREFIX"
_OTHER_PLACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://?)?")
_NO_FOLDER: Final = frozenset("%\\[]^|") | {chr(number) for number in (*range(32), 127)}
"""Characters that delta-rs would replace in the name of a folder."""
_CONNECT_S: Final = 5
_REQUEST_S: Final = 30
_RETRY_S: Final = 30
"""The total time of retries of one call."""
_ATTEMPTS: Final = 8
# Arrow waits longer between attempts: this takes about as many seconds.
_ARROW_ATTEMPTS: Final = 4
# What the libraries say when the store does not answer.
_NO_ANSWER: Final = re.compile(
    r"NETWORK_CONNECTION|curlCode|error sending request|Connection refused|Connection reset|connection closed"
    r"|SERVICE_UNAVAILABLE|SLOW_DOWN|503 Service Unavailable"
    r"|operation timed out|INTERNAL_FAILURE|INCOMPLETE_BODY",
    re.IGNORECASE,
)
# Errors of these libraries, or our own in a text of Spark, are about the store.
_OF_STORE: Final = re.compile(
    r"AWS Error|Generic S3 error|store: \"S3\"|software\.amazon\.awssdk|hadoop\.fs\.s3a|the object store at "
)
_MAX_REASON: Final = 300
_TREE: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


@dataclass(frozen=True, slots=True)
class Location:
    """A folder (`access` is None), or bucket and prefix. `path` has no scheme."""

    path: str
    access: S3Access | None = None

    @classmethod
    def of(
        cls, text: str | Path, access: S3Access | None = None, environment: Mapping[str, str] | None = None
    ) -> Location:
        """A folder, or `s3://bucket/prefix` with the access of settings and environment. Raises LocationError."""
        try:
            text = lake_place(str(text))
        except ValueError as fault:
            raise LocationError(f"lake {fault}") from None
        if not is_object_store(text):
            return cls(text)
        completed = (access or S3Access()).completed(os.environ if environment is None else environment)
        return cls(text.removeprefix(_SCHEME).rstrip("/"), completed)

    def __str__(self) -> str:
        return self.path if self.access is None else f"s3://{self.path}"

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.path}/{name}", self.access)

    @property
    def folder(self) -> Path | None:
        return Path(self.path) if self.access is None else None

    def exists(self) -> bool:
        """Whether the folder or the bucket exists. Raises StoreUnavailable, LocationError."""
        if self.access is None:
            return Path(self.path).is_dir()
        with self.errors_named():
            bucket = self.path.partition("/")[0]
            return _s3_files(self.access).get_file_info(bucket).type is not FileType.NotFound

    def create(self) -> None:
        """Creates a missing folder; a bucket must exist. Raises StoreUnavailable, LocationError, OSError."""
        if self.access is None:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        elif not self.exists():
            raise LocationError(f"there is no bucket {self.path.partition('/')[0]!r} at {self._store}; create it first")

    def files(self) -> FileSystem:
        """The files below this location; the object can be sent to executors."""
        if self.access is None:
            return SubTreeFileSystem(str(Path(self.path).absolute()), LocalFileSystem())
        return SubTreeFileSystem(self.path, _s3_files(self.access))

    def storage_options(self) -> dict[str, str] | None:
        """The options of delta-rs; None for a folder.

        Removes AWS_SESSION_TOKEN from the environment if the key is not from there.
        """
        if self.access is None:
            return None
        if self.access.access_key_id and not self.access.token:
            # delta-rs would send this token with another key; it would also send an empty one
            os.environ.pop("AWS_SESSION_TOKEN", None)
        given = {
            "AWS_ENDPOINT_URL": self.access.endpoint,
            "AWS_REGION": self.access.region,
            "AWS_ACCESS_KEY_ID": self.access.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.access.secret,
            "AWS_SESSION_TOKEN": self.access.token,
        }
        # a commit is a conditional PUT, so one of two writers is refused
        options = {"aws_conditional_put": "etag", "AWS_ALLOW_HTTP": str(not self.access.is_encrypted).lower()}
        options |= {"connect_timeout": f"{_CONNECT_S}s", "timeout": f"{_REQUEST_S}s"}
        options |= {"max_retries": str(_ATTEMPTS), "retry_timeout": f"{_RETRY_S}s"}
        return options | {name: value for name, value in given.items() if value is not None}

    def unavailable(self, error: BaseException) -> StoreUnavailable | None:
        """The StoreUnavailable that a library's error means; None for any other error."""
        if isinstance(error, StoreUnavailable):
            return error
        text = error_text(error)
        if self.access is None or not _OF_STORE.search(text) or (found := _NO_ANSWER.search(text)) is None:
            return None
        at = max(0, found.start() - _MAX_REASON // 2)
        return StoreUnavailable(self._store, text[at : at + _MAX_REASON])

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turns errors that mean it into StoreUnavailable."""
        try:
            yield
        except CloudError:
            raise
        except Exception as error:
            if (named := self.unavailable(error)) is not None:
                raise named from error
            raise

    @property
    def _store(self) -> str:
        assert self.access is not None
        return self.access.endpoint or f"S3 in {self.access.region}"


def is_object_store(text: str) -> bool:
    """Whether a text is an address in an object store. `s3:/` is included: pathlib removes a slash."""
    return text.startswith("s3:/")


def lake_place(text: str) -> str:
    """Parses a folder's path, with `~`, or `s3://BUCKET/PREFIX`.

    Raises ValueError, also for addresses of other stores: `dbfs:/`, `hdfs:`, `abfss:`, `s3a:`.
    """
    if text.startswith("s3:/"):
        if _S3.fullmatch(text) and not {".", ".."} & {*text.split("/")}:
            return text
        raise ValueError(f"{text!r} is {_NO_PLACE} with letters, digits and _.=- between slashes")
    if found := _OTHER_PLACE.match(text):
        raise ValueError(f"{text!r} begins with {found[0]}: it is {_NO_PLACE}")
    folder = local_path(text)
    if found_characters := " and ".join(map(repr, sorted({*folder} & _NO_FOLDER))):
        raise ValueError(f"{folder!r} has {found_characters}, which the libraries cannot handle")
    return folder


def error_text(error: BaseException) -> str:
    """An error's message on one line; delta-rs writes a coloured tree."""
    return " ".join(_TREE.sub("", str(error)).split())


def ensure_folder(files: FileSystem, folder: str) -> None:
    """Creates a folder for new files. An object store needs none."""
    if not (isinstance(files, SubTreeFileSystem) and isinstance(files.base_fs, S3FileSystem)):
        files.create_dir(folder, recursive=True)


@cache
def _s3_files(access: S3Access) -> S3FileSystem:
    endpoint = urlsplit(access.endpoint or "")
    return S3FileSystem(
        access_key=access.access_key_id,
        secret_key=access.secret,
        session_token=access.token,
        region=access.region,
        scheme="https" if access.is_encrypted else "http",
        endpoint_override=endpoint.netloc or None,
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ARROW_ATTEMPTS),
        # a small file is one request instead of three
        allow_delayed_open=True,
    )


def sync_files(files: FileSystem, paths: Iterable[str]) -> None:
    """Syncs files and their folders to disk. Raises OSError.

    Missing files are ignored. Only the local file system needs it.
    """
    local = _local_folder(files)
    if local is None:
        return
    folders = {PurePosixPath(".")}
    for path in paths:
        with suppress(FileNotFoundError):
            _sync(local / path)
        folders.update(PurePosixPath(path).parents)
    for folder in sorted(folders):
        sync_folder(local / folder)


def _local_folder(files: FileSystem) -> Path | None:
    if isinstance(files, SubTreeFileSystem):
        inner = _local_folder(files.base_fs)
        return None if inner is None else inner / files.base_path
    return Path() if isinstance(files, LocalFileSystem) else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
