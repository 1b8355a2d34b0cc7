"""Options that several of the commands here have."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "ByHand",
    "Config",
    "Device",
    "Factory",
    "Key",
    "LockWait",
    "Reason",
    "Token",
    "TokenDays",
    "Wait",
]

AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The operator's settings, a TOML file.", show_default="operator.toml of the local stack"
    ),
]
Device = Annotated[str, typer.Argument(help="The device, TENANT/DEVICE.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]
Wait = Annotated[float, typer.Option("--wait", help="Wait so many seconds for each region to confirm.", min=0)]
LockWait = Annotated[
    float, typer.Option("--wait", help="Wait so many seconds for each region to confirm; 0: do not wait.", min=0)
]
Key = Annotated[Path | None, typer.Option("--key", help="Your private key, which signs the change.")]
Token = Annotated[Path | None, typer.Option("--token-file", help="Make a one-time token, and write it to this file.")]
TokenDays = Annotated[float, typer.Option("--days", help="How long the token is good for.", min=0.01, max=365)]
Factory = Annotated[str | None, typer.Option("--factory", help="The serial in the device's factory certificate.")]
ByHand = Annotated[bool, typer.Option("--by-hand", help="No claim: it gets its certificate by `waybill pki device`.")]
