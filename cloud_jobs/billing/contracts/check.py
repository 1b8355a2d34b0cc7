"""Checks of contracts before they are published, together with those that are published already."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from cloud_jobs.billing.billing_period import BillingPeriod, day_start, zone_of
from cloud_jobs.billing.contracts.account import Account
from cloud_jobs.billing.contracts.errors import (
    BlockedPayer,
    CalendarEnds,
    ContractFault,
    UnknownPayer,
    meters_forgotten,
)
from cloud_jobs.billing.contracts.payer_contract import doubtful_rates, doubtful_taxes
from cloud_jobs.billing.contracts.prices import ANY_ZONE, Every, ZonePath, zones_of
from cloud_jobs.billing.contracts.published import EVER, MODEL_OF, micros, moment_of
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.billing.units import MEASURE_OF, Meter, MeterZones
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import usable_fence
from geo.reference.moments import beginning, ending, stamp
from waybill.identity.signatures import next_publication_id
from waybill.settings import as_read, name_advice

# Warnings about published versions, which never block a publication.

MAX_DEVICES_NAMED: Final = 5
_DAY_US: Final = 86_400_000_000
SOON: Final = timedelta(days=92)
"""How long before its end a calendar is warned of."""
_DOUBTFUL: Final = re.compile(r'"category": ?"[KG]"|"rate": ?"?0?\.')
"""In the text of a contract whose taxes may be doubtful."""
_MOMENT: Final = re.compile(r'"(?:effective_from|effective_until|begin|end)": ?"([^"]+T[^"]+)"')
Row = dict[str, Any]


def notices(stated: Sequence[Row], before: Contracts, after: Contracts) -> list[str]:
    """Devices that no account pays for any more, meters that become free, fees that charge nothing, dear steps."""
    return [
        *_left(before, after, stated),
        *_between(after, stated),
        *_free(before, after, stated),
        *_late_fees(after, stated),
        *_taxes(after, stated),
        *_odd_times(after, stated),
        *_steps(stated),
    ]


def begin_of(row: Row) -> datetime | None:
    """The start of a contract version; None if the row states none or is no contract."""
    if row["kind"] not in MODEL_OF:
        return None
    try:
        return datetime.fromisoformat(beginning(row["kind"], row["body"]))
    except ValueError:
        return None


def _left(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Devices that have a payer until a stated account version begins or ends, and none afterwards."""
    for row, begin in _accounts(stated):
        changes = [(begin, before.devices_of(row["id"], begin))]
        if end := ending("account", row["body"]):
            changes.append((end, after.devices_of(row["id"], end - timedelta.resolution)))
        for moment, had in changes:
            gone = had - after.devices_of(row["id"], moment)
            # devices that move to another account keep a payer
            at = micros(moment)
            gone -= {one for _, one, begin, end in after.assignments() if begin <= at < end} if gone else set()
            if gone:
                names = [f"{one.tenant}/{one.device}" for one in sorted(gone)]
                more = [f"and {len(names) - MAX_DEVICES_NAMED} more"] if len(names) > MAX_DEVICES_NAMED else []
                yield (
                    f"{row['place']}: account {row['id']!r} no longer has "
                    f"{', '.join([*names[:MAX_DEVICES_NAMED], *more])} from {stamp(moment)} on, and no other account "
                    "pays for them"
                )


