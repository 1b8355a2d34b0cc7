"""One command's session with the device registry: what goes on is shown, and whatever fails is an exit status."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import typer

from waybill.identity.device_answers import DEVICE, EXIT_ARGUMENTS, EXIT_REFUSED, Speaker, end

if TYPE_CHECKING:
    from waybill.identity.change_outcome import ChangeOutcome
    from waybill.identity.operator_settings import OperatorSettings
    from waybill.identity.registry import DeviceEntry
    from waybill.identity.registry_session import RegistrySession

__all__ = ["command_session", "known_entry", "outcome_of", "shows_progress"]

_NO_STACK: Final = (
    "nothing listens at {}, which the settings of the local stack name: it is not running; `waybill up` starts it, and "
    "--config FILE names other settings"
)
_SOON_S: Final = 2.0
"""What takes less is shown on terminals alone."""


@contextmanager
def shows_progress(
    clock: Callable[[], float] = time.monotonic, program: str = DEVICE.program
) -> Iterator[Callable[[str, int], None]]:
    """What shows how far something is: on a terminal as it moves, else one line of each thing that takes a while."""
    from rich.console import Console

    console, began_s, said = Console(stderr=True), dict[str, float](), set[str]()

    def line(what: str, count: int) -> None:
        now_s = clock()
        if what not in said and now_s - began_s.setdefault(what, now_s) >= _SOON_S:
            said.add(what)
            typer.echo(f"{program}: {what}: {count:,} ...", err=True)

    if not console.is_terminal:
        yield line
        return
    with console.status("") as shown:
        yield lambda what, count: shown.update(f"{what}: {count:,}")


@contextmanager
def command_session(
    config: Path | None,
    key: Path | None = None,
    *,
    names: Collection[str] | None = None,
    tenant: str = "",
    with_history: bool = False,
    signs: bool = True,
    check: Callable[[OperatorSettings], None] = lambda _: None,
    as_json: bool = False,
    speaker: Speaker = DEVICE,
    facts: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[tuple[RegistrySession, OperatorSettings]]:
    """The session, and the settings. `signs`: whether it changes anything; else no key is needed.

    `tenant`: whose devices alone are read; "": every one's. `check` raises an IdentityError where the settings refuse
    what is asked: nothing is read then. `facts`: for programs, whatever fails; who calls may add to them.
    """
    from waybill.daemon.logs import LogSettings, start_logging
    from waybill.identity.errors import IdentityError, OperatorKeyRefused
    from waybill.identity.operator_settings import read_operator_settings
    from waybill.identity.registry_publisher import RegistryRefused, RegistryUnreachable
    from waybill.identity.registry_session import RegistrySession
    from waybill.settings import SettingsError

    # What is printed is the answer; what goes wrong on the way is said beside it.
    start_logging(LogSettings(level="warning"))
    try:
        settings = read_operator_settings(config)
        if key is not None or not signs:
            settings = settings.model_copy(update={"key": key})
        check(settings)
        if config is None and not _listens(settings.service_url):
            # Else each client of the cluster would wait for its time-out.
            end(
                _NO_STACK.format(settings.service_url),
                speaker.unreachable,
                as_json=as_json,
                facts=facts,
                speaker=speaker,
            )
        with (
            shows_progress(program=speaker.program) as on_progress,
            RegistrySession(
                settings, names=names, tenant=tenant, with_history=with_history, on_progress=on_progress
            ) as session,
        ):
            yield session, settings
    except SettingsError as error:
        end("\n".join(error.lines), os.EX_CONFIG, as_json=as_json, facts=facts, speaker=speaker)
    except OperatorKeyRefused as error:
        end(str(error), os.EX_CONFIG if key is None else EXIT_ARGUMENTS, as_json=as_json, facts=facts, speaker=speaker)
    except RegistryRefused as error:
        end(str(error), EXIT_REFUSED, as_json=as_json, facts=facts, speaker=speaker)
    except RegistryUnreachable as error:
        end(str(error), speaker.unreachable, as_json=as_json, facts=facts, speaker=speaker)
    except IdentityError as error:
        end(str(error), EXIT_REFUSED, as_json=as_json, facts=facts, speaker=speaker)


def _listens(service_url: str) -> bool:
    """Whether anybody takes a connection at an address of this machine; of another machine it is not asked."""
    from waybill.pulsar.pulsar_address import each_host

    return any(map(_host_listens, each_host(service_url)))


def _host_listens(url: str) -> bool:
    address = urlsplit(url)
    if address.hostname not in {"127.0.0.1", "localhost", "::1"} or address.port is None:
        return True
    try:
        with socket.create_connection((address.hostname, address.port), _SOON_S):
            return True
    except OSError:
        return False


def outcome_of(publish: Callable[[], ChangeOutcome]) -> ChangeOutcome:
    """What became of a change, of one too that was cut short."""
    from waybill.identity.change_outcome import ChangeCutShort

    try:
        return publish()
    except ChangeCutShort as cut:
        return cut.outcome


def known_entry(session: RegistrySession, device: str, *, looks: bool = True) -> DeviceEntry:
    """The entry of a device. Raises ChangeRefused, with the name that may be meant, if it `looks` for that."""
    from waybill.identity.registry import ChangeRefused

    entry = session.get(device)
    if entry is None and (why := session.not_taken(device)):
        raise ChangeRefused(device, None, "", f"{device}: {why}")
    if entry is None:
        near = session.nearest(device) if looks else ""
        meant = f"did you mean {near}?" if near else "waybill device list shows those that there are"
        raise ChangeRefused(device, None, "", f"the registry has no device {device}: {meant}")
    return entry
