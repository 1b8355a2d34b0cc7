"""How an object store is reached: its address and region, and who we are there; from settings or the environment.

The names in the environment, and the form of the file, are those that AWS's own programs have.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, SecretStr, model_validator

from cloud_jobs.errors import LocationError
from waybill.settings import Settings, read_file

_ENVIRONMENT: Final = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "credentials_file": ("AWS_SHARED_CREDENTIALS_FILE",),
    "profile": ("AWS_PROFILE",),
}
_CREDENTIALS_ENVIRONMENT: Final = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
_ANY_REGION: Final = "us-east-1"
"""What a server of one's own is signed for that does not care."""


class S3Access(Settings):
    """The object store of a lake. What is not set is taken from the environment; credentials that are nowhere, from
    the role of the machine or the pod."""

    endpoint: str | None = Field(
        None, pattern=r"^https?://[^/?#@\s]+/?$", description="address of a store that is not AWS: http(s)://host:port"
    )
    region: str | None = Field(None, min_length=1, description="region to sign for; needed where there is no endpoint")
    access_key_id: str | None = Field(None, min_length=1, description="who we are")
    secret_access_key: SecretStr | None = Field(None, min_length=1, description="the secret of that key")
    session_token: SecretStr | None = Field(None, min_length=1, description="with credentials that expire")
    credentials_file: Path | None = Field(None, description="file with key and secret, as AWS's shared credentials")
    profile: str | None = Field(None, min_length=1, description="section of that file: `default` if none is given")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.session_token and not self.access_key_id:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        if self.credentials_file and self.access_key_id:
            raise ValueError("give access_key_id or credentials_file, not both")
        return self

    def completed(self, environment: Mapping[str, str]) -> S3Access:
        """This, with what the environment and the file of credentials add: address, region, key and secret.

        Raises LocationError, which names the setting or the file and quotes no secret.
        """
        found: dict[str, Any] = self.model_dump(exclude_none=True)
        for field, names in _ENVIRONMENT.items():
            given = next((environment[name] for name in names if environment.get(name)), None)
            if given is not None and not (field == "credentials_file" and self.access_key_id):
                found.setdefault(field, given)
        from_environment = {
            field: environment[name] for field, name in _CREDENTIALS_ENVIRONMENT.items() if environment.get(name)
        }
        if not self.access_key_id and not self.credentials_file and from_environment:
            found = {name: value for name, value in found.items() if name != "credentials_file"} | from_environment
        if "access_key_id" not in found and "credentials_file" in found:
            found |= _read(Path(found["credentials_file"]), found.get("profile", "default"))
        found = {name: value for name, value in found.items() if name not in ("credentials_file", "profile")}
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
        """The secret in clear."""
        return self.secret_access_key.get_secret_value() if self.secret_access_key else None

    @property
    def token(self) -> str | None:
        """The session token in clear."""
        return self.session_token.get_secret_value() if self.session_token else None

    @property
    def is_encrypted(self) -> bool:
        """Whether the store is spoken to over TLS."""
        return self.endpoint is None or self.endpoint.startswith("https:")


def _read(path: Path, profile: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(read_file(path).decode("utf-8"))
        section = parser[profile]
        found = {"access_key_id": section["aws_access_key_id"], "secret_access_key": section["aws_secret_access_key"]}
    except OSError as error:
        raise LocationError(f"object_store.credentials_file {path} cannot be read: {error.strerror}") from error
    # the parser's own message would quote a line of the file
    except (configparser.Error, KeyError, UnicodeDecodeError):
        raise LocationError(
            f"object_store.credentials_file {path} has no aws_access_key_id and aws_secret_access_key in [{profile}]"
        ) from None
    token = section.get("aws_session_token")
    return found | ({"session_token": token} if token else {})
