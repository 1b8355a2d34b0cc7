"""Contracts as TOML: [[tariff]], [[account]], [[legal_entity]], [[exchange_rate]] and [[alert_rule]]. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cloud_jobs.billing.billing_period import zone_of
from cloud_jobs.billing.contracts.account import Account, Assignment, ExchangeRate, LegalEntity, Payer
from cloud_jobs.billing.contracts.fields import Address
from cloud_jobs.billing.contracts.prices import Fee, NamedPool, Price, Tier
from cloud_jobs.billing.contracts.published import MODEL_OF, VALUE_ERROR
from cloud_jobs.billing.contracts.tariff import Cap, Dearest, Tariff
from cloud_jobs.billing.contracts.windows import Calendar, Days, Window
from cloud_jobs.billing.errors import BadPeriod
from geo.alerts import AlertRule
from waybill.settings import (
    SIMILAR,
    TextFault,
    TomlLines,
    TomlPath,
    model_at,
    nearest,
    one_line,
    parse_toml,
    problem_text,
    toml_fault,
    without_consequences,
)
from waybill.settings.text import MAX_REASON_CHARACTERS

TABLES: Final[dict[str, type[BaseModel]]] = {**MODEL_OF, "alert_rule": AlertRule}
"""Table name -> model."""
MAX_TOML_CONTRACTS_BYTES: Final = 8 << 20
MAX_TEXT_FAULTS: Final = 100
"""The most faults that are reported."""
_MAX_NUMBER: Final = 64
_ENUM_VALUE: Final = re.compile(r"<\w+\.\w+: ('[^']*')>")
_IN_FILE: Final = re.compile(r"write \[\[(\w+)\]\]")
"""The form of a list of tables in a file; in a contract it would begin another one."""
_DAY: Final = "2026-07-01"
_BEGIN: Final = dict.fromkeys((Tariff, Account, LegalEntity, ExchangeRate, Calendar), f"effective_from = {_DAY}")
MEANT: Final = {
    (word, table): form
    for words, forms in (
        ("begin from since start valid_from", _BEGIN | dict.fromkeys((Assignment, Fee, Days), f"begin = {_DAY}")),
        (
            "end to until effective_until valid_until",
            {one: f"{form} in the next version" for one, form in _BEGIN.items()}
            | dict.fromkeys((Assignment, Fee, Days), f"end = {_DAY}")
            | {Account: f"effective_until = {_DAY}", Calendar: f"until = {_DAY}"},
        ),
        ("begin end from since start until to", {Window: 'hours = ["22:00-06:00"]'}),
        ("price", dict.fromkeys((Fee, Cap), "amount = 20.00")),
        ("price amount", dict.fromkeys((Price, Tier), "unit_amount = 0.45")),
        ("max maximum", {Cap: "amount = 20.00", Price: "most = 20.00 for each stay, or caps of the tariff"}),
        ("gate fence place", {Price: 'zone = "north"'} | dict.fromkeys((Cap, Dearest, Fee), 'zones = ["north"]')),
        (
            "class axles emission weight",
            dict.fromkeys((Price, Fee), 'devices = { class = "hgv" }') | {Assignment: 'attributes = { class = "hgv" }'},
        ),
        ("weight", {Price: 'times = "weight"'}),
        ("free free_minutes free_units included", dict.fromkeys((Price, NamedPool), "allowance = 50")),
        ("per cycle", dict.fromkeys((Cap, NamedPool, Price), 'span = "cycle"')),
        ("pool", dict.fromkeys((Cap, Fee), 'scope = "device"')),
        ("pool_id", {Price: 'pool = "km", and pools = [{ id = "km" }] in the tariff'}),
        (
            "credit discount coupon",
            dict.fromkeys(
                (Tariff, Account),
                f'fees = [{{ id = "coupon", name = "Coupon", amount = -5.00, every = "once", begin = {_DAY} }}]',
            ),
        ),
        ("gross tax_included", {Tariff: "includes_tax = true"}),
        ("commitment minimum minimum_fee", {Tariff: "minimum_amount = 50.00"}),
        ("seller", {Payer: 'legal_entity = "waybill"', Account: 'payer.legal_entity = "waybill"'}),
        ("cycle", {Account: 'payer.cycle = "month"'}),
        ("year_begins", {Account: f"year_begins = {_DAY}"}),
        ("zip postcode", {Address: 'postal_code = "20457"'}),
        ("street", {Address: 'line = "Kehrwieder 5"'}),
    )
    for word in words.split()
    for table, form in forms.items()
}
"""A word of the field and the table of a file in which it is used -> what that table has for it."""
_TABLE_MEANT: Final = {
    **dict.fromkeys(("seller", "company"), "legal_entity"),
    **dict.fromkeys(("customer", "buyer", "payer"), "account"),
    **dict.fromkeys(("price", "prices"), "tariff.prices"),
    **{one: f"tariff.{one}" for one in ("caps", "dearest", "pools", "windows", "fees")},
}
_FORM_OF: Final = {
    "decimal_parsing": "; write digits and a point, without a currency or unit: 0.45",
    "int_parsing": "; write a whole number without a unit: 60",
    "string_type": '; write a text in quotes: "12"',
}
_MISWRITTEN: Final = (
    (re.compile(r"=\s*-?[0-9]+,[0-9]"), "; write a number with a point: 0.45"),
    (re.compile(r"=\s*\[?\s*[0-9]{1,2}:[0-9]{2}"), '; write times in quotes: hours = ["22:00-06:00"]'),
)
"""What TOML refuses without saying how to write it."""
_PART: Final = re.compile(r"([a-z]+)\.([0-9]+)\b")
"""The part of a contract that a fault of the whole contract begins with: `prices.0 names pool ...`."""
_DEVICE: Final = "device"
"""Table name in device files."""


class StatedContract(NamedTuple):
    """A contract or rule of a text, and where its parts are."""

    kind: str
    made: BaseModel
    path: TomlPath
    lines: TomlLines

    def line_of(self, *inner: str | int) -> int:
        """The line of the contract or of a part of it, or of what contains that part; 0 if unknown."""
        return self.lines.of((*self.path, *inner)) or 0


def contracts_of_toml(text: str) -> tuple[list[StatedContract], list[TextFault]]:
    """The valid contracts of a text, and all of its faults."""
    try:
        tables = parse_toml(text, MAX_TOML_CONTRACTS_BYTES, parse_float=_number)
    except ValueError as error:
        fault = toml_fault(text, error)
        line = "".join(text.splitlines()[fault.line - 1 : fault.line] if fault.line else [])
        advice = next((advice for wrong, advice in _MISWRITTEN if wrong.search(line)), "")
        return [], [fault._replace(reason=fault.reason + advice)]
    found, faults, lines = list[StatedContract](), list[TextFault](), None
    zone_of_table, wrong = _time_zones(tables)
    if wrong:
        faults.append(TextFault(TomlLines(text).of(("time_zone",)) or 0, 0, wrong))
    for kind, number, table in _entries(tables):
        path: TomlPath = (kind,) if number is None else (kind, number)
        reasons: Iterable[tuple[TomlPath, str]] = [((), table)] if isinstance(table, str) else ()
        if not isinstance(table, str):
            try:
                made = TABLES[kind].model_validate(table, context=zone_of_table(kind, table))
            except ValidationError as error:
                reasons = _reasons(kind, table, error)
            else:
                lines = lines or TomlLines(text)
                found.append(StatedContract(kind, made, path, lines))
        # one by one, because suggestions for a million faults would take long
        for place, reason in reasons:
            lines = lines or TomlLines(text)
            faults.append(TextFault(lines.of((*path, *place)) or 0, 0, reason[:MAX_REASON_CHARACTERS]))
            if len(faults) >= MAX_TEXT_FAULTS:
                return found, faults
    return found, faults


def _time_zones(tables: dict[str, Any]) -> tuple[Callable[[str, dict[str, Any]], ZoneInfo | None], str]:
    """The time zone of local days in a table of a kind: of an account that of its payer, else of the text, else of all;
    and what is wrong with that of the text, which is removed from it.
    """
    stated, accounts, wrong, known = tables.pop("time_zone", None), tables.get("account"), "", dict[str, ZoneInfo]()
    for one in accounts if isinstance(accounts, list) else ():
        payer = one.get("payer") if isinstance(one, dict) else None
        # other mistakes are named with their tables
        with suppress(BadPeriod):
            if isinstance(payer, dict):
                known[str(one.get("id"))] = zone_of(str(payer.get("time_zone")))
    default = known[min(known)] if len({*known.values()}) == 1 else None
    try:
        default = default if stated is None else zone_of(str(stated))
    except BadPeriod as error:
        wrong = f"time_zone: {error}"

    def zone_of_table(kind: str, table: dict[str, Any]) -> ZoneInfo | None:
        named = (table.get("id"), table.get("parent")) if kind == "account" else ()
        return next((known[one] for one in map(str, named) if one in known), default)

    return zone_of_table, wrong


def _number(text: str) -> Decimal:
    """A TOML number with all its digits. Raises ValueError for too many digits."""
    if len(text) > _MAX_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    try:
        return Decimal(text.replace("_", ""))
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None


def _entries(tables: dict[str, Any]) -> Iterator[tuple[str, int | None, Any]]:
    """Kind, number and table of each contract; an error text instead of the table if it is none."""
    for kind, given in tables.items():
        if kind not in TABLES:
            yield kind, None, f"{one_line(kind, 80)}: no such table; {_table_meant(kind)}"
        elif not isinstance(given, list):
            yield kind, None, f"{kind}: is one table, and a list of them is needed: write [[{kind}]]"
        else:
            for number, one in enumerate(given):
                yield kind, number, one if isinstance(one, dict) else f"{kind}: a table is needed: write [[{kind}]]"


def _table_meant(kind: str) -> str:
    if kind == _DEVICE:
        return "a file of devices has a command of its own: waybill device put FILE"
    near = _TABLE_MEANT.get(kind) or nearest(kind, TABLES)
    return f"did you mean [[{near}]]?" if near else f"known are {', '.join(f'[[{one}]]' for one in TABLES)}"


def _reasons(kind: str, table: dict[str, Any], error: ValidationError) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The place and text of each fault in a contract."""
    named = table.get("id")
    who = f"{kind} {named!r}" if isinstance(named, str) else kind
    for detail in without_consequences(error.errors(include_url=False)):
        said = problem_text(TABLES[kind], detail, "key").replace(VALUE_ERROR, "")
        said, advice = _IN_FILE.sub(r"write \1 = [{ … }]", _ENUM_VALUE.sub(r"\1", said)), _advice(kind, detail)
        if advice and detail["type"] == "extra_forbidden":
            said = said.partition("; ")[0]
        for fault in said.split("\n"):
            part = None if detail["loc"] else _PART.match(fault)
            place = (part[1], int(part[2])) if part else detail["loc"]
            yield place, f"{who}: {fault}{advice}"


