"""The registry shown by a command: every device, and one with its history."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from waybill.identity.command_session import command_session, known_entry
from waybill.identity.device_answers import (
    DEVICE,
    Speaker,
    confirmation,
    device_facts,
    device_line,
    no_device_text,
)
from waybill.settings import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from waybill.identity.registry_messages import DevicePublication
    from waybill.identity.registry_session import RegistrySession

__all__ = ["show_device", "show_devices", "show_file"]


def show_devices(config: Path | None, tenant: str, *, as_json: bool, speaker: Speaker = DEVICE) -> None:
    """Every device of a tenant, or of all, and what no region has confirmed."""
    from waybill.identity.confirmations import CONFIRMATIONS_KEPT

    with command_session(config, tenant=tenant, signs=False, speaker=speaker) as (session, _):
        missing = session.not_confirmed(datetime.now(UTC) - CONFIRMATIONS_KEPT)
        chosen = _chosen(session, tenant, speaker)
        if as_json:
            facts = [device_facts(one, session.signed_by(one)) | confirmation(one.entry, missing) for one in chosen]
            lines = [json.dumps(facts, indent=2)]
        else:
            lines = [_listed(one, session.signed_by(one), missing) for one in chosen]
    # Behind the session: what shows its progress would stand on the same line.
    for line in lines:
        typer.echo(line)
    if missing is None:
        typer.echo(f"{speaker.program}: confirmations cannot be read: what is listed may not be in force", err=True)


def show_file(config: Path | None, tenant: str, *, speaker: Speaker) -> None:
    """The devices as a file has them."""
    with command_session(config, tenant=tenant, signs=False, speaker=speaker) as (session, _):
        chosen = _chosen(session, tenant, speaker)
    from waybill.identity.device_file import MAX_DEVICES, device_file_text

    if len(chosen) > MAX_DEVICES:
        many = f"{len(chosen):,} devices, and a command takes {MAX_DEVICES:,}: list each --tenant by itself, or cut it"
        typer.echo(f"{speaker.program}: {many}", err=True)
    sys.stdout.write(device_file_text(one.entry for one in chosen))


def show_device(device: str, config: Path | None, *, as_json: bool, speaker: Speaker = DEVICE) -> None:
    """A device, and each change of it that is still kept."""
    with command_session(config, names={device}, with_history=True, signs=False, speaker=speaker) as (session, _):
        known_entry(session, device)
        held = session.publication(device)
        assert held is not None, "it is known"
        past = session.history(device)
        if as_json:
            facts = {
                "device": device_facts(held, session.signed_by(held)),
                "history": [
                    device_facts(one, session.signed_by(one)) | {"outranked": outranked} for one, outranked in past
                ],
            }
            lines = [json.dumps(facts, indent=2)]
        else:
            lines = [device_line(held.entry, session.signed_by(held))]
            for one, outranked in past:
                mark = "OUTRANKED: " if outranked else ""
                lines.append(f"  {mark}{device_line(one.entry, session.signed_by(one))}  {one.entry.reason}")
    for line in lines:
        typer.echo(line)


def _listed(one: DevicePublication, signed_by: str, missing: Mapping[str, str] | None) -> str:
    why = (missing or {}).get(one.entry.name)
    return device_line(one.entry, signed_by) + (f"  NOT CONFIRMED: {printable(why)}" if why else "")


def _chosen(session: RegistrySession, tenant: str, speaker: Speaker) -> list[DevicePublication]:
    every = session.publications()
    chosen = [one for one in every if tenant in ("", one.entry.tenant)]
    if not chosen:
        typer.echo(f"{speaker.program}: {no_device_text(every, tenant)}", err=True)
    return chosen
