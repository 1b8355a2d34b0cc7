"""How a document looks to a person: its language and number form, names beside ids, logo and colour.

None of it is in the canonical document: the same document can be printed in any look, with the same figures.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from cloud_jobs.billing.rating import VAT_INCLUDED
from cloud_jobs.billing.units import MEASURE_OF, Meter

TEXTS: Final = Path(__file__).parent / "texts"
"""A file of texts for each language, all with the same keys."""
_LANGUAGE_OF: Final = {
    **dict.fromkeys(("AT", "CH", "DE", "LI"), "de"),
    **dict.fromkeys(("FR", "MC", "GP", "MQ", "GF", "RE", "YT"), "fr"),
    "JP": "ja",
}
_SHOWN: Final = Decimal("0.01")
"""Quantities are rounded to this for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`logo`: a PNG or JPEG; `colour`: `#rrggbb`. `fences`, `vehicles`: names by fence id and by TENANT/DEVICE.

    `language`: None: the language of the seller's country, or English.
    """

    language: str | None = None
    logo: bytes | None = None
    colour: str = "#1f4e79"
    fences: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    vehicles: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of_seller_in(self, country: str) -> Language:
        return language(self.language or _LANGUAGE_OF.get(country, "en"))


PLAIN: Final = Look()
ENGLISH: Final = Look(language="en")


@cache
def language(name: str) -> Language:
    """The texts of a language. Raises OSError for one without a file."""
    found = tomllib.loads((TEXTS / f"{name}.toml").read_text(encoding="utf-8"))
    return Language(name, {f"{part}.{key}": text for part, texts in found.items() for key, text in texts.items()})


class Language:
    """Texts, numbers, dates and prices of one language."""

    def __init__(self, name: str, texts: Mapping[str, str]) -> None:
        self.name: Final = name
        self._texts = texts

    def say(self, key: str, **facts: Any) -> str:
        """The text of `part.name` with its facts. Raises KeyError."""
        return self._texts[key].format(**facts)

    def known(self, part: str, value: str) -> str:
        """The text of a value of ours, such as a meter; the value itself if there is none."""
        return self._texts.get(f"{part}.{value.replace(' ', '_')}", value)

    def number(self, text: str) -> str:
        """A decimal number as documents have it, `-1234.50`, with this language's signs."""
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        whole, _, fraction = digits.partition(".")
        grouped = f"{int(whole):,}".replace(",", self._texts["form.group"])
        return f"{sign}{grouped}{self._texts['form.decimal']}{fraction}" if fraction else f"{sign}{grouped}"

    def day(self, text: str | None) -> str | None:
        """A date of the form 2026-04-02."""
        if not text:
            return None
        found = date.fromisoformat(text)
        return self.say("form.date", y=found.year, m=found.month, d=found.day)

    def unit(self, meter: str) -> str:
        return self.known("unit", MEASURE_OF[Meter(meter)].unit)

    def quantity(self, meter: str, exact: str) -> str:
        """A quantity for people: two decimals, counts without; what is less than the smallest shown says so."""
        if MEASURE_OF[Meter(meter)].base_per_unit == 1:
            return self.number(exact)
        rounded = Decimal(exact).quantize(_SHOWN, ROUND_HALF_UP)
        shown = f"{self.number(f'{rounded or abs(rounded)}')} {self.unit(meter)}"
        if not rounded and Decimal(exact) > 0:
            return self.say("line.less", quantity=f"{self.number(str(_SHOWN))} {self.unit(meter)}")
        return shown

    def window(self, text: str) -> str:
        """A window with its hours (`Window.text`) in this language; what is no such text stays."""
        if not (found := _WINDOW.fullmatch(text)):
            return text
        days = _WEEKDAY.sub(lambda one: self._texts[f"weekday.{one[0]}"], found["days"])
        season = self.say("place.season", name=found["season"]) if found["season"] else ""
        holidays = self.say(f"place.{found['holidays']}_holidays") if found["holidays"] else ""
        return f"{found['id']} ({', '.join(filter(None, (days + found['hours'], season, holidays)))})"

    def price(self, text: str, applied: AppliedPrice | None = None) -> str:
        """A price, cap, fee or minimum fee (its canonical text) in this language; what is no such text stays.

        A fee is without its name, which is the line's item.

        `applied`: what a price with tiers came to, which stands first, on a line of its own.
        """
        if text.endswith(VAT_INCLUDED):
            return f"{self.price(text.removesuffix(VAT_INCLUDED))}, {self.say('price.vat_included')}"
        for form, parts_of in ((_CAP, self._cap), (_MINIMUM, self._minimum), (_FEE, self._fee)):
            if found := form.fullmatch(text):
                return ", ".join(parts_of(found))
        if not (found := _PRICE.fullmatch(text)):
            return text
        currency, unit = found["currency"], self.known("unit", found["unit"])
        if found["mode"] is None:
            parts = [self._of_unit(found["amounts"], currency, unit)]
        else:
            parts = [self.say(f"price.{found['mode']}", tiers="; ".join(map(self._tier, tiers_of(found["amounts"]))))]
        for number, name in _FACTOR.findall(found["factors"]):
            parts[-1] += f" × {self.number(number)} ({name})"
        if found["step"]:
            parts.append(self.say("price.step", quantity=self.number(found["step"]), unit=unit))
        if found["free"]:
            parts.append(self.say("price.free", quantity=self.number(found["free"]), unit=unit))
        parts += self._pool(found)
        parts += self._of_facts(found)
        listed = ", ".join(parts)
        if found["mode"] is None or applied is None:
            return listed
        said = self._of_unit(applied.amount, applied.currency, unit)
        return f"{said if applied.is_tier else self.say('price.average', price=said)}\n{listed}"

    def _of_facts(self, found: re.Match[str]) -> Iterator[str]:
        if found["visit"]:
            yield self.say("price.visit")
        if found["most"]:
            yield self.say("price.most", amount=self.number(found["most"]), currency=found["currency"])
        if found["direction"]:
            yield self.say(f"price.{found['direction']}")
        if found["after"]:
            yield self.say("price.after", gate=found["after"], minutes=found["within"])
        if found["dearest"]:
            yield self.say("price.dearest", minutes=found["dearest"])

    def _pool(self, found: re.Match[str]) -> Iterator[str]:
        if found["pooled"]:
            yield self.say(f"price.pooled_{found['pooled'].replace(' ', '_')}")
        if found["pool"]:
            yield self.say("price.pool", name=found["pool"])
        if found["by"]:
            yield self.say(f"price.by_{found['by']}")
        if found["devices"]:
            yield self.say("price.devices", attributes=found["devices"])

    def _cap(self, found: re.Match[str]) -> Iterator[str]:
        whom = f"price.cap_{found['span']}_{'device' if 'device' in found['whom'] else 'account'}"
        said = self.say(whom, amount=self.number(found["amount"]), currency=found["currency"])
        yield said if found["meters"] == "all meters" else f"{said} ({self._meters(found)})"
        yield from self._zones(found)
        if found["windows"]:
            yield self.say("place.window", name=found["windows"])

    def _minimum(self, found: re.Match[str]) -> Iterator[str]:
        yield self.say(
            f"price.minimum_{found['span']}", amount=self.number(found["amount"]), currency=found["currency"]
        )
        yield from self._days(found)

    def _meters(self, found: re.Match[str]) -> str:
        return ", ".join(self.known("meter", one) for one in found["meters"].split(", "))

    def _fee(self, found: re.Match[str]) -> Iterator[str]:
        if found["percent"] is None:
            name = "price.fee_once" if found["every"] == "once" else "price.fee_period"
            yield self.say(name, amount=self.number(found["amount"]), currency=found["currency"])
        else:
            usage = self.say("price.fee_all") if found["meters"] == "all usage" else self._meters(found)
            yield self.say("price.fee_percent", percent=self.number(found["percent"]), usage=usage)
        if found["device"]:
            yield self.say("price.fee_device")
        yield from self._days(found)
        if found["limited"]:
            yield self.say("price.fee_limited")
        yield from self._zones(found)

    def _zones(self, found: re.Match[str]) -> Iterator[str]:
        if found["zones"]:
            named = {"outside all zones": self.say("place.outside"), "any zone": self.say("price.fee_any_zone")}
            zones = ", ".join(named.get(one, one) for one in found["zones"].split(", "))
            yield self.say("price.fee_zones", zones=zones)

    def _days(self, found: re.Match[str]) -> Iterator[str]:
        if found["days"]:
            yield self.say("price.days", days=found["days"], all=found["all"])

    def _of_unit(self, amount: str, currency: str, unit: str) -> str:
        return self.say("price.of_unit", amount=self.number(amount), currency=currency, unit=unit)

    def _tier(self, tier: tuple[str, str | None]) -> str:
        amount, up_to = tier
        if up_to is None:
            return self.say("price.last_tier", amount=self.number(amount))
        return self.say("price.tier", amount=self.number(amount), up_to=self.number(up_to))