def _meant(kind: str, place: TomlPath) -> str:
    """What a table has instead of a key, or else the nearest one around it."""
    *path, word = place
    for depth in range(len(path), -1, -1):
        if form := MEANT.get((str(word), model_at(TABLES[kind], path[:depth]))):
            around = ".".join((kind, *map(str, path[:depth])))
            return f"; write {form}" + (f" in {around}" if path[depth:] else "")
    return ""


def _advice(kind: str, detail: ErrorDetails) -> str:
    """What is meant by a key, the nearest value, or the form of a value that pydantic names by its type only."""
    match detail["type"]:
        case "extra_forbidden":
            return _meant(kind, detail["loc"])
        case "enum" | "literal_error" if isinstance(detail["input"], str):
            known = re.findall(r"'([^']*)'", detail["msg"])
            span = {"cycle", "period"} & {*known}
            if span and detail["input"] in {"month", "monthly", "quarter", "period", "cycle"}:
                return f"; write {span.pop()!r}: payer.cycle says how long it is"
            near = nearest(detail["input"], known, SIMILAR)
            return f"; did you mean {near!r}?" if near else ""
        case "string_pattern_mismatch" if detail["ctx"]["pattern"].startswith("^[a-z0-9]"):
            return "; write small letters, digits, '.', '_' and '-'"
        case other:
            return _FORM_OF.get(other, "")
