"""How a document looks to a person: its language and number form, names beside ids, logo and colour.

None of it is in the canonical document: the same document can be printed in any look, with the same figures.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.rating.terms import Term, name_of, terms_of
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

    def measure(self, number: str, unit: str) -> str:
        """A number with its unit, in the plural if it has one; counts have none."""
        many = "" if abs(Decimal(number)) == 1 else "s"
        named = self._texts.get(f"unit.{unit}{many}", self.known("unit", unit))
        return self.number(number) if unit == "each" else f"{self.number(number)} {named}"

    def quantity(self, exact: str, unit: str) -> str:
        """A quantity for people: at most two decimals; what is less than the smallest shown says so."""
        rounded = Decimal(exact).quantize(_SHOWN, ROUND_HALF_UP)
        if not rounded and Decimal(exact) > 0:
            return self.say("line.less", quantity=self.measure(str(_SHOWN), unit))
        return self.measure(f"{rounded or abs(rounded)}" if "." in exact else exact, unit)

    def window(self, text: str) -> str:
        """The name, if any, and the hours of a window (`Window.text`) in this language; what is no such text stays."""
        if not (found := _WINDOW.fullmatch(text)):
            return text
        days = _WEEKDAY.sub(lambda one: self._texts[f"weekday.{one[0]}"], found["days"])
        season = self.say("place.season", name=found["season"]) if found["season"] else ""
        holidays = self.say(f"place.{found['holidays']}_holidays") if found["holidays"] else ""
        hours = ", ".join(filter(None, (days + found["hours"], season, holidays)))
        return self.say("place.named", name=found["name"], id=hours) if found["name"] else hours

    def price(
        self, text: str, applied: AppliedPrice | None = None, *, meter: str | None = None, cycle: str = "period"
    ) -> str:
        """A price, cap, fee or minimum fee (its canonical text) in this language; what is no such text stays.

        The name is the line's item, and left out, and so are the meters that it stands for. `applied`: what a price
        with tiers came to, which stands first, on a line of its own. `meter`: of the line, whose pieces have its name.
        `cycle`: what a period of the payer is.
        """
        if not (terms := terms_of(text)):
            return text
        listed = ""
        for key, facts in terms:
            if key == "meters" and name_of(text):
                continue
            given = {name: self._fact(name, value, meter) for name, value in facts.items()}
            if "quantity" in facts:
                given["quantity"] = self.measure(facts["quantity"], facts["unit"])
            part = self.say(f"price.{key}", **given, cycle=self.known("cycle", cycle))
            # some texts are a part of the one before
            listed += part if not part or not listed or part.startswith(" ") else f", {part}"
        if applied is None:
            return listed
        amount, currency, unit, is_tier = applied
        said = self.say(
            "price.of_unit", amount=self.number(amount), currency=currency, unit=self._fact("unit", unit, meter)
        )
        return f"{said if is_tier else self.say('price.average', price=said)}\n{listed}"

    def _fact(self, name: str, value: str, meter: str | None) -> str:
        """A fact of a term in this language."""
        if name in {"meters", "zones"}:
            return ", ".join(self.known(name.removesuffix("s"), one) for one in value.split(", "))
        match name:
            case "amount":
                return self.number(value)
            case "unit":
                return self.known("each", meter) if value == "each" and meter else self.known("unit", value)
            case "windows" | "tiers":
                parts = map(self.window, value.split("; ")) if name == "windows" else map(self._tier, tiers_of(value))
                return "; ".join(parts)
        if name != "factors":
            return value
        return _FACTOR.sub(lambda found: f" × {self.number(found[1])} ({found[2]})", value)

    def _tier(self, tier: tuple[str, str | None]) -> str:
        amount, up_to = tier
        if up_to is None:
            return self.say("price.last_tier", amount=self.number(amount))
        return self.say("price.tier", amount=self.number(amount), up_to=self.number(up_to))


_WEEKDAY: Final = re.compile(r"mon|tue|wed|thu|fri|sat|sun")
_WINDOW: Final = re.compile(
    r"[a-z0-9._-]+(?:: (?P<name>.+))? \((?P<days>[a-z, -]+)(?P<hours> [\d:, …-]+?)"
    r"(?:, season (?P<season>[a-z0-9._-]+))?(?:, (?P<holidays>without|only) holidays)?\)"
)
_FACTOR: Final = re.compile(r" x ([\d.]+) \(([a-z0-9._-]+)\)")


def tiers_of(amounts: str) -> list[tuple[str, str | None]]:
    """The unit amount of each tier, and the quantity up to which it counts (None: no end)."""
    found = (one.partition(" to ") for one in amounts.split(", "))
    return [(amount, up_to or None) for amount, _, up_to in found]


class AppliedPrice(NamedTuple):
    """What a unit cost. `is_tier`: it is the unit amount of the one tier that applied, otherwise an average."""

    amount: str
    currency: str
    unit: str
    is_tier: bool


def applied_price(
    price: str, meter: str, paid_base: int, amount_minor: int, *, currency: str, digits: int, vehicles: int
) -> AppliedPrice | None:
    """What the units of a line cost under a price with tiers; None for any other price, and if nothing was paid for.

    `paid_base`: without free units, in the meter's base unit. Each vehicle's amount is rounded to the smallest unit, so
    a tier applied alone if its amount differs by less than one unit for each vehicle.
    """
    terms = terms_of(price)
    head = next((term for term in terms if "tiers" in term.facts), None)
    # an amount is without tax, and its tiers may be with it
    if head is None or "vat_included" in {term.key for term in terms} or paid_base <= 0 or amount_minor <= 0:
        return None
    unit = head.facts["unit"]
    if unit not in (sold := MEASURE_OF[Meter(meter)].sale_units):
        return None
    units = Decimal(paid_base) / sold[unit].base_per_unit
    if head.facts["currency"] == currency:
        near = [
            amount
            for amount, _ in tiers_of(head.facts["tiers"])
            if abs(Decimal(amount).scaleb(digits) * units - amount_minor) < max(1, vehicles)
        ]
        if len(near) == 1:
            return AppliedPrice(near[0], currency, unit, is_tier=True)
    average = (Decimal(amount_minor).scaleb(-digits) / units).quantize(Decimal(1).scaleb(-digits - 2), ROUND_HALF_UP)
    return AppliedPrice(f"{average:f}", currency, unit, is_tier=False)


_STEPS: Final = frozenset({"of_step", "of_stay", "step"})
_COUNTED: Final = _STEPS | {
    *("name", "of_unit", "free", "visit", "dearest", "devices"),
    *("pooled_account", "pooled_tree", "pool", "by_day", "by_week", "by_year"),
}
"""Terms that leave the amount of a step as it is. Any other term may decide an amount, and nothing is counted."""


def charged_steps(price: str, amount_minor: int, *, currency: str, digits: int) -> tuple[int, Term] | None:
    """How many steps or stays of one amount a line charges, and the term with the step; None if it is no whole number.

    `price`: with terms of `_COUNTED` alone.
    """
    terms = terms_of(price)
    step = next((term for term in terms if term.key in _STEPS), None)
    head = next((term for term in terms if "currency" in term.facts), None)
    if step is None or head is None or head.facts["currency"] != currency or {key for key, _ in terms} - _COUNTED:
        return None
    units = step.facts["quantity"] if step.key == "step" else "1"
    each = (Decimal(head.facts["amount"]) * Decimal(units)).scaleb(digits)
    # amounts that are rounded say nothing
    is_whole = each and each == each.to_integral_value() and not amount_minor % each
    return (int(amount_minor / each), step) if is_whole else None
