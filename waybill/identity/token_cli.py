"""`waybill pki token` and `waybill pki token-key`: tokens of Pulsar's roles, and the change of their key."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from waybill.identity.command_session import AsJson, errors_as_messages
from waybill.identity.tokens import InvalidToken, TokenIssuer, read_key
from waybill.pulsar.pulsar_client import token_life
from waybill.settings import read_file

_DAY_S = 86_400
_TOKENS = Path("tokens")

_Folder = Annotated[Path, typer.Option("--folder", envvar="WAYBILL_TOKENS", help="Folder of tokens and keys.")]
_Days = Annotated[float, typer.Option(min=0.01, max=365, help="Validity of a token in days.")]
_Issuer = Annotated[str, typer.Option(envvar="WAYBILL_TOKEN_ISSUER", help="The URL that serves FOLDER/published.")]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Change the token key without downtime: publish, wait, sign, wait, retire.",
)


def token(
    role: Annotated[str, typer.Argument(help="Such as gateway-eu, jobs or operator.")],
    *,
    issuer: _Issuer,
    folder: _Folder = _TOKENS,
    days: _Days = 7,
    as_json: AsJson = False,
) -> None:
    """Write the token of a Pulsar role to a file. Clients read the file again at each connection.

    Example: waybill pki token gateway-eu --issuer https://keys.example:8443 --days 7
    """
    with errors_as_messages():
        file = TokenIssuer(folder, issuer).issue(role, now_s=time.time(), life_s=days * _DAY_S)
    text = f"{file}: a token of {role}, valid for {days:g} days"
    typer.echo(json.dumps({"role": role, "file": str(file), "days": days}) if as_json else text)


@app.command()
def publish(folder: _Folder = _TOKENS) -> None:
    """Create a new key and publish it to the brokers. The former key still signs tokens.

    Wait ten minutes before `sign`, so that every broker has fetched the key.

    Example: waybill pki token-key publish --folder tokens
    """
    with errors_as_messages():
        typer.echo(f"published the key {TokenIssuer(folder).publish_new_key()}")


@app.command()
def sign(folder: _Folder = _TOKENS, days: _Days = 7) -> None:
    """Sign with the new key from now on, and write a new token for each role.

    Wait before `retire` until every client has its new token.

    Example: waybill pki token-key sign --folder tokens
    """
    with errors_as_messages():
        for role in TokenIssuer(folder).sign_with_newest(now_s=time.time(), life_s=days * _DAY_S):
            typer.echo(f"new token: {role}, valid for {days:g} days")


@app.command()
def retire(folder: _Folder = _TOKENS) -> None:
    """Delete the former keys. Brokers refuse their tokens after they reload the keys, within a minute.

    Open connections stay until their token ends.

    Example: waybill pki token-key retire --folder tokens
    """
    with errors_as_messages():
        for key_id in TokenIssuer(folder).retire_former_keys():
            typer.echo(f"retired the key {key_id}")


@app.command()
def status(folder: _Folder = _TOKENS) -> None:
    """Show the keys, the key that signs, and the expiry of each role's token.

    Exit status: 0; 1 when a role's token has expired, expires soon or cannot be read.

    Example: waybill pki token-key status --folder tokens
    """
    with errors_as_messages():
        issuer = TokenIssuer(folder)
        signer = issuer.signing_key_file()
        for file in issuer.key_files():
            typer.echo(f"key     {read_key(file).key_id}{'  signs' if file == signer else ''}")
        is_good = True
        for role in issuer.roles:
            life = token_life(read_file(issuer.token_file(role)).decode("ascii", "replace"))
            if life is None:
                raise InvalidToken(f"{issuer.token_file(role)}: is not a token")
            now_s = time.time()
            problem = life.problem(now_s) or life.ends_soon(now_s)
            is_good = is_good and not problem
            typer.echo(f"token   {role}  {problem or 'is good'}")
    raise typer.Exit(0 if is_good else 1)
