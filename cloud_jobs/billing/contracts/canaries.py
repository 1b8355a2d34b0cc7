"""Canaries stay by themselves: their devices are of a reserved tenant, and no customer's account has anything of it.

Judged in each version of an account by itself: one that mixes the two is not in force, whoever published it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["CANARY", "canary_faults", "is_canary"]

CANARY: Final = "canary"
"""The tenant of canaries' devices. Their accounts and sellers are named so, or begin with it and a hyphen."""


def is_canary(name: str) -> bool:
    """Whether an account or a seller is one of canaries, by its id."""
    return name == CANARY or name.startswith(f"{CANARY}-")


def canary_faults(
    account: str, *, tenants: Iterable[str], parent: str | None, legal_entity: str | None
) -> Iterator[str]:
    """What of an account belongs to canaries and to customers at once.

    `tenants`: of its devices; `parent`: the account that pays for it; `legal_entity`: who sells to it.
    """
    mine = is_canary(account)
    strangers = sorted({tenant for tenant in tenants if (tenant == CANARY) != mine})
    if strangers and mine:
        yield f"it is an account of canaries, whose devices are of the tenant {CANARY!r} alone, not of {strangers[0]!r}"
    elif strangers:
        yield (
            f"it has a device of the tenant {CANARY!r}, which is reserved for canaries: no customer pays for one; "
            f"their accounts are named {CANARY!r}, or begin with {CANARY + '-'!r}"
        )
    if parent is not None and (mine or is_canary(parent)):
        yield f"an account of canaries pays for itself and for no other: it has no parent and is none ({parent!r})"
    if legal_entity is not None and is_canary(legal_entity) != mine:
        whose = "is of canaries" if mine else "is a customer's"
        yield f"it {whose}, and its seller {legal_entity!r} is not: a seller's documents are numbered without gaps"
