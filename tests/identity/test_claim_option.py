"""How a device gets its certificate, by the options of a command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from identity.claim_option import claim_of
from identity.claims import token_user


def test_a_token_is_written_to_a_new_file_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    claim = claim_of(file, None, by_hand=False, days=7)
    assert claim is not None
    assert token_user(file.read_text().strip()) == f"claim@{claim.id}"
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(typer.BadParameter, match="there already"):
        claim_of(file, None, by_hand=False, days=7)


@pytest.mark.parametrize("days", [1e6, 1e12])
def test_a_time_that_no_entry_may_have_is_refused_before_a_token_is_written(tmp_path: Path, days: float) -> None:
    with pytest.raises(typer.BadParameter):
        claim_of(tmp_path / "token", None, by_hand=False, days=days)
    assert not (tmp_path / "token").exists()


def test_a_serial_is_a_claim_by_itself_and_by_hand_there_is_none(tmp_path: Path) -> None:
    claim = claim_of(None, "SN-1", by_hand=False, days=7)
    assert claim is not None
    assert (claim.id, claim.is_token) == ("SN-1", False)
    assert claim_of(None, None, by_hand=True, days=7) is None
    for wrong in ("token-0123456789abcdef", "a/b"):
        with pytest.raises(typer.BadParameter):
            claim_of(None, wrong, by_hand=False, days=7)
    with pytest.raises(typer.BadParameter, match="one of"):
        claim_of(tmp_path / "token", "SN-1", by_hand=False, days=7)
