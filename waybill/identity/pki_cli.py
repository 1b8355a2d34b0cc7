"""waybill pki: a small authority of one's own, for devices, gateways and servers."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import common_name, regional_name
from waybill.identity.authority_folder import IssuedCertificate, latest, other_keys
from waybill.identity.certificate_table import console, fact_text, show_certificates
from waybill.identity.claims import check_factory_serial
from waybill.identity.command_options import AsJson
from waybill.identity.credentials import credentials_in
from waybill.identity.error_messages import error_text, errors_as_messages, print_error
from waybill.identity.errors import IdentityError
from waybill.identity.key_commands import sealing, token
from waybill.identity.listed_revocations import ListedRevocations
from waybill.identity.names import PrincipalKind, device_name, principal
from waybill.identity.pki_folder import PkiFolder, RenewalList
from waybill.identity.token_key_commands import app as token_key
from waybill.settings import load

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Authorities of one's own, and certificates for devices, gateways and servers.",
)
Folder = Annotated[Path, typer.Option(envvar="WAYBILL_PKI", help="Where the authorities are.")]
RootKey = Annotated[Path | None, typer.Option(help="The root's private key, if it is kept elsewhere.")]
Servers = Annotated[
    list[str] | None,
    typer.Option(help="A DNS name, with all below it, or an IP network, that its servers may have; again for more."),
]
Region = Annotated[str, typer.Option(help="Whose authority signs.")]
Out = Annotated[Path, typer.Option(help="A folder for ca.pem, certificate.pem and key.pem.")]
At = Annotated[list[str], typer.Option("--at", help="A DNS name or IP address where it is reached; again for more.")]
Days = Annotated[float, typer.Option(min=0.01, max=36_500, help="How long the certificate is good for.")]
Within = Annotated[float, typer.Option(min=0, help="Days: what ends earlier is named, and the exit status is 1.")]

DEFAULT_FOLDER = Path("pki")
_LEAF_DAYS, _REGION_DAYS, _ROOT_DAYS, _SOON_DAYS = 90.0, 730.0, 3650.0, 30.0


@app.command()
def init(
    folder: Folder = DEFAULT_FOLDER,
    name: Annotated[str, typer.Option(help="The root's name.")] = "Waybill root",
    days: Days = _ROOT_DAYS,
    as_json: AsJson = False,
) -> None:
    """Make the root authority. Once the regions are signed, its key may be moved away: nothing online needs it.

    Example: waybill pki init --name "Acme root"
    """
    with errors_as_messages():
        root = PkiFolder(folder).create_root(name=name, now=_now(), lifetime=_lasting(days))
        ends = root.authority.certificate.not_valid_after_utc
        _say(as_json, {"name": name, "not_after": ends, "folder": root.folder})


@app.command()
def pulsar(folder: Folder = DEFAULT_FOLDER, days: Days = _ROOT_DAYS, as_json: AsJson = False) -> None:
    """Make the authority of Pulsar's servers, which signs these and nothing else: clients of Pulsar trust it alone.

    Example: waybill pki pulsar
    """
    with errors_as_messages():
        made = PkiFolder(folder).create_pulsar(now=_now(), lifetime=_lasting(days)).authority
        facts = {"name": made.name, "not_after": made.certificate.not_valid_after_utc}
        _say(as_json, facts | {"folder": folder / "pulsar-authority"})


@app.command()
def region(
    region: Annotated[str, typer.Argument(help="Such as eu.")],
    *,
    folder: Folder = DEFAULT_FOLDER,
    root_key: RootKey = None,
    servers: Servers = None,
    days: Days = _REGION_DAYS,
    renew: Annotated[bool, typer.Option("--renew", help="Sign its key again: what it signed stays good.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the authority of a region, signed by the root; or renew it.

    It can certify servers of the names that are said by --servers, and no others: without it, none.

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
        _say(as_json, {"name": regional_name(region), "not_after": ends, "folder": made.folder}, now + lifetime)


@app.command()
def server(
    name: Annotated[str, typer.Argument(help="Such as broker@eu or pulsar@eu.")],
    *,
    region: Annotated[str | None, typer.Option(help="Whose authority signs; none for a server of Pulsar.")] = None,
    at: At,
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Make a key and a certificate for a server: broker@NAME by a region, pulsar@NAME by Pulsar's own authority.

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
    """Make a key and a certificate for a gateway, as gateway@NAME, and `share`, which all gateways of a region have.

    Example: waybill pki gateway eu-1 --region eu --out gateway-eu-1
    """
    with errors_as_messages():
        now, lifetime = _now(), _lasting(days)
        pki = PkiFolder(folder)
        made = pki.write_gateway(region, out, name, now=now, lifetime=lifetime)
        _say_written(made, as_json, now + lifetime, pki.others_of(region, _written(made), now))


@app.command()
def access(
    region: Annotated[
        str, typer.Argument(help="Such as eu: whose access daemon it is for, and whose authority signs.")
    ],
    out: Out,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Make a key and a certificate for the access daemon of a region, as access@REGION.

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
    """Make a key and a factory certificate, as claim@SERIAL: with it a device may be enrolled, and nothing else.

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
        Path | None, typer.Option(help="A certificate request (PEM): the device keeps its key to itself.")
    ] = None,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Make a device's operational certificate, with a new key or for the key of a request.

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
        _say_written(made, as_json, now + lifetime, pki.others_of(region, _written(made), now))


