"""`fleet-gateway access`: run a region's access daemon, create its broker's first files, show its status."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer

from gateway.access.access_key import AccessKey
from gateway.access.config import AccessSettings
from gateway.commands import checked_settings, errors_as_messages, say_warnings, show
from gateway.config import OPEN_WORD, open_registry
from gateway.status_answer import check_answering
from waybill.identity.authority import is_chain_to, read_certificates, regional_name
from waybill.identity.authority_folder import IssuedCertificate
from waybill.identity.errors import IdentityError
from waybill.identity.names import PrincipalKind, principal
from waybill.mqtt.broker_settings import unusable_files
from waybill.pulsar.pulsar_client import token_faults, tokens_ending
from waybill.settings import SettingsError, load, read_file

# Checks of files, names and certificates before the start.


def problems(settings: AccessSettings) -> list[str]:
    """Why the daemon cannot run with these settings: one line each, with the setting and the file."""
    return [
        *([] if settings.insecure else _open(settings)),
        *_authority_problems(settings),
        *_registry_problems(settings),
        *_certificate_problems(settings),
    ]


def warnings(settings: AccessSettings, now_s: float) -> list[str]:
    found = []
    if settings.registry.admin_url is None:
        found.append("registry.admin_url: it is not set, so this machine's clock is not checked")
    # Unreadable files are reported by `problems`.
    with contextlib.suppress(IdentityError, SettingsError):
        key = AccessKey(settings.registry, settings.region, settings.registry.followed())
        if problem := key.problem(datetime.fromtimestamp(now_s, UTC)):
            found.append(f"registry.key: {problem}")
    return [*found, *tokens_ending({"registry.access": settings.registry.access}, now_s)]


def ended_tokens(settings: AccessSettings, now_s: float) -> list[str]:
    """Tokens that no cluster accepts now. A running daemon waits for a new token in the file."""
    return token_faults({"registry.access": settings.registry.access}, now_s)


def _open(settings: AccessSettings) -> Iterator[str]:
    yield from open_registry(settings.registry)
    if (enrolment := settings.enrolment) is not None:
        if enrolment.claims.tls is None:
            yield f"enrolment.claims.tls: our password travels in plain text: set ca, {OPEN_WORD}"
        if enrolment.devices.tls is None:
            yield f"enrolment.devices.tls: certificates travel in plain text: set ca, certificate and key, {OPEN_WORD}"


def _authority_problems(settings: AccessSettings) -> Iterator[str]:
    try:
        folder = settings.authority.open()
    except IdentityError as error:
        yield f"authority.folder: {error}"
        return
    if (expected := regional_name(settings.region)) != folder.authority.name:
        found = f"authority.folder {folder.folder} is that of {folder.authority.name!r}"
        yield f"region: {settings.region!r} has the authority {expected!r}, and {found}"
    tls = settings.enrolment and settings.enrolment.devices.tls
    # Unreadable files are reported with the certificates.
    with contextlib.suppress(IdentityError, OSError):
        own = read_certificates(read_file(tls.certificate)) if tls and tls.certificate else []
        if own and not is_chain_to(own[:1], [folder.authority.certificate]):
            yield (
                f"authority.folder: {folder.folder} did not sign {tls and tls.certificate} (enrolment.devices.tls): "
                "one of the two is of a former authority"
            )


def _registry_problems(settings: AccessSettings) -> Iterator[str]:
    registry = settings.registry
    try:
        registry.check_signed()
    except SettingsError as error:
        yield f"registry.operators: {'; '.join(error.lines)}"
    try:
        AccessKey(registry, settings.region, None)
    except IdentityError as error:
        yield f"registry.key: {error}"
    for name, fault in registry.access.file_faults():
        yield f"registry.access{name and f'.{name}'}: {fault}"


def _certificate_problems(settings: AccessSettings) -> Iterator[str]:
    enrolment = settings.enrolment
    if enrolment is None:
        return
    yield from unusable_files("enrolment.claims", enrolment.claims)
    yield from unusable_files("enrolment.devices", enrolment.devices)
    own = enrolment.devices.tls.certificate if enrolment.devices.tls is not None else None
    if own is not None and own.is_file():
        name = principal(PrincipalKind.ACCESS, settings.region)
        try:
            found = IssuedCertificate.read(own)
        except (IdentityError, OSError) as error:
            yield f"enrolment.devices.tls.certificate: {error}"
            return
        if (found.what, found.name) != (PrincipalKind.ACCESS, name):
            yield (
                f"enrolment.devices.tls.certificate: {own} is the certificate of {found.name} (kind {found.what}),"
                f" and should be that of {name}"
            )


app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Control which devices may connect to a region's broker."
)
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Apply the device registry to the broker (rules, revocation lists, sessions) until SIGTERM.

    Example: fleet-gateway access run --config access.toml
    """
    from gateway.access.daemon import AccessDaemon
    from waybill.daemon.logs import start_logging
    from waybill.daemon.signals import stop_on_signals

    with errors_as_messages("fleet-gateway access"), stop_on_signals() as stop:
        settings, now_s = checked_settings(AccessSettings, config, problems), time.time()
        start_logging(settings.log)
        for problem in (*warnings(settings, now_s), *ended_tokens(settings, now_s)):
            structlog.get_logger("access").warning("configuration", problem=problem)
        AccessDaemon(settings).run(stop)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Example: fleet-gateway access check-config --config access.toml
    """
    with errors_as_messages("fleet-gateway access"):
        settings = checked_settings(AccessSettings, config, problems)
        # The daemon would hear nothing; a running one waits for a new token.
        if ended := ended_tokens(settings, time.time()):
            raise SettingsError(str(config), ended)
    say_warnings(config, partial(warnings, settings))
    typer.echo(f"{config}: valid. Access daemon of the region {settings.region}")


@app.command()
def prepare(*, config: ConfigOption) -> None:
    """Create missing files that the brokers need to start, and write their configuration (`server`).

    Example: fleet-gateway access prepare --config access.toml
    """
    from gateway.access.daemon import AccessDaemon

    with errors_as_messages("fleet-gateway access"):
        AccessDaemon(checked_settings(AccessSettings, config, problems)).prepare()


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the status of the daemon that uses this file; exit status 1 if it is not healthy.

    Example: fleet-gateway access status --config access.toml
    """
    from gateway.access.status import read_access_status, status_table

    with errors_as_messages("fleet-gateway access"):
        settings = load(AccessSettings, config)
        answer = read_access_status(settings.status)
        answering, asked = (f"access daemon of region {one}" for one in (answer.region, settings.region))
        check_answering(settings.status, answering, asked)
    show(answer, partial(status_table, answer), as_json=as_json, is_good=answer.healthy)
