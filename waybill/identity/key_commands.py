"""`waybill pki token` and `sealing`: tokens for roles of Pulsar, and keys of sealed batches."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from waybill.daemon.durable_file import create_durably
from waybill.identity.command_options import AsJson
from waybill.identity.error_messages import errors_as_messages
from waybill.identity.errors import NameRefused, SealingKeyError
from waybill.identity.sealing import read_private_key
from waybill.identity.token_issuer import TokenIssuer, as_owner_of, check_issuer
from waybill.identity.token_key_commands import DAY_S, NewIssuer, TokenFolderOption, moment_text
from waybill.identity.tokens import check_role_name
from waybill.identity.topology_roles import TopologyOption, check_role
from waybill.record.record import DEVICE_PATTERN

__all__ = ["sealing", "token"]

Issuer = Annotated[str, typer.Option(envvar="WAYBILL_TOKEN_ISSUER", help="The URL that serves FOLDER/published.")]
TokenDays = Annotated[float, typer.Option(min=0.01, max=365, help="How long a token is good for.")]


def token(
    role: Annotated[str, typer.Argument(help="Such as gateway-eu, jobs or operator.")],
    *,
    issuer: Issuer,
    folder: TokenFolderOption = Path("tokens"),
    days: TokenDays = 7,
    new_issuer: NewIssuer = False,
    topology: TopologyOption = None,
    as_json: AsJson = False,
) -> None:
    """Write the token of a role of Pulsar into a file, which its holder reads again at each connection.

    With --topology a role that it does not have is refused: a token of nobody opens nothing.

    Example: waybill pki token gateway-eu --issuer https://keys.example:8443 --days 7
    """
    with errors_as_messages():
        if topology is not None:
            check_role(topology, role)
        # First: a folder that is made for no role has a key that nobody needs.
        check_role_name(role)
        now_s = time.time()
        with as_owner_of(folder):
            check_issuer(folder, issuer, may_change=new_issuer)
            file = TokenIssuer(folder, issuer).issue(role, now_s=now_s, life_s=days * DAY_S)
    until = moment_text(now_s + days * DAY_S)
    text = f"{file}: a token of {role}, good for {days:g} days, until {until}"
    _say(as_json, {"role": role, "file": str(file), "days": days, "until": until}, text)


def sealing(
    tenant: Annotated[str, typer.Argument(help="Whose batches are to be sealed.")],
    *,
    out: Annotated[Path, typer.Option(help="The folder for TENANT.key and TENANT.pub.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Make a tenant's pair of keys for sealed batches: TENANT.key for the centre alone, TENANT.pub for its gateways.

    Give the centre its key first: a batch that is sealed for a key that it does not have goes to the quarantine.

    Example: waybill pki sealing acme --out keys
    """
    with errors_as_messages():
        if not DEVICE_PATTERN.fullmatch(tenant):
            raise NameRefused(f"{tenant!r:.80} is not the name of a tenant")
        private, public = _sealing_pair(out, tenant)
    made = {"tenant": tenant, "key": str(private), "public": str(public)}
    _say(as_json, made, f"{private} for the centre, {public} for the gateways of {tenant}")


def _sealing_pair(out: Path, tenant: str) -> tuple[Path, Path]:
    """Makes both files, or the public one that a command that was killed did not make. Raises SealingKeyError."""
    private, public = out / f"{tenant}.key", out / f"{tenant}.pub"
    # Never replaced: with the former key whatever was sealed for it would be lost. The public one may have gone out.
    if public.exists():
        raise SealingKeyError(f"{public} is there already, and a key is never replaced: choose another folder")
    secret = X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    create_durably(private, secret, mode=0o600)
    key = read_private_key(private).public_key()
    if not create_durably(public, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)):
        raise SealingKeyError(f"{public} was made by another command at the same time")
    return private, public


def _say(as_json: bool, facts: Mapping[str, object], text: str) -> None:
    typer.echo(json.dumps(facts) if as_json else text)
