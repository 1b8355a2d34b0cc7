"""Which price everything has: quarter by quarter, device by device, by the contracts in force in that quarter."""

from datetime import UTC, date, datetime
from typing import NamedTuple

from simulator.truth.contracts import ANY_ZONE, AgreedAccount, AgreedPrice, AgreedTariff, TrueContracts
from simulator.truth.errors import TruthError
from simulator.truth.quarters import WHOLE_DEVICE, TrueDays, TrueQuarter, quarters_of


class Used(NamedTuple):
    """A quantity with the price that it has, used from `moment` on."""

    moment: datetime
    account: str
    region: str
    tenant: str
    device: str
    day: date
    zone: str
    quantity: int
    price: AgreedPrice
    tariff: AgreedTariff


def used_by(contracts: TrueContracts, accounts: list[str], days: TrueDays, usage: list[TrueQuarter]) -> list[Used]:
    """Everything that was used and is sold, in the order of time. Raises TruthError for what has no price."""
    rows: dict[datetime, list[TrueQuarter]] = {}
    for row in usage:
        rows.setdefault(row.begin.astimezone(UTC), []).append(row)
    used: list[Used] = []
    active: set[tuple[str, str, str, date]] = set()
    for moment, local in quarters_of(days):
        for row in rows.get(moment, ()):
            holder = _holder(contracts, accounts, row, moment)
            if holder is None:
                continue
            account, region = holder
            counted = _counted(row)
            today = (account.id, row.tenant, row.device, local.date())
            # Every record has content, so a quarter without any had none.
            if row.content_bytes and today not in active:
                active.add(today)
                counted["active day"] = 1
            tariff = contracts.tariff(account.tariff, moment)
            zone = "" if row.zone == WHOLE_DEVICE else row.zone
            for meter, quantity in counted.items():
                # A whole day lies in no window.
                window = "" if meter == "active day" else window_at(tariff, local)
                price = price_of(tariff, meter, zone, window) if quantity else None
                if price is not None:
                    of = (account.id, region, row.tenant, row.device)
                    used.append(Used(moment, *of, local.date(), zone, quantity, price, tariff))
    return used


def window_at(tariff: AgreedTariff, local: datetime) -> str:
    """The window of a tariff in which a local moment lies; "" in none."""
    clock, today, yesterday = local.time(), local.weekday(), (local.weekday() - 1) % 7
    for window in tariff.windows:
        if window.begin < window.end:
            within = today in window.days and window.begin <= clock < window.end
        else:
            within = (today in window.days and clock >= window.begin) or (
                yesterday in window.days and clock < window.end
            )
        if within:
            return window.id
    return ""


def price_of(tariff: AgreedTariff, meter: str, zone: str, window: str) -> AgreedPrice | None:
    """The nearest price: of zone and window, of the zone, of any zone in the window, of any zone; None: not sold.

    Outside all zones is no zone that has the price of any zone. Raises TruthError where a meter is sold, and not here.
    """
    of_meter = {(price.zone, price.window): price for price in tariff.prices if price.meter == meter}
    places = [(zone, window), (zone, "")]
    if zone:
        places += [(ANY_ZONE, window), (ANY_ZONE, "")]
    for place in places:
        if place in of_meter:
            return of_meter[place]
    if of_meter:
        raise TruthError(f"tariff {tariff.id} sells {meter}, and has no price for zone {zone!r}")
    return None


def _holder(
    contracts: TrueContracts, accounts: list[str], row: TrueQuarter, moment: datetime
) -> tuple[AgreedAccount, str] | None:
    """Which of the accounts has a device at a moment, and in which region. Raises TruthError for two."""
    found = []
    for name in accounts:
        account = contracts.account(name, moment)
        if account is not None:
            for one in account.devices:
                named = (one.tenant, one.device) == (row.tenant, row.device)
                if named and one.begin <= moment and (one.end is None or moment < one.end):
                    found.append((account, one.region))
    if len(found) > 1:
        names = " and ".join(account.id for account, _ in found)
        raise TruthError(f"{row.device} of {row.tenant} is in {names} at {moment.isoformat()}")
    return found[0] if found else None


def _counted(row: TrueQuarter) -> dict[str, int]:
    if row.zone == WHOLE_DEVICE:
        return {"event": row.events, "transmitted": row.content_bytes}
    return {
        "distance": row.distance_mm,
        "duration": row.duration_ms,
        "entry": row.entries,
        "inferred entry": row.inferred_entries,
        "crossing": row.crossings,
    }
