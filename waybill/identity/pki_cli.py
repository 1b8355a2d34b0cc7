"""waybill pki: a small authority of one's own, for devices, gateways and servers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.daemon.process import error_text
from waybill.identity.authority import common_name, regional_name
from waybill.identity.authority_folder import IssuedCertificate, latest
from waybill.identity.claims import check_factory_serial
from waybill.identity.command_session import AsJson, errors_as_messages, print_error
from waybill.identity.errors import IdentityError, NameRefused, SealingKeyError
from waybill.identity.names import PrincipalKind
from waybill.identity.pki_folder import PkiFolder
from waybill.identity.token_cli import app as token_key
from waybill.identity.token_cli import token
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import printable

console = Console(highlight=False)


def _show_certificates(
    found: Sequence[IssuedCertificate], within: float, as_json: bool, revoked: Collection[tuple[str, int]] = ()
) -> None:
    """Print certificates; exit status 1 where one that is not revoked ends within so many days, or ended."""
    now, soon = _now(), timedelta(days=within)
    rows = []
    for one in found:
        is_revoked = (one.issuer, one.serial) in revoked
        state = "revoked" if is_revoked else _state(one, now, soon)
        rows.append(one._asdict() | {"serial": f"{one.serial:040x}", "state": state})
    if as_json:
        print(json.dumps([{name: _fact_text(value) for name, value in row.items()} for row in rows], indent=2))  # noqa: T201
    else:
        table = Table(box=None)
        columns = ("name", "what", "not_after", "state", "issuer")
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(printable(_fact_text(row[column]))) for column in columns))
        Console(highlight=False, width=_WIDTH).print(table)
    raise typer.Exit(1 if any(row["state"] in {"ends soon", "ended"} for row in rows) else 0)


def _state(one: IssuedCertificate, now: datetime, soon: timedelta) -> str:
    if one.not_after <= now:
        # Nobody renewed it for so long: it is no longer used.
        return "former" if one.not_after <= now - soon else "ended"
    return "ends soon" if one.not_after <= now + soon else "good"


def _fact_text(value: object) -> str:
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else str(value)


app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Create certificate authorities and certificates for devices, gateways and servers.",
)
Folder = Annotated[Path, typer.Option(envvar="WAYBILL_PKI", help="Folder of the authorities.")]
RootKey = Annotated[Path | None, typer.Option(help="The root's private key, if stored elsewhere.")]
Servers = Annotated[
    list[str] | None,
    typer.Option(help="A DNS name (includes subdomains) or IP network allowed for its servers; may be repeated."),
]
Out = Annotated[Path, typer.Option(help="A folder for ca.pem, certificate.pem and key.pem.")]
At = Annotated[list[str] | None, typer.Option("--at", help="DNS name or IP address of the server; may be repeated.")]
Days = Annotated[float, typer.Option(min=0.01, max=36_500, help="Validity of the certificate in days.")]
Within = Annotated[
    float, typer.Option(min=0, help="Report certificates that expire within these days (exit status 1).")
]

DEFAULT_FOLDER = Path("pki")
_LEAF_DAYS, _REGION_DAYS, _ROOT_DAYS, _SOON_DAYS = 90.0, 730.0, 3650.0, 30.0
_WIDTH = 200
"""Of the table: a cut name or date says nothing."""


@app.command()
def init(
    folder: Folder = DEFAULT_FOLDER,
    name: Annotated[str, typer.Option(help="The root's name.")] = "Waybill root",
    days: Days = _ROOT_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create the root authority. Store its key offline after it has signed the regions.

    Example: waybill pki init --name "Acme root"
    """
    with errors_as_messages():
        root = PkiFolder(folder).create_root(name=name, now=_now(), lifetime=timedelta(days=days))
        ends = root.authority.certificate.not_valid_after_utc
        _say_certificate(as_json, {"name": name, "not_after": ends, "folder": root.folder})


