"""waybill pki: a small authority of one's own, for devices, gateways and servers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waybill.daemon.durable_file import create_durably
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import common_name, regional_name
from waybill.identity.authority_folder import IssuedCertificate, OtherKeys, latest, other_keys
from waybill.identity.claims import check_factory_serial
from waybill.identity.command_options import AsJson, error_text, errors_as_messages, print_error
from waybill.identity.errors import IdentityError, NameRefused, SealingKeyError
from waybill.identity.names import PrincipalKind, device_name, principal
from waybill.identity.pki_folder import NOT_REVOKED, UNKNOWN, ListedRevocations, PkiFolder, RenewalList, credentials_in
from waybill.identity.sealing import read_private_key
from waybill.identity.token_cli import DAY_S, NewIssuer, TokenFolderOption, TopologyOption, check_role, moment_text
from waybill.identity.token_cli import app as token_key
from waybill.identity.tokens import TokenIssuer, as_owner_of, check_issuer, check_role_name
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import load, printable

# Certificates as a table and as JSON.

console = Console(highlight=False)
_BORDERS = 19
"""Of six columns: a line and two blanks for each, and the last line."""
_HEADINGS = "name", "what", "ends", "state", "revoked", "signed by"


def fact_text(value: object) -> str:
    """A fact for people and programs: a moment in UTC, all else as it is."""
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else str(value)


def show_certificates(
    found: Sequence[IssuedCertificate],
    within: float,
    as_json: bool,
    revoked: ListedRevocations,
    others: OtherKeys | None = None,
) -> None:
    """Print them; exit status 1 where one ends within so many days, or ended so few days ago."""
    now, soon = datetime.now(UTC), timedelta(days=within)
    # One moment for all, so that two lines never contradict each other.
    listed = [revoked.state(one.issuer, one.serial, now) for one in found]
    rows = [(one, is_listed, _state(one, is_listed, now, soon)) for one, is_listed in zip(found, listed, strict=True)]
    more = {
        name: [one for one in keys if revoked.state(one.issuer, one.serial, now) in {NOT_REVOKED, UNKNOWN}]
        for name, keys in (others or {}).items()
    }
    if as_json:
        facts = [_fields(*row, more.get((row[0].name, row[0].what))) for row in rows]
        print(json.dumps(facts, indent=2))  # noqa: T201
    else:
        _print_table([_cells(*row, more.get((row[0].name, row[0].what), ())) for row in rows])
    raise typer.Exit(1 if any(state in {"ends soon", "ended"} for *_, state in rows) else 0)


def _cells(one: IssuedCertificate, is_listed: str, state: str, others: Sequence[IssuedCertificate]) -> tuple[str, ...]:
    keys = f", {len(others)} more key{'s' * (len(others) > 1)}" if others else ""
    return one.name, one.what, fact_text(one.not_after), state + keys, is_listed, one.issuer


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # as Text: Rich would read brackets in a name as markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    # A name or a date that is broken says nothing: it is wider than the screen where that is needed.
    least = sum(max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True))
    Console(highlight=False, width=max(console.width, least + _BORDERS)).print(table)


def _fields(
    one: IssuedCertificate, is_listed: str, state: str, others: Sequence[IssuedCertificate] | None
) -> dict[str, object]:
    # Of a file that is shown nobody knows of other keys.
    known = {} if others is None else {"other_keys": [_serial(other) for other in others]}
    return known | {
        "name": one.name,
        "what": one.what,
        "not_before": fact_text(one.not_before),
        "not_after": fact_text(one.not_after),
        "issuer": one.issuer,
        "serial": _serial(one),
        "file": str(one.file),
        "state": state,
        "revoked": is_listed,
    }


def _serial(one: IssuedCertificate) -> str:
    return f"{one.serial:040x}"


def _state(one: IssuedCertificate, is_listed: str, now: datetime, soon: timedelta) -> str:
    if one.is_refused:
        return "refused"
    if is_listed not in {NOT_REVOKED, UNKNOWN}:
        return is_listed
    if one.not_after <= now - soon:
        return "former"  # nobody renewed it for so long: whoever it named is gone
    if one.not_after <= now:
        return "ended"
    return "ends soon" if one.not_after <= now + soon else "good"


# `waybill pki token` and `waybill pki sealing`.

Issuer = Annotated[str, typer.Option(envvar="WAYBILL_TOKEN_ISSUER", help="The URL that serves FOLDER/published.")]
TokenDays = Annotated[float, typer.Option(min=0.01, max=365, help="Validity of a token in days.")]


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
    tenant: Annotated[str, typer.Argument(help="The tenant whose batches are sealed.")],
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
Region = Annotated[str, typer.Option(help="The region whose authority signs.")]
Out = Annotated[Path, typer.Option(help="A folder for ca.pem, certificate.pem and key.pem.")]
At = Annotated[list[str], typer.Option("--at", help="DNS name or IP address of the server; may be repeated.")]
Days = Annotated[float, typer.Option(min=0.01, max=36_500, help="Validity of the certificate in days.")]
Within = Annotated[
    float, typer.Option(min=0, help="Report certificates that expire within these days (exit status 1).")
]

DEFAULT_FOLDER = Path("pki")
_LEAF_DAYS, _REGION_DAYS, _ROOT_DAYS, _SOON_DAYS = 90.0, 730.0, 3650.0, 30.0


@app.command()
def init(
    folder: Folder = DEFAULT_FOLDER,
    name: Annotated[str, typer.Option(help="The root's name.")] = "Waybill root",
    days: Days = _ROOT_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create the root authority. After it signed the regions, store its key offline.

    Example: waybill pki init --name "Acme root"
    """
    with errors_as_messages():
        root = PkiFolder(folder).create_root(name=name, now=_now(), lifetime=_lasting(days))
        ends = root.authority.certificate.not_valid_after_utc
        _say_certificate(as_json, {"name": name, "not_after": ends, "folder": root.folder})


