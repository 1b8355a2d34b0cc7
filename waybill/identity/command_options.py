"""Options and error output that commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from waybill.identity.errors import IdentityError
from waybill.settings import SettingsError, file_fault, printable

# Errors of commands as messages, without stack traces.

_errors = Console(stderr=True, highlight=False)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print an error of identities, settings or the disk as one line; exit status 1."""
    try:
        yield
    except (IdentityError, SettingsError, OSError) as error:
        print_error(error_text(error))
        raise typer.Exit(1) from error


def error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {file_fault(error)}"
    return str(error)


def print_error(text: str) -> None:
    _errors.print(printable(text, "\n"), style="red", markup=False, soft_wrap=True)


AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The operator's settings, a TOML file.", show_default="operator.toml of the local stack"
    ),
]


def _device(text: str) -> str:
    from waybill.identity.names import device_name

    tenant, _, device = text.partition("/")
    return _argument(lambda: device_name(tenant, device))


def _devices(texts: list[str]) -> list[str]:
    return [_device(text) for text in texts]


def _reason(text: str) -> str:
    from waybill.identity.signatures import checked_reason

    return _argument(lambda: checked_reason(text))


def _argument(check: Callable[[], str]) -> str:
    try:
        return check()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Device = Annotated[str, typer.Argument(help="The device, TENANT/DEVICE.", callback=_device)]
Devices = Annotated[list[str], typer.Argument(help="The devices, TENANT/DEVICE.", callback=_devices)]
Reason = Annotated[
    str, typer.Option("--reason", "-m", help="Reason in one line, stored with the change.", callback=_reason)
]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for each region to confirm.", min=0)]
LockWait = Annotated[
    float, typer.Option("--wait", help="Seconds to wait for each region to confirm; 0: do not wait.", min=0)
]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="Your private key, which signs the change.", exists=True, dir_okay=False),
]
Token = Annotated[Path | None, typer.Option("--token-file", help="Create a one-time token and write it to this file.")]
TokenDays = Annotated[float, typer.Option("--days", help="Validity of the token in days.", min=0.01, max=365)]
Factory = Annotated[str | None, typer.Option("--factory", help="The serial in the device's factory certificate.")]
ByHand = Annotated[
    bool,
    typer.Option("--by-hand", help="No claim: the device connects with a certificate of `waybill pki issue`."),
]
