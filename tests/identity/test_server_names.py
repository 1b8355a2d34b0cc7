"""Which servers a regional authority may certify, and who signs those of Pulsar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.identity.makers import MONTH, NOW, YEAR, root_authority
from waybill.identity.authority import (
    Authority,
    KeyPair,
    issue_server,
    make_regional,
    permitted_servers,
    read_certificates,
)
from waybill.identity.errors import NameRefused
from waybill.identity.pki_cli import app

ROOT, KEY = root_authority(), KeyPair.generate()


def regional(servers: Sequence[str]) -> Authority:
    issued = make_regional(ROOT, "eu", KEY.public, servers=servers, now=NOW, serial=2, lifetime=YEAR)
    return Authority(issued.certificate, KEY)


@pytest.mark.parametrize(
    ("servers", "name", "may"),
    [
        ((), "broker.eu.example", False),
        ((), "10.0.0.1", False),
        ((), "fd00::1", False),
        ((), "waybill.invalid", False),
        (("eu.example",), "eu.example", True),
        (("eu.example",), "Broker.EU.example", True),
        (("eu.example",), "*.eu.example", True),
        (("eu.example",), "neu.example", False),
        (("eu.example",), "pulsar.hq.example", False),
        (("eu.example",), "10.0.0.1", False),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "11.1.2.3", False),
        (("10.0.0.0/8",), "fd00::1", False),
        (("10.0.0.0/8",), "eu.example", False),
        (("fd00::/8", "eu.example"), "fd00::1", True),
        (("fd00::/8", "eu.example"), "10.1.2.3", False),
    ],
)
def test_an_authority_signs_servers_of_its_names_alone(servers: Sequence[str], name: str, may: bool) -> None:
    authority = regional(servers)
    assert permitted_servers(authority.certificate) == tuple(servers)
    if may:
        issue_server(authority, KEY.public, "broker@eu", [name], now=NOW, serial=3, lifetime=MONTH)
        return
    with pytest.raises(NameRefused, match="--servers"):
        issue_server(authority, KEY.public, "broker@eu", [name], now=NOW, serial=3, lifetime=MONTH)


@pytest.mark.parametrize("servers", ["*.eu.example", "https://eu.example", ".eu.example", "10.0.0.1/8"])
def test_what_is_no_name_of_servers_is_refused(servers: str) -> None:
    with pytest.raises(NameRefused, match=r"write eu.example or 10.0.0.0/8"):
        regional([servers])


def run(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--folder", str(folder)])


def test_servers_of_pulsar_are_signed_and_renewed_by_an_authority_of_their_own(tmp_path: Path) -> None:
    pki, out = tmp_path / "pki", tmp_path / "out"
    run(pki, "init")
    run(pki, "region", "eu", "--servers", "eu.example")
    server = ("server", "pulsar@hq", "--at", "pulsar.hq.example", "--out", out)
    assert "`waybill pki pulsar` makes it" in run(pki, *server).output
    assert run(pki, "pulsar").exit_code == 0
    assert "never replaced" in run(pki, "pulsar").output
    assert "leave out --region eu" in run(pki, *server, "--region", "eu").output
    assert "such as --region eu" in run(pki, "server", "broker@eu", "--at", "eu.example", "--out", out).output
    assert run(pki, *server).exit_code == 0
    assert run(pki, "renew", out).exit_code == 0
    assert len(read_certificates((out / "certificate.pem").read_bytes())) == 1
    assert (out / "ca.pem").read_bytes() == (pki / "pulsar-authority/root.pem").read_bytes()
    assert (out / "ca.pem").read_bytes() != (pki / "root-authority/root.pem").read_bytes()


def test_a_renewed_authority_keeps_its_names_until_others_are_said(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    run(pki, "init")
    run(pki, "region", "eu", "--servers", "eu.example")
    own = pki / "regions/eu/authority.pem"
    for more, names in ((), ("eu.example",)), (("--servers", "new.example"), ("new.example",)):
        assert run(pki, "region", "eu", "--renew", *more).exit_code == 0
        assert permitted_servers(read_certificates(own.read_bytes())[0]) == names