@app.command()
def pulsar(folder: Folder = DEFAULT_FOLDER, days: Days = _ROOT_DAYS, as_json: AsJson = False) -> None:
    """Create the authority for Pulsar servers only. Pulsar clients trust only this authority.

    Example: waybill pki pulsar
    """
    with errors_as_messages():
        made = PkiFolder(folder).create_pulsar(now=_now(), lifetime=_lasting(days)).authority
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

    It can only certify servers whose names are in --servers: without that option, none.

    Example: waybill pki region eu --servers eu.example --root-key /media/safe/authority.key
    """
    with errors_as_messages():
        pki = PkiFolder(folder)
        root, now, lifetime = pki.root(root_key), _now(), _lasting(days)
        if renew:
            made = root.renew_regional(pki.region(region), region, servers=servers or (), now=now, lifetime=lifetime)
        else:
            made = pki.create_region(root, region, servers=servers or (), now=now, lifetime=lifetime)
        ends = made.authority.certificate.not_valid_after_utc
        _say_certificate(
            as_json, {"name": regional_name(region), "not_after": ends, "folder": made.folder}, now + lifetime
        )


@app.command()
def server(
    name: Annotated[str, typer.Argument(help="Such as broker@eu or pulsar@eu.")],
    *,
    region: Annotated[
        str | None, typer.Option(help="The region whose authority signs; not for a Pulsar server.")
    ] = None,
    at: At,
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create a server key and certificate: a region signs broker@NAME, the Pulsar authority signs pulsar@NAME.

    Example: waybill pki server broker@eu --region eu --at broker.eu.example --at 10.0.0.5 --out broker
    """
    _write(folder, region, out, name=name, days=days, as_json=as_json, servers=at)


