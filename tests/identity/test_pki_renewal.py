"""`waybill pki renew` signs what its authority recorded, and nothing that the owner of a folder made or moved there."""

import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

from waybill.identity.authority import (
    Authority,
    Issued,
    KeyPair,
    Revoked,
    common_name,
    issue_client,
    issue_device,
    issue_server,
    make_request,
    make_root,
    read_certificates,
    sign_revocation_list,
)
from waybill.identity.authority_folder import AuthorityFolder, certificates_in
from waybill.identity.pki_cli import app
from waybill.identity.pki_folder import PkiFolder

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


class Region(NamedTuple):
    pki: PkiFolder
    authority: AuthorityFolder

    def folder(self, name: str) -> Path:
        return self.pki.folder.parent / name

    def renew(self, *arguments: object) -> Result:
        return CliRunner().invoke(app, ["renew", *map(str, arguments), "--folder", str(self.pki.folder)])

    def issued(self) -> int:
        return len(certificates_in(self.authority.folder))


@pytest.fixture
def region(tmp_path: Path) -> Region:
    pki = PkiFolder(tmp_path / "pki")
    begin = NOW - 10 * DAY
    root = pki.create_root(now=begin, lifetime=900 * DAY)
    authority = pki.create_region(root, "eu", now=begin, lifetime=800 * DAY)
    for name in ("gateway@eu-1", "acme/bus-1"):
        pki.write("eu", tmp_path / name.replace("/", "-"), name, now=NOW, lifetime=30 * DAY)
    return Region(pki, authority)


def put(folder: Path, issued: Issued, key: KeyPair) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "certificate.pem").write_bytes(issued.chain_pem)
    (folder / "key.pem").write_bytes(key.private_pem())
    return folder


def self_made(region: Region) -> Authority:
    """An authority that has the name of the region's, and a key of the thief's."""
    name = common_name(region.authority.authority.certificate.subject)
    return make_root(name, KeyPair.generate(), now=NOW, serial=5, lifetime=90 * DAY)


def signed(authority: Authority, name: str, key: KeyPair, *, at: Sequence[str] = (), serial: int = 7) -> Issued:
    if at:
        return issue_server(authority, key.public, name, at, now=NOW, serial=serial, lifetime=DAY)
    if "/" in name:
        tenant, device = name.split("/")
        request = make_request(key, name)
        return issue_device(authority, request, tenant, device, now=NOW, serial=serial, lifetime=DAY)
    return issue_client(authority, key.public, name, now=NOW, serial=serial, lifetime=DAY)


FORGED: dict[str, tuple[str, Sequence[str]]] = {
    "the access daemon of another region": ("access@us", ()),
    "a gateway": ("gateway@eu-2", ()),
    "a server of Pulsar": ("pulsar@hq", ("pulsar.hq.example",)),
    "a broker": ("broker@eu", ("broker.eu.example",)),
    "a device of another tenant": ("other/bus-9", ()),
    "a claim": ("claim@VIN-1", ()),
    "the name that the folder has": ("gateway@eu-1", ()),
}


@pytest.mark.parametrize(("name", "at"), FORGED.values(), ids=FORGED)
def test_a_certificate_that_the_owner_of_a_folder_made_is_signed_by_nobody(
    region: Region, name: str, at: Sequence[str]
) -> None:
    key, before = KeyPair.generate(), region.issued()
    folder = put(region.folder("gateway@eu-1"), signed(self_made(region), name, key, at=at), key)
    kept = (folder / "certificate.pem").read_bytes()
    said = region.renew(folder)
    assert (said.exit_code, "did not sign" in said.output) == (1, True), said.output
    assert (folder / "certificate.pem").read_bytes() == kept
    assert region.issued() == before


def forged_twin(region: Region) -> Path:
    folder, key = region.folder("gateway@eu-1"), KeyPair.generate()
    serial = read_certificates((folder / "certificate.pem").read_bytes())[0].serial_number
    return put(folder, signed(self_made(region), "gateway@eu-1", key, serial=serial), key)


def twin_by_the_authority_s_key(region: Region) -> Path:
    """Signed by the authority, with the serial of a recorded certificate and another name."""
    folder, key = region.folder("gateway@eu-1"), KeyPair.generate()
    serial = read_certificates((folder / "certificate.pem").read_bytes())[0].serial_number
    return put(folder, signed(region.authority.authority, "gateway@eu-2", key, serial=serial), key)


def not_recorded(region: Region) -> Path:
    key = KeyPair.generate()
    return put(region.folder("gateway@eu-1"), signed(region.authority.authority, "gateway@eu-2", key), key)


def of_another_root(region: Region) -> Path:
    other = PkiFolder(region.folder("other"))
    other.create_region(other.create_root(now=NOW, lifetime=90 * DAY), "eu", now=NOW, lifetime=80 * DAY)
    other.write("eu", region.folder("out"), "gateway@eu-1", now=NOW, lifetime=DAY)
    return region.folder("out")


def ended(region: Region) -> Path:
    region.pki.write("eu", region.folder("out"), "gateway@eu-9", now=NOW - 2 * DAY, lifetime=DAY)
    return region.folder("out")


