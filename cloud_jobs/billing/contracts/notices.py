"""What of stated versions may be meant, or a slip: said beside the faults, it keeps nothing from being published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.contracts.resolved import Contracts
from geo.reference.beginning import beginning, ending
from geo.reference.in_force import publication_order
from geo.reference.moments import stamp

MAX_DEVICES_NAMED: Final = 5
Row = dict[str, Any]


def notices(published: Sequence[Row], stated: Sequence[Row], before: Contracts, after: Contracts) -> list[str]:
    """Versions that are replaced, devices that nobody pays for any more, meters that become free, pools that begin
    anew, payers that are none any more."""
    return [
        *_replaced(published, stated),
        *_left(before, after, stated),
        *_free(before, after, stated),
        *_begun_anew(after, stated),
        *_no_payers(before, after, stated),
    ]


def begin_of(row: Row) -> datetime | None:
    """From when a version of a contract is in force; None: it does not say, or is none."""
    if row["kind"] not in MODEL_OF:
        return None
    try:
        return datetime.fromisoformat(beginning(row["kind"], row["body"]))
    except ValueError:
        return None


def differing(published: Iterable[Row], stated: Iterable[Row]) -> list[Row]:
    """The stated versions that are not published with the same content."""
    bodies = _bodies(published)
    return [row for row in stated if bodies.get((row["kind"], row["id"], begin_of(row))) != row["body"]]


def _bodies(published: Iterable[Row]) -> dict[tuple[str, str, datetime | None], str]:
    return {(row["kind"], row["id"], begin_of(row)): row["body"] for row in sorted(published, key=publication_order)}


def _replaced(published: Iterable[Row], stated: Iterable[Row]) -> Iterator[str]:
    """Stated versions that begin when one that is published does, and say something else."""
    bodies = _bodies(published)
    for row in stated:
        begin = begin_of(row)
        if begin is not None and bodies.get((row["kind"], row["id"], begin), row["body"]) != row["body"]:
            yield (
                f"{row['place']}: {row['kind']} {row['id']!r} from {stamp(begin)} is published with another "
                "content; this replaces it from that moment on"
            )


def _left(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Devices that somebody pays for until a stated version of an account begins or ends, and nobody from then on."""
    for row, begin in _accounts(stated):
        changes = [(begin, before.devices_of(row["id"], begin))]
        if end := ending("account", row["body"]):
            changes.append((end, after.devices_of(row["id"], end - timedelta.resolution)))
        for moment, had in changes:
            gone = had - after.devices_of(row["id"], moment)
            # what moves to another account is no loss
            gone -= after.devices_held(gone, moment)
            if gone:
                names = [f"{one.tenant}/{one.device}" for one in sorted(gone)]
                more = [f"and {len(names) - MAX_DEVICES_NAMED} more"] if len(names) > MAX_DEVICES_NAMED else []
                yield (
                    f"{row['place']}: account {row['id']!r} has no longer "
                    f"{', '.join([*names[:MAX_DEVICES_NAMED], *more])} from {stamp(moment)} on, and nobody else pays "
                    "for them"
                )


def _free(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Meters that are sold until a stated version begins, and not by it: it says so, or is of another tariff."""
    for row in stated:
        begin = begin_of(row)
        if begin is None or row["kind"] not in {"account", "tariff"}:
            continue
        just_before = begin - timedelta.resolution
        was = _sold(before, row, begin) | _sold(after, row, just_before)
        gone = was - _sold(after, row, begin)
        if row["kind"] == "tariff":
            # one that says nothing of it is a fault
            gone &= after.not_sold(row["id"], begin)
        if gone:
            yield (
                f"{row['place']}: {row['kind']} {row['id']!r} has no price for {', '.join(sorted(gone))} from "
                f"{stamp(begin)} on, and had one; what is used of it is free"
            )


def _begun_anew(after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Pools that begin with a version within a month, of a meter that had one: allowances are given twice."""
    for row in stated:
        begin = begin_of(row)
        if begin is None or row["kind"] != "tariff" or _begins_a_month(begin):
            continue
        had = after.pools(row["id"], begin - timedelta.resolution)
        new = sorted({pool.meter.value for pool in after.pools(row["id"], begin) - had} & {one.meter for one in had})
        if new:
            yield (
                f"{row['place']}: tariff {row['id']!r} adds up {', '.join(new)} anew from {stamp(begin)} on, by "
                "another zone, window, pool or pool_id: allowances and tiers of the month are given once more"
            )


def _begins_a_month(moment: datetime) -> bool:
    """Whether a month begins then in some time zone."""
    return 1 in {(moment + timedelta(hours=14)).day, (moment - timedelta(hours=12)).day}


def _sold(contracts: Contracts, row: Row, moment: datetime) -> frozenset[str]:
    tariff = row["id"] if row["kind"] == "tariff" else contracts.tariff_of(row["id"], moment)
    return contracts.sold(tariff, moment)


def _no_payers(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    for row, begin in _accounts(stated):
        paid = before.pays(row["id"], begin) or after.pays(row["id"], begin - timedelta.resolution)
        if paid and not after.pays(row["id"], begin):
            yield (
                f"{row['place']}: account {row['id']!r} is no payer any more from {stamp(begin)} on: what it uses "
                "stands on the invoice of its parent"
            )


def _accounts(stated: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    for row in stated:
        begin = begin_of(row)
        if row["kind"] == "account" and begin is not None:
            yield row, begin