@app.command()
def gateway(
    name: Annotated[str, typer.Argument(help="Such as eu-1.")],
    *,
    region: Region,
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create the key and certificate gateway@NAME, and the file `share`, the same for all gateways of a region.

    Example: waybill pki gateway eu-1 --region eu --out gateway-eu-1
    """
    with errors_as_messages():
        now, lifetime = _now(), _lasting(days)
        pki = PkiFolder(folder)
        made = pki.write_gateway(region, out, name, now=now, lifetime=lifetime)
        _say_written(made, as_json, now + lifetime)


@app.command()
def access(
    region: Annotated[str, typer.Argument(help="The region, such as eu; its authority signs.")],
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create the key and certificate access@REGION for a region's access daemon.

    Example: waybill pki access eu --out access-eu
    """
    _write_principal(folder, region, out, kind=PrincipalKind.ACCESS, name=region, days=days, as_json=as_json)


@app.command()
def factory(
    serial: Annotated[str, typer.Argument(help="The device's serial, as the registry expects it.")],
    *,
    region: Region,
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _ROOT_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create a key and factory certificate claim@SERIAL, which a device can only use to enrol.

    Example: waybill pki factory VIN-4711 --region eu --out flash/VIN-4711
    """
    with errors_as_messages():
        check_factory_serial(serial)
    _write_principal(folder, region, out, kind=PrincipalKind.CLAIM, name=serial, days=days, as_json=as_json)


@app.command()
def device(
    name: Annotated[str, typer.Argument(help="TENANT/DEVICE.")],
    *,
    region: Region,
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    request: Annotated[
        Path | None, typer.Option(help="A certificate request (PEM); the key stays on the device.")
    ] = None,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create a device's operational certificate for a new key or a certificate request.

    Example: waybill pki device acme/bus-17 --region eu --out bus-17
    """
    with errors_as_messages():
        device_name(*name.split("/", 1) if "/" in name else (name, ""))
    if request is None:
        _write(folder, region, out, name=name, days=days, as_json=as_json)
        return
    with errors_as_messages():
        now, lifetime = _now(), _lasting(days)
        pki = PkiFolder(folder)
        pki.sign_request(region, out, name, request, now=now, lifetime=lifetime)
        made = credentials_in(out)
        _say_written(made, as_json, now + lifetime)


@app.command()
def renew(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with certificate.pem and key.pem.")] = None,
    *,
    listing: Annotated[
        Path | None, typer.Option("--list", help="A TOML file with [folders]: the name of each folder.")
    ] = None,
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
    if not folders and listing is None:
        raise typer.BadParameter("name folders, or a list by --list FILE")
    with errors_as_messages():
        listed = load(RenewalList, listing).folders if listing else {}
    pki, failed, lifetime = PkiFolder(folder), False, _lasting(days)
    for place, expected in [*((one, None) for one in folders or []), *listed.items()]:
        now = _now()
        try:
            issued = pki.renew(place, now=now, lifetime=lifetime, name=expected)
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

    `2 more keys`: two other valid certificates of this name exist, with other keys; --json shows their serials.

    Default of --revocations: the files *.crl next to the authorities. `unknown`: no revocation list is current.

    Exit status: 0; 1 when a certificate that is not revoked expires within the given days, or expired that recently.

    Example: waybill pki list --within 14 --json
    """
    with errors_as_messages():
        pki = PkiFolder(folder)
        issued, revoked = pki.issued(), pki.revocations(lists)
        found = latest(issued)
    show_certificates(found, within, as_json, revoked, other_keys(issued, found, _now()))


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="Certificates (PEM), or folders with certificate.pem.")],
    within: Within = _SOON_DAYS,
    as_json: AsJson = False,
) -> None:
    """Show subject, issuer and expiry of certificates. `waybill pki list` shows revocations.

    `refused`: a ca.pem marks this authority as rejected (`openssl x509 -addreject`).

    Exit status: 0; 1 when one expires within the given days, or expired that recently.

    Example: waybill pki show bus-17/certificate.pem --within 7
    """
    with errors_as_messages():
        places = [file / "certificate.pem" if file.is_dir() else file for file in files]
        found = [one for file in places for one in (IssuedCertificate.read(file), *IssuedCertificate.refused_in(file))]
    show_certificates(found, within, as_json, ListedRevocations())


def _write_principal(
    folder: Path, region: str, out: Path, *, kind: PrincipalKind, name: str, days: float, as_json: bool
) -> None:
    with errors_as_messages():
        whole = principal(kind, name)
    _write(folder, region, out, name=whole, days=days, as_json=as_json)


def _write(
    folder: Path, region: str | None, out: Path, *, name: str, days: float, as_json: bool, servers: Sequence[str] = ()
) -> None:
    with errors_as_messages():
        pki, now, lifetime = PkiFolder(folder), _now(), _lasting(days)
        files = pki.write(region, out, name, servers=servers, now=now, lifetime=lifetime)
        _say_written(files, as_json, now + lifetime)


def _say_written(files: TlsSettings, as_json: bool, asked: datetime) -> None:
    assert files.certificate is not None
    made = IssuedCertificate.read(files.certificate)
    _say_certificate(as_json, {"name": made.name, "not_after": made.not_after, "folder": made.file.parent}, asked)


def _say_certificate(as_json: bool, made: Mapping[str, object], asked: datetime | None = None) -> None:
    """`asked`: until when it was to be good; its authority may end before."""
    ends = made.get("not_after")
    # A certificate has whole seconds.
    is_cut = asked is not None and isinstance(ends, datetime) and asked - ends >= timedelta(seconds=1)
    if as_json:
        facts = {name: fact_text(value) for name, value in made.items()}
        print(json.dumps(facts | ({"cut_from": fact_text(asked)} if is_cut else {})))  # noqa: T201
        return
    why = f", when its authority ends, and not until {fact_text(asked)}" if is_cut else ""
    text = f"{made['folder']}: {made['name']}, good until {fact_text(ends)}{why}"
    console.print(text, markup=False, soft_wrap=True)


def _now() -> datetime:
    return datetime.now(UTC)


def _lasting(days: float) -> timedelta:
    return timedelta(days=days)


app.command()(token)
app.add_typer(token_key, name="token-key")
app.command()(sealing)
