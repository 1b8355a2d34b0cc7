"""The certificate: does the centre account for every record that a device made, and what is not billed of them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloud_jobs.lake.coverage import Completeness, Coverage, TenantDevice, completeness
from cloud_jobs.lake.seq_ranges import SeqRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A device's completeness with its reasons: `declared_lost` for good; `missing`, neither received nor declared.

    Counted beside it, without a say in it: `far_off`, the received records that no period has, as their clock was
    far off; `erased`, the records that the usage of the period was computed from and whose positions are erased.
    `not_metered`: the positions of the period that usage does not cover yet; with one of them no bill is final.
    """

    tenant: str
    device: str
    state: Completeness
    received: int = 0
    far_off: int = 0
    erased: int = 0
    not_metered: int = 0
    declared_lost: SeqRanges = field(default_factory=SeqRanges)
    missing: SeqRanges = field(default_factory=SeqRanges)


def certify(
    device: TenantDevice, epochs: Mapping[int, Coverage], far_off: int = 0, not_metered: int = 0
) -> Certificate:
    """The certificate of one device from the coverage of its epochs, and how many of its records are not billed."""
    return Certificate(
        **device._asdict(),
        state=completeness(epochs.values()),
        received=sum(coverage.received.count for coverage in epochs.values()),
        far_off=far_off,
        not_metered=not_metered,
        declared_lost=SeqRanges.of({epoch: coverage.declared_lost for epoch, coverage in epochs.items()}),
        missing=SeqRanges.of({epoch: coverage.missing for epoch, coverage in epochs.items()}),
    )
