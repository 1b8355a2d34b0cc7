"""A region's revocation list is longer than a certificate may be: it is read and merged, and read from a file again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.access.core import AccessCore
from gateway.access.revocation import lists_in, next_list, read_list_message
from waybill.identity.authority import MAX_PEM_BYTES, Revoked
from waybill.identity.authority_folder import AuthorityFolder

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
LIFE = timedelta(days=30)
ENTRIES = 20_000


def test_a_list_of_20_000_certificates_is_taken_from_another_region_and_comes_back_from_the_file(
    tmp_path: Path,
) -> None:
    root = AuthorityFolder.create_root(tmp_path / "root", "root", now=NOW, lifetime=LIFE)
    us = AuthorityFolder.create_regional(tmp_path / "us", root, "us", now=NOW, lifetime=LIFE)
    # Serials as long as real ones.
    revoked = [Revoked((1 << 158) + number, NOW) for number in range(ENTRIES)]
    made = next_list(us.authority, revoked, None, now=NOW, life=LIFE)
    assert len(made.message) > 10 * MAX_PEM_BYTES

    core = AccessCore("Waybill regional authority eu")
    core.on_ready()
    found = read_list_message(made.issuer, made.message, root.authority.certificate)
    assert core.on_list(found, NOW.timestamp())
    step = core.take_step(NOW.timestamp() + 10)
    assert step is not None
    (merged,) = step.lists
    assert len(merged.serials) == ENTRIES
    assert lists_in(merged.pem)[made.issuer].serials == merged.serials