def _between(after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Hours between two accounts of a device, which no account pays for: their local days begin at other moments."""
    places = {row["id"]: row["place"] for row in stated if row["kind"] == "account"}
    ends = defaultdict[TenantDevice, list[tuple[int, str]]](list)
    for account, device, _, end in after.assignments() if places else ():
        if end < EVER:
            ends[device].append((end, account))
    for account, device, begin, _ in after.assignments() if ends else ():
        for end, earlier in ends.get(device, ()):
            place = places.get(account) or places.get(earlier)
            if place and account != earlier and 0 < begin - end < _DAY_US:
                since, until = (stamp(moment_of(one)) for one in (end, begin))
                yield (
                    f"{place}: no account pays for {device.tenant}/{device.device} from {since} until {until}, between "
                    f"{earlier!r} and {account!r}; a local day begins by the clock of its payer: write one of these "
                    "moments in both"
                )


def _free(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Meters that an account paid for and that its tariff no longer sells from a stated version on."""
    for row, begin in _accounts(stated):
        just_before = begin - timedelta.resolution
        gone = _sold(before, row, begin) | _sold(after, row, just_before)
        if gone := gone - _sold(after, row, begin):
            yield (
                f"{row['place']}: account {row['id']!r} has no price for {', '.join(sorted(gone))} from {stamp(begin)} "
                "on, and had one; what is used of it is free"
            )


def _late_fees(after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Fees that are charged once, on a day before the version that has them."""
    for row in stated:
        if made := _with_fees(row):
            first = made.effective_from.astimezone(zone_of(after.zone_of_account(row["id"]))).date()
            yield from (
                f"{row['place']}: fee {fee.id!r} of {row['kind']} {row['id']!r} is charged once, on {fee.begin}, and "
                f"this version begins on {first}: only an earlier version that has the fee charges it"
                for fee in made.fees
                if fee.every is Every.ONCE and fee.begin and fee.begin < first
            )


def _odd_times(after: Contracts, stated: Sequence[Row]) -> Iterator[str]:
    """Begins and ends at no local midnight of their payers, and contract years that begin by default."""
    of_tariffs = after.zones_by_tariff() if any(row["kind"] == "tariff" for row in stated) else {}
    for row in stated:
        begin, zones = begin_of(row), of_tariffs.get(row["id"], set()) if row["kind"] == "tariff" else set()
        facts = after.account_at(row["id"], begin) if row["kind"] == "account" and begin else None
        if facts and (zone := after.zone_of_payer(row["id"], facts)):
            zones = {zone}
        if not zones:
            continue
        named, who = min(zones), f"{row['place']}: {row['kind']} {row['id']!r}"
        moments = dict.fromkeys(_MOMENT.findall(row["body"]))
        if odd := [one for one in moments if not _is_midnight(one, zones)]:
            local = datetime.fromisoformat(odd[0]).astimezone(zone_of(named))
            more = f" ({len(odd) - 1} more)" if odd[1:] else ""
            yield f"{who}: {odd[0]} is {local:%Y-%m-%d %H:%M} in {named}{more}; for a whole day write {local:%Y-%m-%d}"
        if facts and begin and after.has_default_year(row["id"], begin):
            first = begin.astimezone(zone_of(named)).date()
            if (first.month, first.day) != (1, 1):
                yield (
                    f"{who}: begins on {first}, and its contract year on 1 January: what is agreed for a year counts "
                    "twice within twelve months; another year is stated with year_begins, the first day of a period"
                )


def _is_midnight(text: str, zones: Iterable[str]) -> bool:
    """Whether a moment is the start of a local day in one of these time zones."""
    moment = datetime.fromisoformat(text)
    return any(day_start(zone, moment.astimezone(zone_of(zone)).date()) == moment for zone in zones)


def _taxes(after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Doubtful rates and categories, in the month in which a stated version begins."""
    for row in stated:
        # few of very many accounts
        if row["kind"] not in {"account", "tariff"} or not _DOUBTFUL.search(row["body"]):
            continue
        begin, found = begin_of(row), list[str]()
        if row["kind"] == "tariff" and isinstance(made := _with_fees(row), Tariff):
            found += doubtful_rates(made.vats)
        elif begin and (period := _period_of(after, row["id"], begin)):
            with suppress(UnknownPayer, BlockedPayer):
                found += doubtful_taxes(after.contract_of(row["id"], period))
        yield from (f"{row['place']}: {row['kind']} {row['id']!r}: {text}" for text in found)


def _steps(stated: Iterable[Row]) -> Iterator[str]:
    """Prices with an amount for each unit of a step of several."""
    for row in stated:
        made = _with_fees(row) if row["kind"] == "tariff" and '"step"' in row["body"] else None
        for number, price in enumerate(made.prices if isinstance(made, Tariff) else ()):
            if price.step and price.step > 1 and price.unit_amount and isinstance(made, Tariff):
                yield (
                    f"{row['place']}: tariff {row['id']!r}: prices.{number} costs {price.step * price.unit_amount:f} "
                    f"{made.currency} for each started {price.step:f} {price.unit}; if it is to be "
                    f"{price.unit_amount:f}, write step_amount instead of unit_amount"
                )


def _sold(contracts: Contracts, row: Row, moment: datetime) -> frozenset[str]:
    account = contracts.account_at(row["id"], moment)
    return frozenset() if account is None else contracts.tariff_at(account.tariff, moment).sold


def _accounts(stated: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    for row in stated:
        begin = begin_of(row)
        if row["kind"] == "account" and begin is not None:
            yield row, begin


# Zone names in prices: a mistyped zone would never be priced.

MAX_FAULTS: Final = 100
_LAST: Final[Row] = {"publication_id": "~", "published_at": datetime.max.replace(tzinfo=UTC)}
"""Makes a stated version sort after all published ones."""


def faults_of_zones(published: Sequence[Row], stated: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """Faults in the zones of stated prices, with their place, and whether the zone is only missing.

    Zones are the published and the stated fences and gates. Without any publication or fence nothing is reported.
    """
    fences = [row for row in (*published, *stated) if row["kind"] == "fence"]
    if not published and not fences:
        return
    named = [(row, *one) for row in stated for one in _zones_of(row) if one[-1] not in {"", ANY_ZONE}]
    gates = _gates(fences, {zone for *_, zone in named})
    # by name only: validating all fences would take long
    known = {row["id"] for row in fences}
    wrong = (one for one in named if one[-1] not in gates or _is_misplaced(one[-2], is_gate=gates[one[-1]]))
    for row, path, meter, zone in islice(wrong, MAX_FAULTS):
        place = row["place_of"](*path) if "place_of" in row else row["place"]
        price = f"{place}: {row['kind']} {row['id']!r}: {path[0]}.{path[1]} is for {meter or 'usage'} in zone {zone!r}"
        if zone not in gates:
            # a fence that reads the same cannot be published later, so the price would never apply
            is_lack = not any(one != zone and as_read(one) == as_read(zone) for one in known)
            yield f"{price}, but no usable fence or gate has this id{name_advice(zone, known)}", is_lack
        else:
            what = "a gate; gates only have" if gates[zone] else "a fence; only gates have"
            yield f"{price}, which is {what} crossings and passages", False


def _is_misplaced(meter: Meter | None, *, is_gate: bool) -> bool:
    """Whether a meter is not counted in a fence, or not at a gate."""
    return meter is not None and is_gate != (MEASURE_OF[meter].zones is MeterZones.GATES)


def _zones_of(row: Row) -> Iterator[ZonePath]:
    made = _with_fees(row)
    if isinstance(made, Tariff):
        yield from made.zones()
    elif made:
        yield from zones_of("fees", made.fees)


def _gates(fences: Iterable[Row], names: set[str]) -> dict[str, bool]:
    """For each of these ids in force, whether it is a gate. Other fences are not read: there may be very many."""
    from geo.spatial import Gate  # noqa: PLC0415, as in `published_fences`

    rows = [_LAST | row for row in fences if row["id"] in names]
    found = in_force(rows, lambda _, body: usable_fence(body))
    return {held.row["id"]: isinstance(held.made, Gate) for held in found.held}


def _with_fees(row: Row) -> Tariff | Account | None:
    """A tariff, or an account with fees; None if it is neither, or unusable."""
    try:
        match row["kind"]:
            case "tariff":
                return Tariff.model_validate_json(row["body"])
            case "account" if '"fees"' in row["body"]:
                # few of very many accounts have fees
                return Account.model_validate_json(row["body"])
    except ValidationError:
        pass
    return None


MAX_MONTHS: Final = 24
"""The most months in which stated versions begin or end that are checked, earliest first."""


class CheckedContracts(NamedTuple):
    """`faults`: contradictions. `lacking`: references to what neither the files nor the publications have. `notices`:
    warnings.
    """

    faults: list[str]
    lacking: list[str]
    notices: list[str]


def check_contracts(published: Sequence[Row], stated: Sequence[Row], moment: datetime) -> CheckedContracts:
    """Checks stated versions (rows of the table `reference`, not published yet) together with the published ones.

    A stated row has its `place`, and may have `place_of`, which locates a part of it. Faults of the published versions
    themselves are not reported. `moment`: when the stated versions would be published.
    """
    before, after = Contracts(published), Contracts(with_stated(published, stated, moment))
    changed = {(row["kind"], row["id"]) for row in stated}
    payers = sorted({*before.payers_of(changed), *after.payers_of(changed)})
    places = {(row["kind"], row["id"]): row["place"] for row in stated}
    ids = _ids((*published, *stated))
    found = [
        (_placed(fault, places) + _advice(fault, ids), fault.is_lack)
        for fault in _faults(before, after, stated, payers)
    ]
    found += faults_of_zones(published, stated)
    later = ((payer, _period_of(after, payer, moment + SOON)) for payer in payers if "calendar" in ids)
    soon = chain.from_iterable(_faults_of(after, *one) for one in later)
    ending = {_placed(one, places): None for one in soon if isinstance(one, CalendarEnds)}
    return CheckedContracts(
        [text for text, is_lack in dict.fromkeys(found) if not is_lack],
        [text for text, is_lack in dict.fromkeys(found) if is_lack],
        [
            *notices(stated, before, after),
            *_attributes([*published, *stated]),
            *ending,
        ],
    )


def _attributes(rows: Sequence[Row]) -> Iterator[str]:
    """Attributes that stated prices name and no device has, and values that look like one which prices select."""
    # few tariffs select devices
    tariffs = [row for row in rows if row["kind"] == "tariff" and re.search('"devices"|"times"', row["body"])]
    accounts = [row for row in rows if row["kind"] == "account"] if tariffs else []
    held, named = _held(accounts), defaultdict[str, set[str]](set)
    for row in tariffs if accounts else ():
        made, unknown = _with_fees(row), dict[str, int]()
        for number, price in enumerate(made.prices if isinstance(made, Tariff) else ()):
            unknown |= {name: number for name in (*price.devices, *price.times) if name not in held}
            for name, values in price.devices.items():
                named[name].update(values)
        for name, number in unknown.items() if "place" in row else ():
            place = row["place_of"]("prices", number) if "place_of" in row else row["place"]
            yield (
                f"{place}: tariff {row['id']!r}: prices.{number} names the attribute {name!r}, which no device has"
                f"{name_advice(name, held)}"
            )
    for name, selected in named.items():
        for value in sorted(held[name].keys() - selected):
            if advice := name_advice(value, selected):
                yield f"account {held[name][value]!r} has devices with {name} {value!r}, which no price names{advice}"


def _held(accounts: Iterable[Row]) -> Mapping[str, dict[str, str]]:
    """An account for each value of each attribute of devices."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for row in accounts:
        for device in json.loads(row["body"]).get("devices", ()) if '"attributes"' in row["body"] else ():
            for name, value in (device.get("attributes") or {}).items():
                found[name].setdefault(str(value), row["id"])
    return found


def _faults(
    before: Contracts, after: Contracts, stated: Sequence[Row], payers: Sequence[str]
) -> Iterator[ContractFault]:
    """The faults that the stated versions would add."""
    there = set(map(str, before.contradictions()))
    yield from (one for one in after.contradictions() if str(one) not in there)
    yield from _forgotten(before, after, stated)
    accounts = [row["body"] for row in stated if row["kind"] == "account"]
    for end in sorted({end for body in accounts if (end := ending("account", body))})[:MAX_MONTHS]:
        yield from _without_payer(before, after, end)
    for since in sorted({begin for row in stated if (begin := begin_of(row))})[:MAX_MONTHS]:
        yield from _without_payer(before, after, since)
        for payer in payers:
            period = _period_of(after, payer, since)
            faults = _faults_of(after, payer, period)
            # only after a fault: hardly any of many payers has one
            was = {str(one) for one in _faults_of(before, payer, period)} if faults else set()
            yield from (one for one in faults if str(one) not in was)


def _without_payer(before: Contracts, after: Contracts, moment: datetime) -> Iterator[ContractFault]:
    known = set(map(str, before.without_payer(moment)))
    yield from (one for one in after.without_payer(moment) if str(one) not in known)


def _forgotten(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[ContractFault]:
    """Meters that are sold where a stated version begins and that it does not mention, also if it replaces that
    version.
    """
    for row in stated:
        begin = begin_of(row)
        if row["kind"] == "tariff" and begin is not None:
            now = after.tariff_at(row["id"], begin)
            gone = before.tariff_at(row["id"], begin).sold - now.sold - now.not_sold
            if gone:
                yield meters_forgotten(row["id"], sorted(gone), begin)


def with_stated(published: Sequence[Row], stated: Iterable[Row], moment: datetime) -> list[Row]:
    """The published rows, and the stated ones as the newest publications."""
    newest = max((row["publication_id"] for row in published), default=None)
    made = [*published]
    for row in stated:
        newest = next_publication_id(newest, int(moment.timestamp() * 1000), 0)
        made.append(row | {"publication_id": newest, "published_at": moment})
    return made


def _placed(fault: ContractFault, places: Mapping[tuple[str, str], str]) -> str:
    """The fault, prefixed with file and line of each stated contract that it is about."""
    found = [places[one] for one in fault.about if one in places]
    return ": ".join([", ".join(found), str(fault)]).removeprefix(": ")


def _ids(rows: Iterable[Row]) -> dict[str, set[str]]:
    ids: dict[str, set[str]] = {}
    for row in rows:
        ids.setdefault(row["kind"], set()).add(row["id"])
    return ids


def _advice(fault: ContractFault, ids: Mapping[str, set[str]]) -> str:
    """The similar name that may be meant instead of a missing one."""
    if fault.missing is None:
        return ""
    kind, name = fault.missing
    return name_advice(name, ids.get(kind, ()))


def _period_of(contracts: Contracts, payer: str, moment: datetime) -> BillingPeriod | None:
    """The payer's period, or else its local month, that contains a moment."""
    try:
        zone = contracts.time_zone_of(payer)
        day = moment.astimezone(zone_of(zone)).date()
        return BillingPeriod(zone, *contracts.cycle_at(payer, day).days)
    except (UnknownPayer, BadPeriod):
        return None


def _faults_of(contracts: Contracts, payer: str, period: BillingPeriod | None) -> Sequence[ContractFault]:
    try:
        if period is not None:
            contracts.contract_of(payer, period)
    except BlockedPayer as blocked:
        return blocked.faults
    return ()
