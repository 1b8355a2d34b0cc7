"""Who sells and who buys, as it stands in a closing: what a document names is what was agreed at the closing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from cloud_jobs.billing.contracts import Account, LegalEntity
from cloud_jobs.billing.register.rows import canonical


class Noticed(NamedTuple):
    """What a closing noticed that has no say in its sum: records that came again with another content, records of a
    clock far off, which are in no period, positions that came after an erasure, erased hours that were metered by
    former rules, the decisions that it rests on and publications of fences that cannot be used, in words, and what was
    agreed by the period, where that is a part of a month. `unreadable`: messages that could not be read; `no_faults`:
    how many are raw although nothing is wrong, by reason, in words;
    `unknown_mm`: the beeline of gaps, and the entries `inferred` in them that are not charged; `doubtful`: what of a
    device is beyond the bounds, in words; `dropped`: messages that vehicles' brokers dropped before their agents."""

    conflicts: int = 0
    far_off: int = 0
    late_positions: int = 0
    former_rules: int = 0
    decisions: tuple[str, ...] = ()
    refused_fences: tuple[str, ...] = ()
    once_a_period: tuple[str, ...] = ()
    unreadable: int = 0
    unknown_mm: int = 0
    inferred: int = 0
    doubtful: tuple[str, ...] = ()
    dropped: int = 0
    no_faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Noticed:
        """What stands beside the parties of a closing; of one that is blocked for its contracts nothing does."""
        found, empty = json.loads(text), cls()
        said = (found.get(name, getattr(empty, name)) for name in cls._fields)
        return cls._make(tuple(one) if isinstance(one, list) else one for one in said)

    @property
    def unknown(self) -> str:
        """What stands on no line, as it is not known which way devices went; "": nothing."""
        found = []
        if self.unknown_mm:
            made = f", inferred entries: {self.inferred:,}" if self.inferred else ""
            beeline = f"{self.unknown_mm / 1_000_000:.2f} km of beeline"
            found.append(f"not billed, as the way between positions is unknown: {beeline}{made}")
        if self.dropped:
            found.append(
                f"not billed, as the vehicles' brokers dropped them before the agents: {self.dropped:,} messages"
            )
        return "; ".join(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Seller and buyer in the versions of the period's end. `names`: of the buyer's children, by account id.

    `devices_by_state`: of how many devices the records are complete, and so on.
    """

    seller: LegalEntity
    buyer: Account
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices_by_state: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    noticed: Noticed = field(default_factory=Noticed)

    @property
    def text(self) -> str:
        """Canonical JSON. Without the devices, of which the charges say all that was billed."""
        return canonical(
            {
                "seller": self.seller.model_dump(mode="json"),
                "buyer": self.buyer.model_copy(update={"devices": ()}).model_dump(mode="json"),
                "names": dict(self.names),
                "devices_by_state": dict(self.devices_by_state),
                **self.noticed._asdict(),
            }
        )

    @classmethod
    def parse(cls, text: str) -> Parties:
        """What `text` wrote. Raises ValueError."""
        found = json.loads(text)
        return cls(
            seller=_seller(canonical(found["seller"])),
            buyer=Account.model_validate(found["buyer"]),
            names=found["names"],
            devices_by_state=found["devices_by_state"],
            noticed=Noticed.of(text),
        )


# sellers are few, and the payers that have them are many
@lru_cache(maxsize=256)
def _seller(text: str) -> LegalEntity:
    return LegalEntity.model_validate_json(text)
