"""`waybill pki token-key`: a change of the key of tokens in three steps, and how far it is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from waybill.identity.command_options import AsJson, errors_as_messages
from waybill.identity.errors import IdentityError
from waybill.identity.names import did_you_mean
from waybill.identity.tokens import (
    CLUSTERS_READ_S,
    PUBLISH,
    RETIRE,
    SIGN,
    OtherIssuer,
    TokenClaims,
    TokenFolder,
    TokenIssuer,
    as_owner_of,
    check_issuer,
)
from waybill.pulsar.pulsar_client import soon_before_end_s
from waybill.settings import SettingsError, read_text
from waybill.settings.files import parse_toml

# The role names of a topology.

_BROKERS = "brokers"
"""The role of all brokers where a topology has no `replication_role`."""

TopologyOption = Annotated[
    Path | None, typer.Option("--topology", help="The topology file; only its roles are accepted.", dir_okay=False)
]


class UnknownRole(IdentityError):
    """A topology has no role of this name, or the file is no topology."""


def check_role(file: Path, role: str) -> None:
    """Raises UnknownRole for a role that a topology does not have, with the nearest one that it has."""
    if role not in (known := topology_roles(file)):
        raise UnknownRole(
            f"{file} has no role {role!r:.80}: {did_you_mean(role, known)}there are {', '.join(known):.500}"
        )


def topology_roles(file: Path) -> list[str]:
    """Every role, also those of regions and of each cluster's brokers. Raises UnknownRole."""
    try:
        tables = parse_toml(read_text(file))
    except SettingsError as error:
        raise UnknownRole("; ".join(error.lines)) from error
    except ValueError as error:
        raise UnknownRole(f"{file}: is not valid TOML: {error!s:.200}") from error
    if not isinstance(tables.get("roles"), dict):
        raise UnknownRole(f"{file}: is no topology with roles: it has no table [roles.NAME]")
    regions, clusters = _names(tables, "regions"), _names(tables, "clusters")
    brokers = str(tables.get("replication_role", _BROKERS))
    tenants = [name for name, one in tables.get("tenants", {}).items() if isinstance(one, dict) and one.get("operator")]
    found = {
        one.replace("{region}", region).replace("{tenant}", tenant)
        for one in _names(tables, "roles")
        for region in (regions if "{region}" in one else [""])
        for tenant in (tenants if "{tenant}" in one else [""])
    }
    return sorted(found | {brokers.replace("{cluster}", cluster) for cluster in clusters})


def _names(tables: Mapping[str, Any], table: str) -> list[str]:
    found = tables.get(table)
    return list(found) if isinstance(found, dict) else []


DAY_S = 86_400
_LIFE_S = 7 * DAY_S
"""For a token that cannot be read: the validity of the former one is unknown."""
_GOOD = "good"
_STATES = {_GOOD: "", "missing": "", "ends soon": ": it ENDS SOON", "ended": ": it HAS ENDED"}
_TOKENS = Path("tokens")

TokenFolderOption = Annotated[
    Path, typer.Option("--folder", envvar="WAYBILL_TOKENS", help="Folder of the tokens and their keys.")
]
NewIssuer = Annotated[bool, typer.Option("--new-issuer", help="Change the issuer of the folder's tokens.")]
_Issuer = Annotated[
    str | None,
    typer.Option(
        "--issuer",
        envvar="WAYBILL_TOKEN_ISSUER",
        help="The URL that serves FOLDER/published.",
        show_default="the folder's",
    ),
]
_Early = Annotated[
    bool,
    typer.Option(
        "--early", help="Skip the waiting time, because all brokers are known to have completed the previous step."
    ),
]
_Days = Annotated[
    float | None,
    typer.Option(min=0.01, max=365, help="Validity of each token in days.", show_default="as the one before it"),
]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Rotate the token key without downtime: publish, sign, retire. `status` shows the next step.",
)


@app.command()
def publish(
    *,
    issuer: _Issuer = None,
    folder: TokenFolderOption = _TOKENS,
    new_issuer: NewIssuer = False,
    as_json: AsJson = False,
) -> None:
    """Create a new key and publish it to the brokers. The former key still signs tokens.

    Example: waybill pki token-key publish --folder tokens
    """
    with errors_as_messages(), as_owner_of(folder):
        done = [_issuer_of(folder, issuer, new_issuer).publish_new_key()]
        _say(folder, PUBLISH, done, f"published the key {done[0]}", as_json=as_json)


@app.command()
def sign(
    *,
    issuer: _Issuer = None,
    folder: TokenFolderOption = _TOKENS,
    days: _Days = None,
    new_issuer: NewIssuer = False,
    early: _Early = False,
    as_json: AsJson = False,
) -> None:
    """Sign with the new key from now on, and renew the token of each role with the same validity.

    Refused for ten minutes after `publish`, unless --early is given.

    Example: waybill pki token-key sign --folder tokens
    """
    with errors_as_messages(), as_owner_of(folder):
        keys, now_s = _issuer_of(folder, issuer, new_issuer), time.time()
        if not early:
            keys.check_wait(SIGN, now_s)
        lives_s = {role: days * DAY_S if days else _life_s(keys, role) for role in keys.roles}
        done = keys.sign_with_newest(lives_s, now_s=now_s)
        tokens = [_token_facts(role, keys.claims(role), now_s, 0) for role in done]
        lines = [f"written anew: {_token_text(one)}" for one in tokens]
        text = "\n".join(
            lines or ["no token is renewed: each has the newest key and is in the first half of its validity"]
        )
        _say(folder, SIGN, done, text, as_json=as_json, tokens=tokens)


