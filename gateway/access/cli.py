"""`fleet-gateway access`: run a region's access daemon, make its broker's first files, ask a running one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import structlog
import typer

from gateway.access.access_key import AccessKey
from gateway.access.config import AccessSettings, BrokerProcessPlace
from gateway.config import open_registry
from waybill.daemon.errors import DaemonError
from waybill.daemon.tls import TlsSettings, certificate_faults, unusable_tls_files
from waybill.identity.authority import is_chain_to, read_certificates, regional_name
from waybill.identity.authority_folder import AuthorityFolder, IssuedCertificate
from waybill.identity.errors import IdentityError, OperatorKeyRefused
from waybill.identity.names import PrincipalKind, principal
from waybill.mqtt.broker_settings import unusable_files
from waybill.pulsar.pulsar_client import PulsarAccessError, PulsarToken, token_faults, tokens_ending
from waybill.settings import SettingsError, load, printable, printable_json, read_file

# Checks of files, names and certificates before the start.

_CRASHES_UNTIL = (2, 0, 22)
_PROGRAM_S = 5.0
_WORD = "or say insecure = true at the top"


def problems(settings: AccessSettings) -> list[str]:
    """Why the daemon cannot run with these settings here: each names the setting and the file."""
    return [
        *([] if settings.insecure else _open(settings)),
        *_authority_problems(settings),
        *_registry_problems(settings),
        *_folder_problems(settings),
        *_certificate_problems(settings),
    ]


def warnings(settings: AccessSettings, now: datetime) -> list[str]:
    """What runs, and is probably not meant: keys are followed, so one that is not trusted now may be soon."""
    found = []
    if settings.registry.admin_url is None:
        found.append("registry.admin_url: it is not set, so this machine's clock is not checked")
    # What cannot be read is a problem.
    with contextlib.suppress(IdentityError, SettingsError):
        key = AccessKey(settings.registry, settings.region, settings.registry.followed())
        if problem := key.problem(now):
            found.append(f"registry.key: {problem}")
    if (version := broker_version(settings.broker.program)) is not None and version <= _CRASHES_UNTIL:
        found.append(
            f"broker.program: Mosquitto {'.'.join(map(str, version))} crashes when it reads its files while a device's"
            " session waits for its return; the daemon ends such sessions, and a release after 2.0.22 has the repair"
        )
    return [*found, *tokens_ending({"registry.access": settings.registry.access}, now.timestamp())]


def broker_version(program: str) -> tuple[int, ...] | None:
    """The version of the broker's program on this machine; None where that is not known."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([found, "-h"], capture_output=True, check=False, timeout=_PROGRAM_S).stdout
        if (number := re.match(rb"mosquitto version (\d+)\.(\d+)\.(\d+)", said)) is not None:
            return tuple(map(int, number.groups()))
    return None


def ended_tokens(settings: AccessSettings, now: datetime) -> list[str]:
    """Tokens that no cluster takes now. The daemon runs all the same: it reads their file again."""
    return token_faults({"registry.access": settings.registry.access}, now.timestamp())


def _open(settings: AccessSettings) -> Iterator[str]:
    for key, fault in open_registry(settings.registry):
        yield f"registry.{key}: {fault}, {_WORD}"
    if (enrolment := settings.enrolment) is not None:
        if enrolment.claims.tls is None:
            yield f"enrolment.claims.tls: our password travels in plain text: set ca, {_WORD}"
        if enrolment.devices.tls is None:
            yield f"enrolment.devices.tls: certificates are sent in plain text: set ca, certificate and key, {_WORD}"


def _authority_problems(settings: AccessSettings) -> Iterator[str]:
    try:
        folder = AuthorityFolder.open(settings.authority.folder, settings.authority.key)
    except IdentityError as error:
        yield f"authority.folder: {error}"
        return
    if (expected := regional_name(settings.region)) != folder.authority.name:
        found = f"authority.folder {folder.folder} is that of {folder.authority.name!r}"
        yield f"region: {settings.region!r} has the authority {expected!r}, and {found}"
    tls = settings.enrolment and settings.enrolment.devices.tls
    # What cannot be read is named with the certificates.
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
    access = registry.access
    for name, fault in certificate_faults(access.tls_ca, access.tls_certificate, access.tls_key):
        yield f"registry.access{name and f'.tls_{name}'}: {fault}"
    try:
        PulsarToken(access)
    except PulsarAccessError as error:
        yield f"registry.access: {error}"