# Prices as rating writes them (`price_text`, `cap_text` of `pools`, `fee_text`, `minimum_text` of `fees`).

_NUMBER: Final = r"\d+(?:\.\d+)?"
_WEEKDAY: Final = re.compile(r"mon|tue|wed|thu|fri|sat|sun")
_WINDOW: Final = re.compile(
    r"(?P<id>[a-z0-9._-]+) \((?P<days>[a-z, -]+)(?P<hours> [\d:, …-]+?)"
    r"(?:, season (?P<season>[a-z0-9._-]+))?(?:, (?P<holidays>without|only) holidays)?\)"
)
_PRICE: Final = re.compile(
    rf"(?:(?P<mode>graduated|volume) )?(?P<amounts>{_NUMBER}(?: to {_NUMBER})?(?:, {_NUMBER}(?: to {_NUMBER})?)*)"
    rf" (?P<currency>[A-Z]{{3}})/(?P<unit>\w+)(?P<factors>(?: x {_NUMBER} \([a-z0-9._-]+\))*)"
    rf"(?:, in started steps of (?P<step>{_NUMBER}))?"
    rf"(?:, the first (?P<free>{_NUMBER}) \w+ free)?"
    rf"(?P<visit>, for each visit)?(?:, at most (?P<most>{_NUMBER}) [A-Z]{{3}})?(?:, (?P<direction>forward|backward))?"
    r"(?:, after gate (?P<after>.+?) within (?P<within>\d+) minutes)?"
    r"(?:, pooled by (?P<pooled>account|all accounts))?(?:, pool (?P<pool>[a-z0-9._-]+))?"
    r"(?:, by (?P<by>day|week|year))?(?:, for (?P<devices>.+?))?(?:, the dearest within (?P<dearest>\d+) minutes)?"
)
_CAP: Final = re.compile(
    rf"at most (?P<amount>{_NUMBER}) (?P<currency>[A-Z]{{3}}) a (?P<span>day|period|year)"
    r" (?P<whom>for each device|for the account) \((?P<meters>[a-z, ]+)\)"
    r"(?:, only (?P<zones>.+?))?(?:, in window (?P<windows>.+))?"
)
_FACTOR: Final = re.compile(rf" x ({_NUMBER}) \(([a-z0-9._-]+)\)")
_DAYS: Final = r"(?:, (?P<days>\d+) of (?P<all>\d+) days)?"
_MINIMUM: Final = re.compile(rf"at least (?P<amount>{_NUMBER}) (?P<currency>[A-Z]{{3}}) a (?P<span>period|year){_DAYS}")
_FEE: Final = re.compile(
    rf"[^:]*(?::(?! )[^:]*)*: (?:(?P<amount>-?{_NUMBER}) (?P<currency>[A-Z]{{3}}) (?P<every>a period|once)"
    rf"|(?P<percent>-?{_NUMBER}) % of (?P<meters>[a-z, ]+?))"
    rf"(?P<device>, for each device)?{_DAYS}(?P<limited>, limited to what was charged)?(?:, only (?P<zones>.+))?"
)


