"""How a device gets its certificate, by the options of a command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from waybill.identity.registry import Claim
from waybill.identity.token_files import claim_option


def claim_of(file: Path | None, factory: str | None, *, by_hand: bool = False, days: float = 7) -> Claim | None:
    with claim_option(file, factory, by_hand=by_hand, days=days) as claim:
        return claim


@pytest.mark.parametrize("days", [1e6, 1e12])
def test_a_time_that_no_entry_may_have_is_refused_before_a_token_is_written(tmp_path: Path, days: float) -> None:
    with pytest.raises(typer.BadParameter):
        claim_of(tmp_path / "token", None, days=days)
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(("status", "stays"), [(2, False), (3, False), (78, False), (0, True), (1, True), (5, True)])
def test_the_token_of_a_refused_command_does_not_stay(tmp_path: Path, status: int, stays: bool) -> None:
    file = tmp_path / "token"
    with pytest.raises(typer.Exit), claim_option(file, None, by_hand=False, days=7):
        raise typer.Exit(status)
    assert file.exists() is stays


def test_a_refused_command_leaves_what_another_one_put_in_the_place_of_its_token(tmp_path: Path) -> None:
    file = tmp_path / "token"

    def refused_meanwhile() -> None:
        file.unlink()
        assert claim_of(file, None)
        raise typer.Exit(3)

    with pytest.raises(typer.Exit), claim_option(file, None, by_hand=False, days=7):
        refused_meanwhile()
    assert file.exists()
