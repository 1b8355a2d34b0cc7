"""`fleet-gateway`: run a gateway, check its configuration, show its status."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer

from gateway.access.cli import app as access
from gateway.alerts.cli import app as alerts
from gateway.commands import checked_settings, errors_as_messages, run_daemon, say_warnings, show
from gateway.config import (
    OPEN_WORD,
    Drain,
    GatewaySettings,
    access_secrets,
    open_cluster,
    open_registry,
    open_secrets,
    open_status,
    share_group,
    travels_in_plain_text,
)
from gateway.service import Service
from gateway.status import read_status, status_table
from gateway.status_answer import check_answering
from waybill.daemon.process import add_version_option
from waybill.daemon.stack_folder import registered
from waybill.identity.authority import common_name, read_certificates
from waybill.identity.errors import IdentityError, SealingKeyError
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.sealing import read_public_key
from waybill.mqtt.broker_settings import is_this_machine, unusable_files
from waybill.pulsar.pulsar_client import token_faults, tokens_ending
from waybill.settings import SettingsError, load, read_file

# Checks before the start.


def problems(settings: GatewaySettings) -> list[str]:
    """Why the gateway cannot run with these settings: one line each, with the setting and the file."""
    return [*_file_problems(settings), *_name_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: GatewaySettings, config: Path, now_s: float) -> list[str]:
    mqtt, found = settings.mqtt, [*travels_in_plain_text(settings.pulsar, "batches")]
    if mqtt.tls is None and not is_this_machine(mqtt.host):
        secret = " and the password" if mqtt.password_file else ""
        found.append(f"mqtt.host: batches{secret} travel to {mqtt.host} in plain text; set [mqtt.tls]")
    secrets = [(mqtt.password_file, "password"), (mqtt.share_file, "group"), *access_secrets(settings.pulsar, config)]
    ending = tokens_ending(settings.pulsar_accesses, now_s)
    return [*found, *open_status(settings.status.host), *open_secrets(secrets), *ending]


def ended_tokens(settings: GatewaySettings, now_s: float) -> list[str]:
    """Tokens that no cluster accepts now. A running gateway waits for a new token in the file."""
    return token_faults(settings.pulsar_accesses, now_s)


def _file_problems(settings: GatewaySettings) -> Iterator[str]:
    yield from unusable_files("mqtt", settings.mqtt)
    try:
        share_group(settings.mqtt)
    except (OSError, ValueError) as error:
        yield f"mqtt.share_file: cannot be used: {error}"
    for table, shown in settings.pulsar_accesses.items():
        for field, fault in shown.file_faults():
            yield f"{table}{field and f'.{field}'}: {fault}"
    for tenant, one in settings.tenants.items():
        if one.sealing_key is not None:
            try:
                read_public_key(one.sealing_key)
            except SealingKeyError as error:
                yield f"tenants.{tenant}.sealing_key: {error}"
    if settings.registry is not None:
        try:
            settings.registry.check_signed()
        except SettingsError as error:
            yield f"registry.operators: {'; '.join(error.lines)}"
    folder = settings.push.folder
    if folder is not None and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        yield f"push.folder: {folder} is not a folder that can be read"


def _name_problems(settings: GatewaySettings) -> Iterator[str]:
    tls, own = settings.mqtt.tls, principal(PrincipalKind.GATEWAY, settings.name)
    if tls is None or tls.certificate is None:
        return
    with contextlib.suppress(OSError, ValueError, IdentityError):
        named = common_name(read_certificates(read_file(tls.certificate))[0].subject)
        if named != own:
            make = f"waybill pki issue gateway@{settings.name} --region {settings.region} --out FOLDER"
            yield (
                f"mqtt.tls.certificate: {tls.certificate} is for {named!r}, but this gateway is {own!r}; change name, "
                f"or create a certificate with `{make}`"
            )


def _open(settings: GatewaySettings) -> Iterator[str]:
    """Insecure settings, which only `insecure = true` allows."""
    mqtt = settings.mqtt
    if mqtt.tls is None:
        yield f"mqtt.tls: batches travel to {mqtt.host} in plain text: set ca, certificate and key, {OPEN_WORD}"
    elif mqtt.tls.certificate is None:
        yield f"mqtt.tls.certificate: no credentials for the broker: set certificate and key, {OPEN_WORD}"
    yield from open_cluster(settings.pulsar, "batches")
    if settings.registry is None:
        yield f"registry: batches of suspended and revoked devices are accepted: set [registry], {OPEN_WORD}"
    else:
        yield from open_registry(settings.registry)


_GC_OBJECTS = 50_000

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Forward batches from a region's MQTT broker to Pulsar and acknowledge them.",
)
add_version_option(app, "fleet-gateway")
app.add_typer(access, name="access")
app.add_typer(alerts, name="alerts")
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Run the gateway until SIGTERM. SIGHUP reloads `[drain]` of the file and the folder of pushed settings.

    Example: fleet-gateway run --config gateway.toml
    """
    with errors_as_messages("fleet-gateway"):
        settings, now_s = checked_settings(GatewaySettings, config, problems), time.time()
        # There are hardly any reference cycles, so collections over everything in flight can be rare.
        gc.freeze()
        gc.set_threshold(_GC_OBJECTS)
        found = [*warnings(settings, config, now_s), *ended_tokens(settings, now_s)]
        with registered("fleet-gateway run", config, settings.status.host, settings.status.port):
            run_daemon("gateway", settings.log, found, partial(Service, settings, _reloading(config, settings)))


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Example: fleet-gateway check-config --config gateway.toml
    """
    with errors_as_messages("fleet-gateway"):
        settings = checked_settings(GatewaySettings, config, problems)
        # Nothing would move; a running gateway waits for a new token.
        if ended := ended_tokens(settings, time.time()):
            raise SettingsError(str(config), ended)
    say_warnings(config, partial(warnings, settings, config))
    typer.echo(f"{config}: valid. Gateway {settings.name}, region {settings.region}")


@app.command()
def status(
    *,
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the status of the gateway that uses this file; exit status 1 if it is not healthy.

    Example: fleet-gateway status --config gateway.toml --json
    """
    with errors_as_messages("fleet-gateway"):
        settings = load(GatewaySettings, config)
        answer = read_status(settings.status)
        answering = f"gateway {answer.gateway} of region {answer.region}"
        check_answering(settings.status, answering, f"gateway {settings.name} of region {settings.region}")
    show(answer, lambda: status_table(answer), as_json=as_json, is_good=answer.healthy)


def _reloading(config: Path, started_with: GatewaySettings) -> Callable[[], Drain]:
    """A function that reads the file's drain settings again, and returns the last good ones if the file is wrong."""
    log = structlog.get_logger("gateway")
    drain = started_with.drain

    def reload() -> Drain:
        nonlocal drain
        try:
            settings = load(GatewaySettings, config)
        except SettingsError as error:
            log.error("settings not reloaded", problems=error.problems)
            return drain
        drain = settings.drain
        log.info("drain settings reloaded", **drain.model_dump())
        if waiting := _changed(settings, started_with):
            log.warning("changed settings have no effect until the gateway is started again", settings=waiting)
        return drain

    return reload


def _changed(settings: GatewaySettings, started_with: GatewaySettings) -> list[str]:
    """The sections that differ, apart from those that a reload applies."""
    names = set(GatewaySettings.model_fields) - {"drain"}
    return sorted(name for name in names if getattr(settings, name) != getattr(started_with, name))