@app.command()
def renew(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders with certificate.pem and key.pem.")] = None,
    *,
    listing: Annotated[
        Path | None, typer.Option("--list", help="A TOML file: [folders], each folder with the name that it has.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = _LEAF_DAYS,
    as_json: AsJson = False,
) -> None:
    """Sign the same keys and names again; only the certificate is replaced. Who uses them has to read them again.

    Only what the authority has on record, and what has not ended and is on no revocation list, is signed again.

    A folder that cannot be renewed is named, and the others are renewed. Exit status: 0, or 1 where one was not.

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
                _say(as_json, {"folder": place, "error": error})
            else:
                print_error(f"{place} is not renewed: {error_text(error)}")
            continue
        name = common_name(issued.certificate.subject)
        _say(as_json, {"name": name, "not_after": issued.not_after, "folder": place}, now + lifetime)
    raise typer.Exit(1 if failed else 0)


@app.command("list")
def list_issued(
    folder: Folder = DEFAULT_FOLDER,
    within: Within = _SOON_DAYS,
    lists: Annotated[
        list[Path], typer.Option("--revocations", help="A file of revocation lists (PEM); again for more.")
    ] = [],  # noqa: B006  # typer reads it
    as_json: AsJson = False,
) -> None:
    """Show the newest certificate of each name, when it ends, and whether it is on a revocation list.

    `2 more keys`: so many others of the name are good too, of other keys, and on no list; --json has their serials.

    Without --revocations the files *.crl count that are beside the authorities; `unknown`: no list of today says it.

    Exit status: 0, or 1 when one that is not revoked ends within so many days, or ended so few days ago.

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
    """Show whom certificates name, who signed them, and when they end; of revocations `waybill pki list` knows.

    `refused`: a ca.pem names it as an authority that TLS never takes (`openssl x509 -addreject`).

    Exit status: 0, or 1 when one ends within so many days, or ended so few days ago.

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
        # Servers of one name may be several, each with its key.
        others = [] if servers or region is None else pki.others_of(region, _written(files), now)
        _say_written(files, as_json, now + lifetime, others)


def _written(files: TlsSettings) -> IssuedCertificate:
    assert files.certificate is not None
    return IssuedCertificate.read(files.certificate)


def _say_written(files: TlsSettings, as_json: bool, asked: datetime, others: Sequence[IssuedCertificate] = ()) -> None:
    made = _written(files)
    facts = {"name": made.name, "not_after": made.not_after, "folder": made.file.parent}
    _say(as_json, facts, asked)
    if others:
        last = max(others, key=lambda one: one.not_after)
        print_error(
            f"warning: {made.name} has {len(others)} more of another key, the last good until "
            f"{fact_text(last.not_after)} ({last.file}): who has that key is {made.name} too, until it is revoked"
        )


def _say(as_json: bool, made: Mapping[str, object], asked: datetime | None = None) -> None:
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