def tiers_of(amounts: str) -> list[tuple[str, str | None]]:
    """The unit amount of each tier, and the quantity up to which it counts (None: no end)."""
    found = (one.partition(" to ") for one in amounts.split(", "))
    return [(amount, up_to or None) for amount, _, up_to in found]


@dataclass(frozen=True, slots=True)
class AppliedPrice:
    """What a unit cost. `is_tier`: it is the unit amount of the one tier that applied, otherwise an average."""

    amount: str
    currency: str
    is_tier: bool


def applied_price(
    price: str, meter: str, paid_base: int, amount_minor: int, *, currency: str, digits: int, vehicles: int
) -> AppliedPrice | None:
    """What the units of a line cost under a price with tiers; None for any other price, and if nothing was paid for.

    `paid_base`: without free units, in the meter's base unit. Each vehicle's amount is rounded to the smallest unit, so
    a tier applied alone if its amount differs by less than one unit for each vehicle.
    """
    found = _PRICE.fullmatch(price)
    if found is None or found["mode"] is None or paid_base <= 0 or amount_minor <= 0:
        return None
    unit = MEASURE_OF[Meter(meter)].sale_units.get(found["unit"])
    if unit is None:
        return None
    units = Decimal(paid_base) / unit.base_per_unit
    if found["currency"] == currency:
        near = [
            amount
            for amount, _ in tiers_of(found["amounts"])
            if abs(Decimal(amount).scaleb(digits) * units - amount_minor) < max(1, vehicles)
        ]
        if len(near) == 1:
            return AppliedPrice(near[0], currency, is_tier=True)
    average = (Decimal(amount_minor).scaleb(-digits) / units).quantize(Decimal(1).scaleb(-digits - 2), ROUND_HALF_UP)
    return AppliedPrice(f"{average:f}", currency, is_tier=False)
