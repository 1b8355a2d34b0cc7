"""What `waybill pki list` says of who is on a revocation list, and when it says that nobody knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.x509 import ReasonFlags
from typer.testing import CliRunner

from tests.identity.makers import NOW, regional_authority, root_authority
from waybill.identity.authority import Revoked, read_certificates, sign_revocation_list
from waybill.identity.pki_cli import app
from waybill.identity.pki_folder import PkiFolder, read_revocations

EU = regional_authority(root_authority())
DAY = timedelta(days=1)


def write_list(
    file: Path, *revoked: Revoked, number: int = 1, until: datetime = NOW + DAY, authority: object = EU
) -> Path:
    pem = sign_revocation_list(authority, revoked, number=number, this_update=NOW - DAY, next_update=until)  # type: ignore[arg-type]
    file.write_bytes((file.read_bytes() if file.exists() else b"") + pem)
    return file


def state(files: Sequence[Path], serial: int = 7, now: datetime = NOW) -> str:
    return read_revocations(files, [EU.certificate]).state(EU.name, serial, now)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (ReasonFlags.certificate_hold, "suspended"),
        (ReasonFlags.affiliation_changed, "moved"),
        (ReasonFlags.superseded, "replaced"),
        (ReasonFlags.privilege_withdrawn, "revoked"),
        (ReasonFlags.unspecified, "revoked"),
    ],
)
def test_the_reason_of_a_list_is_the_state_of_the_device(tmp_path: Path, reason: ReasonFlags, said: str) -> None:
    file = write_list(tmp_path / "a.crl", Revoked(7, NOW, reason))
    assert [state([file]), state([file], 8)] == [said, "no"]
    # What a list named stays named; of the others it says nothing after its end.
    assert [state([file], one, NOW + DAY) for one in (7, 8)] == [said, "unknown"]


def listed(folder: Path, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    done = CliRunner().invoke(app, ["list", "--folder", str(folder), "--json", *arguments])
    return done.exit_code, {one["name"]: (one["state"], one["revoked"]) for one in json.loads(done.output)}


def test_a_revoked_device_is_not_called_good(tmp_path: Path) -> None:
    pki, now = PkiFolder(tmp_path / "daemon" / "pki"), datetime.now(UTC)
    authority = pki.create_region(pki.create_root(now=now, lifetime=900 * DAY), "eu", now=now, lifetime=800 * DAY)
    serials = {}
    for name in ("acme/bus-1", "acme/bus-2"):
        files = pki.write("eu", tmp_path / name, name, now=now, lifetime=20 * DAY)
        assert files.certificate is not None
        serials[name] = read_certificates(files.certificate.read_bytes())[0].serial_number
    soon = ("ends soon", "unknown")
    assert listed(pki.folder) == (
        1,
        {
            "acme/bus-1": soon,
            "acme/bus-2": soon,
            "Waybill root": ("good", "unknown"),
            "Waybill regional authority eu": ("good", "unknown"),
        },
    )
    gone = Revoked(serials["acme/bus-1"], now, ReasonFlags.privilege_withdrawn)
    # Where the access daemon of a region has it: around the folder of its authority.
    file = write_list(tmp_path / "daemon" / "broker.crl", gone, until=now + DAY, authority=authority.authority)
    found = listed(pki.folder)[1]
    assert (found["acme/bus-1"], found["acme/bus-2"]) == (("revoked", "revoked"), ("ends soon", "no"))
    # Nobody renews it: it is no reason to be called.
    held = Revoked(serials["acme/bus-2"], now, ReasonFlags.certificate_hold)
    write_list(file, gone, held, number=2, until=now + DAY, authority=authority.authority)
    code, found = listed(pki.folder)
    assert (code, found["acme/bus-2"]) == (0, ("suspended", "suspended"))
    file.rename(tmp_path / "elsewhere")
    assert listed(pki.folder)[1]["acme/bus-1"] == soon
    assert listed(pki.folder, "--revocations", str(tmp_path / "elsewhere"))[1]["acme/bus-1"][0] == "revoked"
    refused = CliRunner().invoke(app, ["list", "--folder", str(pki.folder), "--revocations", str(tmp_path / "no")])
    assert (refused.exit_code, "no such file" in refused.output) == (1, True)