def _folder_problems(settings: AccessSettings) -> Iterator[str]:
    broker, enrolment = settings.broker, settings.enrolment
    places: list[tuple[str, BrokerProcessPlace]] = [("broker", broker)]
    written = [
        ("broker.revocation_file", broker.revocation_file),
        ("broker.guard_secret_file", broker.guard_secret_file),
    ]
    if enrolment is not None:
        places.append(("enrolment.broker", enrolment.broker))
        written.append(("enrolment.secret_file", enrolment.secret_file))
    for table, place in places:
        written += [(f"{table}.rules_file", place.rules_file), (f"{table}.password_file", place.password_file)]
        if place.server is not None:
            written.append((f"{table}.server.conf_file", place.server.conf_file))
    for name, file in written:
        if not (file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)):
            yield f"{name}: {file.parent} is no folder that can be written"
    # The broker makes the socket, and nobody makes its folder.
    if not broker.guard_socket.parent.is_dir():
        yield f"broker.guard_socket: {broker.guard_socket.parent} is no folder"


def _certificate_problems(settings: AccessSettings) -> Iterator[str]:
    if settings.broker.server is not None:
        yield from _server_problems("broker.server.tls", settings.broker.server.tls)
    enrolment = settings.enrolment
    if enrolment is None:
        return
    if enrolment.broker.server is not None:
        yield from _server_problems("enrolment.broker.server.tls", enrolment.broker.server.tls)
    yield from unusable_files("enrolment.claims", enrolment.claims)
    yield from unusable_files("enrolment.devices", enrolment.devices)
    own = enrolment.devices.tls.certificate if enrolment.devices.tls is not None else None
    if own is not None and own.is_file():
        name = principal(PrincipalKind.ACCESS, settings.region)
        yield from _other_certificate("enrolment.devices.tls.certificate", own, PrincipalKind.ACCESS, name)


def _server_problems(table: str, tls: TlsSettings) -> Iterator[str]:
    """Only the broker reads these files: what the daemon may not read it does not look at."""
    for name, file in (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key)):
        assert file is not None
        try:
            file.stat()
        except PermissionError:
            continue
        except OSError as error:
            yield f"{table}.{name}: {error}"
    if tls.certificate is not None and os.access(tls.certificate, os.R_OK):
        yield from _other_certificate(f"{table}.certificate", tls.certificate, "server", None)
        if tls.key is not None and os.access(tls.key, os.R_OK):
            yield from unusable_tls_files(table, tls)


def _other_certificate(setting: str, file: Path, what: str, name: str | None) -> Iterator[str]:
    try:
        found = IssuedCertificate.read(file)
    except (IdentityError, OSError) as error:
        yield f"{setting}: {error}"
        return
    if found.what != what or name not in (None, found.name):
        wanted = f"one of kind {what}" if name is None else f"that of {name}"
        yield f"{setting}: {file} is the certificate of {found.name} (kind {found.what}), and should be {wanted}"


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

    with _errors_as_messages(), stop_on_signals() as stop:
        settings = _checked_settings(config)
        start_logging(settings.log)
        now = datetime.now(UTC)
        for problem in (*warnings(settings, now), *ended_tokens(settings, now)):
            structlog.get_logger("access").warning("configuration", problem=problem)
        AccessDaemon(settings).run(stop)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Example: fleet-gateway access check-config --config access.toml
    """
    with _errors_as_messages():
        settings, now = _checked_settings(config), datetime.now(UTC)
        # Nothing is heard with such a token; a daemon that runs waits for another one.
        if ended := ended_tokens(settings, now):
            raise SettingsError(str(config), ended)
    for problem in warnings(settings, now):
        typer.echo(f"{config}: warning: {problem}", err=True)
    typer.echo(f"{config}: right. Access daemon of the region {settings.region}")


@app.command()
def prepare(*, config: ConfigOption) -> None:
    """Create missing files that the brokers need to start, and write their configuration (`server`).

    Example: fleet-gateway access prepare --config access.toml
    """
    from gateway.access.daemon import AccessDaemon

    with _errors_as_messages():
        AccessDaemon(_checked_settings(config)).prepare()


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the status of the daemon that uses this file; exit status 1 if it is not healthy.

    Example: fleet-gateway access status --config access.toml
    """
    from rich.console import Console

    from gateway.access.status import read_access_status, status_table
    from gateway.status_answer import check_answering

    with _errors_as_messages():
        settings = load(AccessSettings, config)
        answer = read_access_status(settings.status)
        answering, asked = (f"access daemon of region {one}" for one in (answer.region, settings.region))
        check_answering(settings.status, answering, asked)
    if as_json:
        sys.stdout.write(printable_json(answer, indent=2) + "\n")
    else:
        Console().print(status_table(answer))
    if not answer.healthy:
        raise typer.Exit(1)


def _checked_settings(config: Path) -> AccessSettings:
    settings = load(AccessSettings, config)
    if found := problems(settings):
        raise SettingsError(str(config), found)
    return settings


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except OperatorKeyRefused as error:
        typer.echo(f"fleet-gateway access: {error}: `registry.key` of the settings names it", err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except (DaemonError, IdentityError, OSError) as error:
        typer.echo(printable(f"fleet-gateway access: {error}", "\n"), err=True)
        raise typer.Exit(1) from error
