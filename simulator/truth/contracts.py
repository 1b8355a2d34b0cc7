"""Contracts, read from TOML: sellers, payers and prices, each from a moment on.

Amounts become fractions at once. A later publication replaces an earlier one of the same thing and moment.
"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

from simulator.truth.shapes import TruthError

# Minor units of currencies, and rounding.

NO_DECIMALS = (
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF",
    "XPF",
)  # fmt: skip
THREE_DECIMALS = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
FOUR_DECIMALS = ("CLF", "UYW")
EXPONENTS = {
    **dict.fromkeys(NO_DECIMALS, 0),
    **dict.fromkeys(THREE_DECIMALS, 3),
    **dict.fromkeys(FOUR_DECIMALS, 4),
}
"""ISO 4217: the currencies whose minor unit is not a hundredth."""


def exponent(currency: str) -> int:
    """Decimals of a currency by ISO 4217. Raises TruthError for an invalid code."""
    if len(currency) != 3 or not currency.isascii() or not currency.isupper():
        raise TruthError(f"{currency!r} is not a valid ISO 4217 code")
    return EXPONENTS.get(currency, 2)


def half_up(amount: Fraction) -> int:
    """The nearest integer, halves away from zero."""
    # Python's round() takes a half to the even number.
    size = int(abs(amount) + Fraction(1, 2))
    return size if amount >= 0 else -size


# Usage by quarters of an hour, and the local day of each.

QUARTER = timedelta(minutes=15)
WHOLE_DEVICE = "*"
"""The zone of the rows that count all records of a device, wherever it was."""


class TrueQuarter(NamedTuple):
    """The usage of a device in a zone in the quarter of an hour from `begin` (UTC).

    `zone`: "" outside, a fence, a gate, or WHOLE_DEVICE. Only WHOLE_DEVICE rows have events and bytes.
    """

    tenant: str
    device: str
    begin: datetime
    zone: str
    distance_mm: int = 0
    duration_ms: int = 0
    entries: int = 0
    crossings: int = 0
    events: int = 0
    content_bytes: int = 0
    inferred_entries: int = 0


class TrueDays(NamedTuple):
    """A billing period: whole local days, both included."""

    time_zone: str
    first_day: date
    last_day: date


@lru_cache(maxsize=64)
def quarters_of(days: TrueDays) -> tuple[tuple[datetime, datetime], ...]:
    """Every quarter of an hour of the period: its beginning in UTC and in local time. Days may have 23 or 25 hours."""
    zone = ZoneInfo(days.time_zone)
    # No time zone is two days from UTC.
    moment = datetime(days.first_day.year, days.first_day.month, days.first_day.day, tzinfo=UTC) - timedelta(days=2)
    end = datetime(days.last_day.year, days.last_day.month, days.last_day.day, tzinfo=UTC) + timedelta(days=3)
    found = []
    while moment < end:
        local = moment.astimezone(zone)
        if days.first_day <= local.date() <= days.last_day:
            found.append((moment, local))
        moment += QUARTER
    return tuple(found)


def days_held(days: TrueDays, is_held: Callable[[datetime], bool]) -> set[date]:
    """The local days of what is held at some quarters: those at whose end it is, and those on which it begins."""
    quarters, found, before = quarters_of(days), set[date](), True
    for number, (moment, local) in enumerate(quarters):
        now = is_held(moment)
        is_last = number + 1 == len(quarters) or quarters[number + 1][1].date() != local.date()
        if now and (is_last or not before):
            found.add(local.date())
        before = now
    return found


def month_of(time_zone: str, year: int, month: int) -> TrueDays:
    first = date(year, month, 1)
    return TrueDays(time_zone, first, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1))


def days_before(days: TrueDays, year_begins: date) -> TrueDays | None:
    """The days of the contract year before a period; None if the period begins with it."""
    day = days.first_day
    while day != _in_year(day.year, year_begins):
        day -= timedelta(days=1)
    return TrueDays(days.time_zone, day, days.first_day - timedelta(days=1)) if day < days.first_day else None


def _in_year(year: int, day: date) -> date:
    leap = (day.month, day.day) == (2, 29)
    return date(year, 2, 28) + timedelta(days=1) if leap else day.replace(year=year)


KINDS = ("legal_entity", "account", "tariff", "exchange_rate")
ANY_ZONE = "*"
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class AgreedTier(NamedTuple):
    """Units up to and including `up_to` (None: no limit) cost `unit_amount` each."""

    up_to: Fraction | None
    unit_amount: Fraction


class AgreedPrice(NamedTuple):
    """A price of a meter. A single amount is one tier without an end and without `tier_mode`."""

    meter: str
    zone: str
    window: str
    unit: str
    tiers: tuple[AgreedTier, ...]
    tier_mode: str
    allowance: Fraction
    pool: str
    pool_id: str
    step: Fraction = Fraction(0)
    most: Fraction | None = None
    direction: str = ""
    after: str = ""
    within: Fraction = Fraction(0)
    span: str = "cycle"


class AgreedWindow(NamedTuple):
    """Local times, each from a begin to an end. `days`: the weekdays on which they begin; Monday is 0."""

    id: str
    days: tuple[int, ...]
    hours: tuple[tuple[time, time], ...]


class AgreedCap(NamedTuple):
    """The maximum for each device or account, by day or period; empty `meters`: all."""

    scope: str
    span: str
    amount: Fraction
    meters: tuple[str, ...]


Stated = dict[str, Any]
"""What a contract states, unread: the simulator does not know what it comes to, the tests do."""


class AgreedTariff(NamedTuple):
    id: str
    effective_from: datetime
    currency: str
    prices: tuple[AgreedPrice, ...]
    windows: tuple[AgreedWindow, ...]
    caps: tuple[AgreedCap, ...]
    minimum_amount: Fraction | None
    proration: str
    minimum_without_devices: bool
    fees: tuple[Stated, ...]
    dearest: tuple[Stated, ...]


class AgreedDevice(NamedTuple):
    """A device that an account pays for, from `begin` to `end` (None: open)."""

    tenant: str
    device: str
    region: str
    begin: datetime
    end: datetime | None


class AgreedPayer(NamedTuple):
    """Seller, currency, time zone and tax (rate in per cent) of a paying account."""

    legal_entity: str
    currency: str
    time_zone: str
    vat_category: str
    vat_rate: Fraction
    exemption_reason: str
    year_begins: date


class AgreedAccount(NamedTuple):
    """One version of an account, with either `payer` or `parent`."""

    id: str
    effective_from: datetime
    effective_until: datetime | None
    parent: str | None
    payer: AgreedPayer | None
    tariff: str
    devices: tuple[AgreedDevice, ...]
    fees: tuple[Stated, ...]


class AgreedRate(NamedTuple):
    """One version of an exchange rate: units of `into` for one of `currency`."""

    id: str
    effective_from: datetime
    currency: str
    into: str
    rate: Fraction


class TrueContracts:
    def __init__(self, documents: Iterable[dict[str, Any]]) -> None:
        """`documents`: parsed TOML, in the order of publication. Raises TruthError."""
        self.tariffs: dict[tuple[str, datetime], AgreedTariff] = {}
        self.accounts: dict[tuple[str, datetime], AgreedAccount] = {}
        self.rates: dict[tuple[str, datetime], AgreedRate] = {}
        self._days: dict[tuple[str, TrueDays], tuple[AgreedAccount, datetime, set[date]] | None] = {}
        for document in documents:
            if unknown := set(document) - set(KINDS):
                raise TruthError(f"contracts have no {', '.join(sorted(unknown))}")
            try:
                self._add(document)
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise TruthError(f"contracts that cannot be understood: {error!r}") from error

    @classmethod
    def of_texts(cls, *texts: str) -> Self:
        """From TOML, in the order of publication. Raises TruthError."""
        try:
            return cls(tomllib.loads(text, parse_float=Decimal) for text in texts)
        except tomllib.TOMLDecodeError as error:
            raise TruthError(f"contracts are no TOML: {error}") from error

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Raises TruthError."""
        try:
            return cls.of_texts(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TruthError(f"{path}: cannot be read: {error}") from error

    def tariff(self, name: str, moment: datetime) -> AgreedTariff:
        """The version in force at a moment. Raises TruthError if there is none."""
        known = [one for one in self.tariffs.values() if one.id == name and one.effective_from <= moment]
        if not known:
            raise TruthError(f"tariff {name} is not in force at {moment.isoformat()}")
        return max(known, key=lambda one: one.effective_from)

    def account(self, name: str, moment: datetime) -> AgreedAccount | None:
        """The version in force at a moment; None before the first, and after the end of one until the next."""
        known = [one for one in self.accounts.values() if one.id == name and one.effective_from <= moment]
        last = max(known, key=lambda one: one.effective_from, default=None)
        has_ended = last is not None and last.effective_until is not None and last.effective_until <= moment
        return None if has_ended else last

    def days_of(self, name: str, days: TrueDays) -> tuple[AgreedAccount, datetime, set[date]] | None:
        """The last version in force in a period, its last quarter, and the local days that it has; None if there is
        none.
        """
        if (name, days) not in self._days:
            there = [(one, moment, local) for moment, local in quarters_of(days) if (one := self.account(name, moment))]
            held = days_held(days, lambda moment: self.account(name, moment) is not None)
            found = (*there[-1][:2], held) if there else None
            self._days[name, days] = found
        return self._days[name, days]

    def rate(self, currency: str, into: str, moment: datetime) -> Fraction:
        """Units of `into` for one of `currency` at a moment. Raises TruthError if unknown."""
        if currency == into:
            return Fraction(1)
        known = [
            one
            for one in self.rates.values()
            if (one.currency, one.into) == (currency, into) and one.effective_from <= moment
        ]
        if not known:
            raise TruthError(f"no rate from {currency} into {into} at {moment.isoformat()}")
        return max(known, key=lambda one: one.effective_from).rate

    def family(self, payer: str, days: TrueDays) -> list[str]:
        """The payer and all accounts under it in a period, sorted."""
        found = [payer]
        last = {name: self.days_of(name, days) for name in sorted({name for name, _ in self.accounts})}
        # The list grows while it is walked, so children of children are found too.
        for parent in found:
            for name, of in last.items():
                if of is not None and of[0].parent == parent and name not in found:
                    found.append(name)
        return sorted(found)

    def payers(self, moment: datetime) -> list[str]:
        """The accounts that pay for themselves at a moment, sorted."""
        accounts = [self.account(name, moment) for name in sorted({name for name, _ in self.accounts})]
        return [one.id for one in accounts if one is not None and one.payer is not None]

    def _add(self, document: dict[str, Any]) -> None:
        for body in document.get("tariff", ()):
            tariff = _tariff(body)
            self.tariffs[tariff.id, tariff.effective_from] = tariff
        for body in document.get("account", ()):
            account = _account(body)
            self.accounts[account.id, account.effective_from] = account
        for body in document.get("exchange_rate", ()):
            rate = AgreedRate(
                body["id"], _moment(body["effective_from"]), body["currency"], body["into"], number_of(body["rate"])
            )
            self.rates[rate.id, rate.effective_from] = rate


def _tariff(body: dict[str, Any]) -> AgreedTariff:
    windows = tuple(
        AgreedWindow(
            one["id"],
            tuple(number for given in _texts(one.get("days", WEEKDAYS)) for number in _weekdays(given)),
            tuple(map(_hours, _texts(one["hours"]))),
        )
        for one in body.get("windows", ())
    )
    if any(one.get("zones") or one.get("windows") for one in body.get("caps", ())):
        raise TruthError("the truth knows caps of all zones and windows")
    spans = [body.get("minimum_span", "cycle"), *(one["span"] for one in body.get("caps", ()))]
    if body.get("includes_tax") or "year" in spans:
        raise TruthError("the truth knows amounts without tax, caps of a day or period, and minimums of a period")
    caps = tuple(
        AgreedCap(one["scope"], one["span"], number_of(one["amount"]), tuple(one.get("meters", ())))
        for one in body.get("caps", ())
    )
    least = body.get("minimum_amount")
    return AgreedTariff(
        body["id"],
        _moment(body["effective_from"]),
        body["currency"],
        tuple(_price(one, body.get("pools", ())) for one in body["prices"]),
        windows,
        caps,
        None if least is None else number_of(least),
        body.get("proration", "by_day"),
        body.get("minimum_without_devices", False),
        tuple(body.get("fees", ())),
        tuple(body.get("dearest", ())),
    )


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _weekdays(text: str) -> list[int]:
    """`mon` or `mon-fri`."""
    first, _, last = text.partition("-")
    begin, end = WEEKDAYS.index(first), WEEKDAYS.index(last or first)
    return [(begin + number) % 7 for number in range((end - begin) % 7 + 1)]


def _hours(text: str) -> tuple[time, time]:
    begin, end = map(time.fromisoformat, text.split("-"))
    return begin, end


def _price(body: dict[str, Any], pools: Iterable[dict[str, Any]]) -> AgreedPrice:
    named = next((one for one in pools if one["id"] == body.get("pool")), {})
    span = (named or body).get("span", "cycle")
    scope = named.get("scope", "device") if named else body.get("pool", "device")
    if span == "week" or named.get("unit", body["unit"]) != body["unit"]:
        raise TruthError("the truth knows pools of a day, period or year, in the unit of their prices")
    if span == "year" and body.get("tier_mode") == "volume":
        raise TruthError("the truth knows no tiers by volume for a year")
    if {"devices", "times", "amounts", "vat", "name"} & set(body) or ("step_amount" in body and "step" not in body):
        raise TruthError("the truth knows prices of all devices, with one amount or tiers, and the payer's tax")
    tiers = tuple(
        AgreedTier(None if tier.get("up_to") is None else number_of(tier["up_to"]), number_of(tier["unit_amount"]))
        for tier in body.get("tiers", ())
    )
    return AgreedPrice(
        body["meter"],
        body.get("zone", ""),
        body.get("window", ""),
        body["unit"],
        tiers or (AgreedTier(None, _one_amount(body)),),
        body.get("tier_mode", "graduated") if tiers else "",
        number_of((named or body).get("allowance", 0)),
        scope,
        named.get("id", ""),
        number_of(body.get("step", 0)),
        None if body.get("most") is None else number_of(body["most"]),
        body.get("direction", ""),
        body.get("after", ""),
        number_of(body.get("within", 0)),
        span,
    )


def _one_amount(body: dict[str, Any]) -> Fraction:
    """The amount of a unit, of which a step has several."""
    if "step_amount" in body:
        return number_of(body["step_amount"]) / number_of(body["step"])
    return number_of(body["unit_amount"])


def _account(body: dict[str, Any]) -> AgreedAccount:
    devices = tuple(
        AgreedDevice(
            one["tenant"],
            one["device"],
            one["region"],
            _moment(one["begin"]),
            None if one.get("end") is None else _moment(one["end"]),
        )
        for one in body.get("devices", ())
    )
    payer = body.get("payer")
    agreed = payer and AgreedPayer(
        payer["legal_entity"],
        payer["currency"],
        payer["time_zone"],
        payer["vat"]["category"],
        number_of(payer["vat"].get("rate", 0)),
        payer["vat"].get("exemption_reason", ""),
        day_of(body.get("year_begins"), date(2000, 1, 1)),
    )
    return AgreedAccount(
        body["id"],
        _moment(body["effective_from"]),
        None if body.get("effective_until") is None else _moment(body["effective_until"]),
        body.get("parent"),
        agreed,
        body["tariff"],
        devices,
        tuple(body.get("fees", ())),
    )


def number_of(given: str | int | Decimal) -> Fraction:
    # Never a float: 0.1 would not be a tenth.
    if isinstance(given, bool) or not isinstance(given, str | int | Decimal):
        raise TypeError(f"{given!r} is no number of a contract")
    return Fraction(given)


def _moment(given: datetime | str) -> datetime:
    moment = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no offset")
    return moment


def day_of(given: date | str | None, otherwise: date) -> date:
    return date.fromisoformat(given) if isinstance(given, str) else given or otherwise
