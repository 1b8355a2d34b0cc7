"""What those parts of settings need from their machine, and what they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.source_settings import ClusterSource, ReferenceSource
from waybill.identity.signatures import read_operators
from waybill.mqtt.broker_settings import is_this_machine
from waybill.pulsar.pulsar_address import host_names
from waybill.pulsar.token_watch import token_faults, tokens_ending
from waybill.settings import SettingsError

__all__ = [
    "OPEN_WORD",
    "access_secrets",
    "ending_tokens",
    "file_problems",
    "open_cluster",
    "open_secrets",
    "travels_in_plain_text",
]

OPEN_WORD = "or say insecure = true at the top"


def file_problems(pulsar: ClusterSource, table: str, reference: ReferenceSource) -> Iterator[str]:
    """Files that cannot be used; `table` names the settings of the reference data."""
    for field, fault in pulsar.access.file_faults():
        yield f"pulsar.access{field and f'.{field}'}: {fault}"
    if reference.operators is not None:
        try:
            read_operators(reference.operators)
        except SettingsError as error:
            yield f"{table}.operators: {'; '.join(error.lines)}"


def open_cluster(pulsar: ClusterSource, what: str) -> Iterator[str]:
    """What lets others in, or read along; `what` travels."""
    access = pulsar.access
    if not pulsar.is_encrypted:
        yield f"pulsar.service_url: {what} travel in plain text: use pulsar+ssl://, {OPEN_WORD}"
    if not (access.token or access.token_file or access.tls_certificate):
        yield f"pulsar.access.token_file: Pulsar is shown nothing: set it, or tls_certificate and tls_key, {OPEN_WORD}"


def travels_in_plain_text(pulsar: ClusterSource, what: str) -> Iterator[str]:
    """`what` leaves this machine as everybody can read it."""
    hosts = host_names(pulsar.service_url)
    if not pulsar.is_encrypted and not all(map(is_this_machine, hosts)):
        yield f"pulsar.service_url: {what} travel to {', '.join(hosts)} in plain text; use pulsar+ssl://"


def open_status(host: str) -> Iterator[str]:
    """The status is served to other machines."""
    if not is_this_machine(host):
        yield f"status.host: everybody who reaches {host} reads the status"


def access_secrets(pulsar: ClusterSource, config: Path) -> list[tuple[Path | None, str]]:
    """The files with secrets of a client, each with what it has; `config` is the settings file itself."""
    access = pulsar.access
    return [(config if access.token else None, "token"), (access.token_file, "token"), (access.tls_key, "key")]


def ending_tokens(pulsar: ClusterSource, now_s: float) -> list[str]:
    """A token that no cluster takes now, or not for long. A daemon runs all the same: it reads its file again."""
    accesses = {"pulsar.access": pulsar.access}
    return [*token_faults(accesses, now_s), *tokens_ending(accesses, now_s)]


def open_secrets(files: Iterable[tuple[Path | None, str]]) -> Iterator[str]:
    """The files that others can read, and what they would find there."""
    for file, secret in files:
        if file and file.stat().st_mode & 0o044:
            yield f"{file}: others can read the {secret} in it; chmod 600"
