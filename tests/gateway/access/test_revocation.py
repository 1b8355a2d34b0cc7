"""Revocation lists between regions: who is believed, and which one holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.revocation import ListRefused, next_list, read_list_message
from waybill.identity.authority import Revoked
from waybill.identity.authority_folder import AuthorityFolder

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
LIFE = timedelta(days=30)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuthorityFolder, AuthorityFolder, AuthorityFolder]:
    folder = tmp_path_factory.mktemp("authorities")
    root, other = (AuthorityFolder.create_root(folder / name, name, now=NOW, lifetime=LIFE) for name in ("a", "b"))
    return (
        root,
        AuthorityFolder.create_regional(folder / "eu", root, "eu", now=NOW, lifetime=LIFE),
        AuthorityFolder.create_regional(folder / "eu-of-b", other, "eu", now=NOW, lifetime=LIFE),
    )


Three = tuple[AuthorityFolder, AuthorityFolder, AuthorityFolder]


def test_each_list_is_later_than_the_former_one_also_within_a_second(authorities: Three) -> None:
    _, eu, _ = authorities
    first = next_list(eu.authority, [], None, now=NOW, life=LIFE)
    second = next_list(eu.authority, [Revoked(5, NOW)], first, now=NOW, life=LIFE)
    assert second.is_later(first)
    assert not first.is_later(second)
    assert second.this_update - first.this_update >= timedelta(seconds=1)
    assert (second.number, second.serials) == (2, frozenset({5}))


def test_a_list_of_an_authority_of_the_root_is_taken_and_one_of_another_root_is_not(authorities: Three) -> None:
    root, eu, stranger = authorities
    made = next_list(eu.authority, [Revoked(5, NOW)], None, now=NOW, life=LIFE)
    assert read_list_message(made.issuer, made.message, root.authority.certificate) == made
    forged = next_list(stranger.authority, [Revoked(5, NOW)], None, now=NOW, life=LIFE)
    assert forged.issuer == made.issuer
    with pytest.raises(ListRefused):
        read_list_message(forged.issuer, forged.message, root.authority.certificate)
    with pytest.raises(ListRefused):
        read_list_message(made.issuer, made.certificate_pem + forged.pem, root.authority.certificate)
    with pytest.raises(ListRefused, match="it is of"):
        read_list_message("another", made.message, root.authority.certificate)


@given(st.binary(max_size=500))
def test_whatever_comes_is_a_list_or_refused(authorities: Three, body: bytes) -> None:
    root, _, _ = authorities
    with pytest.raises(ListRefused):
        read_list_message("eu", body, root.authority.certificate)
    with pytest.raises(ListRefused):
        read_list_message("eu", b"-----BEGIN CERTIFICATE-----\n" + body, root.authority.certificate)