@app.command()
def retire(
    *,
    issuer: _Issuer = None,
    folder: TokenFolderOption = _TOKENS,
    new_issuer: NewIssuer = False,
    early: _Early = False,
    as_json: AsJson = False,
) -> None:
    """Delete the former keys. Brokers refuse their tokens after they reload the keys.

    Refused until the last token of the former keys has expired, unless --early is given, and if no former key is left.

    Example: waybill pki token-key retire --folder tokens
    """
    with errors_as_messages(), as_owner_of(folder):
        keys = _issuer_of(folder, issuer, new_issuer)
        if not early:
            keys.check_wait(RETIRE, time.time())
        done = keys.retire_former_keys()
        text = (
            f"retired: {', '.join(done)}; a broker takes its tokens until it has read the keys again, a minute by "
            "`waybill topology broker-conf`, and an open connection stays until its token ends"
        )
        _say(folder, RETIRE, done, text, as_json=as_json)


@app.command()
def status(
    *,
    folder: TokenFolderOption = _TOKENS,
    within: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=365,
            help="Exit status 1 if a role's token expires within these days.",
            show_default="a fifth of its life, at most 2",
        ),
    ] = None,
    topology: TopologyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the keys, the expiry of their tokens, the token of each role, and the next step.

    Exit status: 0; 1 when a role's token expires within the given days, has expired or cannot be read; with --topology
    also when one of its roles has no token.

    Example: waybill pki token-key status --folder tokens --within 2 --topology topology.toml
    """
    with errors_as_messages():
        found = TokenFolder(folder)
        keys, following = found.key_states(), _next(folder)
        roles = found.roles if topology is None else sorted({*found.roles, *topology_roles(topology)})
    soon_s = None if within is None else within * DAY_S
    tokens = [_token_facts(role, found.claims(role), time.time(), soon_s) for role in roles]
    facts = [
        {
            "id": key.key_id,
            "use": key.use,
            "made": moment_text(key.made_s),
            "tokens_until": moment_text(key.tokens_until_s) if key.tokens_until_s else None,
            "tokens_known": key.tokens_until_s is not None,
        }
        for key in keys
    ]
    if as_json:
        answer = {"issuer": found.published_issuer, "keys": facts, "tokens": tokens, "next": following}
        typer.echo(json.dumps(answer, indent=2))
    else:
        typer.echo(f"issuer  {found.published_issuer or 'not published'}")
        for key in facts:
            until = f"its tokens end by {key['tokens_until']}" if key["tokens_until"] else "it signed no token"
            until = until if key["tokens_known"] else "the expiry of its tokens is not recorded"
            typer.echo(f"key     {key['id']}  {key['use']}  made {key['made']}  {until}")
        for token in tokens:
            of_key = f", of the key {token['key']}" if "key" in token else ""
            typer.echo(f"token   {_token_text(token)}{of_key}{_STATES[str(token['state'])]}")
        typer.echo(f"next    {_next_text(following)}")
    raise typer.Exit(1 if any(one["state"] != _GOOD for one in tokens) else 0)


def moment_text(moment_s: float) -> str:
    """A moment for people and programs, in UTC."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _issuer_of(folder: Path, issuer: str | None, new_issuer: bool) -> TokenIssuer:
    issuer = issuer or TokenFolder(folder).published_issuer
    if issuer is None:
        raise OtherIssuer(f"{folder} has no tokens yet: waybill pki token ROLE makes the first, or say --folder")
    check_issuer(folder, issuer, may_change=new_issuer)
    return TokenIssuer(folder, issuer)


def _life_s(folder: TokenFolder, role: str) -> float:
    claims = folder.claims(role)
    return claims.life_s if claims is not None and claims.life_s > 0 else _LIFE_S


def _token_facts(role: str, claims: TokenClaims | None, now_s: float, soon_s: float | None) -> dict[str, object]:
    """What is known of a role's token; without one that can be read only that. `soon_s` None: by its life."""
    if claims is None:
        return {"role": role, "state": "missing"}
    left_s, soon_s = claims.expires_s - now_s, soon_before_end_s(claims.life_s) if soon_s is None else soon_s
    state = "ended" if left_s <= 0 else "ends soon" if left_s <= soon_s else _GOOD
    days, until = round(claims.life_s / DAY_S, 2), moment_text(claims.expires_s)
    return {"role": role, "key": claims.key_id, "days": days, "until": until, "state": state}


def _token_text(token: Mapping[str, object]) -> str:
    if "days" not in token:
        return f"{token['role']}: no token, or none that can be read"
    return f"{token['role']}, good for {token['days']:g} days, until {token['until']}"


def _next(folder: Path) -> dict[str, str | None]:
    wanted = TokenFolder(folder).next_step()
    command = f"waybill pki token-key {wanted.step}" + ("" if folder == _TOKENS else f" --folder {folder}")
    from_text = None if wanted.from_s is None else moment_text(wanted.from_s)
    return {"step": wanted.step, "from": from_text, "why": wanted.why, "command": command}


def _next_text(following: Mapping[str, str | None]) -> str:
    command = following["command"]
    if following["step"] == PUBLISH:
        return f"{command}, whenever the key is to be changed"
    if following["from"] is None:
        return f"{command} --early, where you saw that everybody has a token of the new key: {following['why']}"
    return f"from {following['from']} on: {command}"


def _say(
    folder: Path, step: str, done: Sequence[str], text: str, *, as_json: bool, tokens: Sequence[object] = ()
) -> None:
    following = _next(folder)
    if as_json:
        typer.echo(json.dumps({"step": step, "done": [*done], "tokens": [*tokens], "next": following}))
        return
    typer.echo(text)
    if step == PUBLISH:
        typer.echo(f"every cluster has read it after {CLUSTERS_READ_S / 60:g} minutes")
    if step != RETIRE:
        typer.echo(_next_text(following))