def another_key(region: Region) -> Path:
    folder = region.folder("gateway@eu-1")
    (folder / "key.pem").write_bytes(KeyPair.generate().private_pem())
    return folder


def listed(region: Region) -> Path:
    folder = region.folder("acme-bus-1")
    serial = read_certificates((folder / "certificate.pem").read_bytes())[0].serial_number
    of = region.authority.authority
    revoked = [Revoked(serial, NOW)]
    pem = sign_revocation_list(of, revoked, number=2, this_update=NOW, next_update=NOW + DAY)
    region.folder("broker.crl").write_bytes(pem)
    return folder


def link_to_a_certificate(region: Region) -> Path:
    folder = region.folder("gateway@eu-1")
    (folder / "certificate.pem").unlink()
    (folder / "certificate.pem").symlink_to(region.folder("acme-bus-1") / "certificate.pem")
    return folder


def link_to_a_key(region: Region) -> Path:
    folder = region.folder("gateway@eu-1")
    (folder / "key.pem").unlink()
    (folder / "key.pem").symlink_to(region.authority.folder / "authority.key")
    return folder


def pipe(region: Region) -> Path:
    folder = region.folder("gateway@eu-1")
    (folder / "certificate.pem").unlink()
    os.mkfifo(folder / "certificate.pem")
    return folder


def endless(region: Region) -> Path:
    folder = region.folder("gateway@eu-1")
    with (folder / "key.pem").open("wb") as file:
        file.truncate(1 << 40)
    return folder


REFUSED: dict[str, tuple[Callable[[Region], Path], str]] = {
    "self-made with a recorded serial": (forged_twin, "did not sign"),
    "the authority's, another one of that serial": (twin_by_the_authority_s_key, "has no record of"),
    "the authority's, not recorded": (not_recorded, "has no record of"),
    "of a region of the same name below another root": (of_another_root, "did not sign"),
    "ended": (ended, "ended"),
    "beside another key": (another_key, "key.pem is not the key of certificate.pem"),
    "revoked": (listed, "is on a revocation list"),
    "a link to another's certificate": (link_to_a_certificate, "key.pem is not the key of certificate.pem"),
    "a link to the authority's key": (link_to_a_key, "key.pem is not the key of certificate.pem"),
    "a pipe": (pipe, "it is a named pipe"),
    "a file without end": (endless, "it has more than"),
}


@pytest.mark.parametrize(("made", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_folder_is_refused_with_the_reason_and_nothing_is_signed(
    region: Region, made: Callable[[Region], Path], reason: str
) -> None:
    folder = made(region)
    before = region.issued()
    said = region.renew(folder)
    assert (said.exit_code, reason in said.output) == (1, True), said.output
    assert len(said.output.strip().splitlines()) == 1
    assert region.issued() == before


def test_what_the_authority_recorded_is_renewed_with_key_and_name_and_so_is_the_renewed_one(region: Region) -> None:
    for name in ("gateway@eu-1", "acme-bus-1"):
        folder = region.folder(name)
        (old,), key = (
            read_certificates((folder / "certificate.pem").read_bytes())[:1],
            (folder / "key.pem").read_bytes(),
        )
        for _ in range(2):
            assert region.renew(folder).exit_code == 0
        (new,) = read_certificates((folder / "certificate.pem").read_bytes())[:1]
        assert (new.subject, new.public_key()) == (old.subject, old.public_key())
        assert new.not_valid_after_utc > old.not_valid_after_utc
        assert (folder / "key.pem").read_bytes() == key
        assert {file.name for file in folder.iterdir()} - {"share"} == {"ca.pem", "certificate.pem", "key.pem"}


def test_a_link_that_takes_the_certificate_s_place_while_it_is_signed_leads_nowhere(region: Region) -> None:
    """Whoever owns the folder exchanges its file all the time; the file that the link names stays as it is."""
    folder, victim, ends = region.folder("gateway@eu-1"), region.folder("victim"), threading.Event()
    good, file = (folder / "certificate.pem").read_bytes(), folder / "certificate.pem"
    victim.write_bytes(good)

    def exchange() -> None:
        while not ends.is_set():
            (folder / "link").symlink_to(victim)
            (folder / "link").replace(file)
            (folder / "copy").write_bytes(good)
            (folder / "copy").replace(file)

    owner = threading.Thread(target=exchange)
    owner.start()
    try:
        results = {region.renew(folder).exit_code for _ in range(20)}
    finally:
        ends.set()
        owner.join()
    assert results <= {0, 1}
    assert victim.read_bytes() == good


def test_each_folder_below_one_is_renewed(region: Region) -> None:
    above = region.folder("tls")
    above.mkdir()
    folders = [region.folder(name).rename(above / name) for name in ("gateway@eu-1", "acme-bus-1")]
    before = [(folder / "certificate.pem").read_bytes() for folder in folders]
    assert region.renew(above).exit_code == 0
    assert all((folder / "certificate.pem").read_bytes() != old for folder, old in zip(folders, before, strict=True))