@app.command()
def pulsar(folder: Folder = DEFAULT_FOLDER, days: Days = _ROOT_DAYS, as_json: AsJson = False) -> None:
    """Create the authority for Pulsar servers only. Pulsar clients trust only this authority.

    Example: waybill pki pulsar
    """
    with errors_as_messages():
        made = PkiFolder(folder).create_pulsar(now=_now(), lifetime=timedelta(days=days)).authority
        facts = {"name": made.name, "not_after": made.certificate.not_valid_after_utc}
        _say_certificate(as_json, facts | {"folder": folder / "pulsar-authority"})


@app.command()
def region(
    region: Annotated[str, typer.Argument(help="Such as eu.")],
    *,
    folder: Folder = DEFAULT_FOLDER,
    root_key: RootKey = None,
    servers: Servers = None,
    days: Days = _REGION_DAYS,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew the certificate with the same key; issued certificates stay valid.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create or renew the authority of a region, signed by the root.

    It can certify only servers that --servers names; without that option, none.

    Example: waybill pki region eu --servers eu.example --root-key /media/safe/authority.key
    """
    with errors_as_messages():
        pki = PkiFolder(folder)
        root, now, lifetime = pki.root(root_key), _now(), timedelta(days=days)
        if renew:
            made = root.renew_regional(pki.region(region), region, servers=servers or (), now=now, lifetime=lifetime)
        else:
            made = pki.create_region(root, region, servers=servers or (), now=now, lifetime=lifetime)
        ends = made.authority.certificate.not_valid_after_utc
        _say_certificate(
            as_json, {"name": regional_name(region), "not_after": ends, "folder": made.folder}, now + lifetime
        )


@app.command()
def issue(
    name: Annotated[
        str,
        typer.Argument(help="TENANT/DEVICE, gateway@NAME, access@REGION, claim@SERIAL, broker@NAME or pulsar@NAME."),
    ],
    *,
    region: Annotated[
        str | None, typer.Option(help="The region whose authority signs; not for a Pulsar server.")
    ] = None,
    at: At = None,
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    request: Annotated[
        Path | None, typer.Option(help="A device's certificate request (PEM); the key stays on the device.")
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(min=0.01, max=36_500, help="Validity in days.", show_default="90, for claim@SERIAL 3650"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and certificate for a device, a client, or with --at a server.

    A gateway also gets the file `share`, the same for all gateways of a region. A device with the factory certificate
    claim@SERIAL can only enrol.

    Example: waybill pki issue broker@eu --region eu --at broker.eu.example --at 10.0.0.5 --out broker
    """
    with errors_as_messages():
        kind, _, serial = name.partition("@")
        if kind == PrincipalKind.CLAIM:
            check_factory_serial(serial)
        lifetime = timedelta(days=days or (_ROOT_DAYS if kind == PrincipalKind.CLAIM else _LEAF_DAYS))
        pki, now = PkiFolder(folder), _now()
        if request is not None:
            pki.sign_request(region or "", out, name, request, now=now, lifetime=lifetime)
        else:
            pki.write(region, out, name, servers=at or (), now=now, lifetime=lifetime)
        made = IssuedCertificate.read(out / "certificate.pem")
        _say_certificate(as_json, {"name": made.name, "not_after": made.not_after, "folder": out}, now + lifetime)


@app.command()
def renew(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with certificate.pem and key.pem, or folders of such folders.")
    ],
    *,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Renew certificates with the same keys and names. Restart the programs that use them.

    Only recorded, valid and unrevoked certificates are renewed. A folder that cannot be renewed is reported, and the
    others are renewed.

    Exit status: 0; 1 if one was not renewed.

    Example: waybill pki renew gateway-eu-1 broker --days 90
    """
    pki, failed, lifetime = PkiFolder(folder), False, timedelta(days=days)
    for place in [one for each in folders for one in _credential_folders(each)]:
        now = _now()
        try:
            issued = pki.renew(place, now=now, lifetime=lifetime)
        except (IdentityError, OSError) as error:
            failed = True
            if as_json:
                _say_certificate(as_json, {"folder": place, "error": error})
            else:
                print_error(f"{place} is not renewed: {error_text(error)}")
            continue
        name = common_name(issued.certificate.subject)
        _say_certificate(as_json, {"name": name, "not_after": issued.not_after, "folder": place}, now + lifetime)
    raise typer.Exit(1 if failed else 0)


def _credential_folders(folder: Path) -> list[Path]:
    below = sorted(file.parent for file in folder.glob("*/certificate.pem"))
    return below or [folder]


@app.command("list")
def list_issued(
    folder: Folder = DEFAULT_FOLDER,
    within: Within = _SOON_DAYS,
    lists: Annotated[
        list[Path], typer.Option("--revocations", help="A file of revocation lists (PEM); may be repeated.")
    ] = [],  # noqa: B006  # typer reads it
    as_json: AsJson = False,
) -> None:
    """Show the newest certificate of each name, its expiry, and whether it is revoked.

    Default of --revocations: the files *.crl next to the authorities.

    Exit status: 0; 1 when a certificate that is not revoked expires within the given days, or expired that recently.

    Example: waybill pki list --within 14 --json
    """
    with errors_as_messages():
        pki = PkiFolder(folder)
        found, revoked = latest(pki.issued()), pki.revoked(lists)
    _show_certificates(found, within, as_json, revoked)


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="Certificates (PEM), or folders with certificate.pem.")],
    within: Within = _SOON_DAYS,
    as_json: AsJson = False,
) -> None:
    """Show subject, issuer and expiry of certificates. `waybill pki list` shows revocations.

    Exit status: 0; 1 when one expires within the given days, or expired that recently.

    Example: waybill pki show bus-17/certificate.pem --within 7
    """
    with errors_as_messages():
        found = [IssuedCertificate.read(file / "certificate.pem" if file.is_dir() else file) for file in files]
    _show_certificates(found, within, as_json)


@app.command()
def sealing(
    tenant: Annotated[str, typer.Argument(help="The tenant whose batches are sealed.")],
    *,
    out: Annotated[Path, typer.Option(help="The folder for TENANT.key and TENANT.pub.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Create a tenant's key pair for sealed batches: TENANT.key for the centre, TENANT.pub for its gateways.

    Give the centre its key first: it quarantines batches that are sealed for a key it does not have.

    Example: waybill pki sealing acme --out keys
    """
    with errors_as_messages():
        if not DEVICE_PATTERN.fullmatch(tenant):
            raise NameRefused(f"{tenant!r:.80} is not the name of a tenant")
        private, public = _sealing_pair(out, tenant)
    made = {"tenant": tenant, "key": str(private), "public": str(public)}
    typer.echo(json.dumps(made) if as_json else f"{private} for the centre, {public} for the gateways of {tenant}")


def _sealing_pair(out: Path, tenant: str) -> tuple[Path, Path]:
    private, public = out / f"{tenant}.key", out / f"{tenant}.pub"
    # Never replaced: without its key whatever was sealed for it is lost.
    key = X25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if public.exists() or not create_durably(private, secret, mode=0o600):
        raise SealingKeyError(f"{out} has a key of {tenant}, which is never replaced: choose another folder")
    replace_durably(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def _say_certificate(as_json: bool, made: Mapping[str, object], asked: datetime | None = None) -> None:
    """`asked`: the expiry that was asked for; the authority may expire earlier."""
    ends = made.get("not_after")
    # Certificates have whole seconds.
    is_cut = asked is not None and isinstance(ends, datetime) and asked - ends >= timedelta(seconds=1)
    if as_json:
        facts = {name: _fact_text(value) for name, value in made.items()}
        print(json.dumps(facts | ({"cut_from": _fact_text(asked)} if is_cut else {})))  # noqa: T201
        return
    why = f", when its authority ends, and not until {_fact_text(asked)}" if is_cut else ""
    text = f"{made['folder']}: {made['name']}, good until {_fact_text(ends)}{why}"
    console.print(text, markup=False, soft_wrap=True)


def _now() -> datetime:
    return datetime.now(UTC)


app.command()(token)
app.add_typer(token_key, name="token-key")
