"""A document in each language: the same facts, in that language's words and numbers."""

import re
import string
import tomllib
from decimal import Decimal
from typing import Any, get_args

import fontpkg_noto_sans
import pytest
from reportlab.pdfbase.ttfonts import TTFont

from cloud_jobs.billing.certificates.certificate import CertificateState
from cloud_jobs.billing.contracts import Fee, NamedPool, Price, TierMode
from cloud_jobs.billing.contracts.fields import Language, VatCategory
from cloud_jobs.billing.contracts.prices import Tier
from cloud_jobs.billing.contracts.tariff import Cap
from cloud_jobs.billing.contracts.windows import WEEKDAYS, Window
from cloud_jobs.billing.documents import Document, DocumentType, Look
from cloud_jobs.billing.documents.look import TEXTS, applied_price, charged_steps, language
from cloud_jobs.billing.documents.presentation import MAX_ANNEX_ENTRIES, Presentation
from cloud_jobs.billing.rating import ChargeKind
from cloud_jobs.billing.rating.terms import (
    HEADS,
    NAME,
    TERMS,
    cap_text,
    fee_text,
    minimum_text,
    price_text,
    said,
    terms_of,
)
from cloud_jobs.billing.units import Meter
from tests.cloud_jobs.billing.documents.rated import charge, fixed, issued, seller, taxed

LANGUAGES: tuple[Any, ...] = get_args(Language)
KEYS = {
    name: {
        f"{part}.{key}": text
        for part, texts in tomllib.loads((TEXTS / f"{name}.toml").read_text(encoding="utf-8")).items()
        for key, text in texts.items()
    }
    for name in LANGUAGES
}


NIGHT = Window(id="night", days=WEEKDAYS[:5], hours=("22:00-06:00",), season="low", holidays="without").text
WORDS = {
    "en": (
        "Entry, outside all zones, window Mon-Fri 22:00-06:00, season low, without holidays",
        ", 2 days: 2026-03-02, 2026-03-05",
    ),
    "de": (
        "Einfahrt, außerhalb aller Zonen, Zeitfenster Mo-Fr 22:00-06:00, Saison low, ohne Feiertage",
        ", 2 Tage: 02.03.2026, 05.03.",
    ),
    "fr": (
        "Entrée, hors de toute zone, plage lun-ven 22:00-06:00, saison low, hors jours fériés",
        "2 jours : 02/03/2026, 05/03/2026",
    ),
    "ja": (
        "進入, 区域外, 時間帯 月-金 22:00-06:00, 期間 low, 祝日を除く",
        "2 日: 2026年3月2日, 2026年3月5日",
    ),
}


def example() -> Document:
    return issued(
        taxed(
            [
                *(charge(device=f"eu-{number:04}", amount_minor=45_150, quantity=1_003_336_000) for number in range(4)),
                charge(
                    meter=Meter.ENTRY, zone="", quantity=1200, amount_minor=300, price="0.0025 EUR/each", window=NIGHT
                ),
                fixed(-1500, ChargeKind.CAP, region="eu", tenant="fleet", device="eu-0003")._replace(
                    parts="2026-03-02 2026-03-05"
                ),
            ]
        )
    )


GOLDEN = {
    "en": (
        "Invoice WB-000042",
        "Amount due by 2026-05-02",
        "2,134.86 EUR",
        "4,013.34 km",
        "Distance, zone Docks (eu-centre)",
    ),
    "de": (
        "Rechnung WB-000042",
        "Zu zahlen bis 02.05.2026",
        "2.134,86 EUR",
        "4.013,34 km",
        "Strecke, Zone Docks (eu-centre)",
    ),
    "fr": (
        "Facture WB-000042",
        "Montant à payer au plus tard le 02/05/2026",
        "2\u00a0134,86 EUR",
        "4\u00a0013,34 km",
        "Distance, zone Docks (eu-centre)",
    ),
    "ja": (
        "請求書 WB-000042",
        "ご請求金額（支払期限 2026年5月2日）",
        "2,134.86 EUR",
        "4,013.34 km",
        "走行距離, 区域 Docks（eu-centre）",
    ),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_facts_are_in_the_words_and_numbers_of_the_language(name: str) -> None:
    show = Presentation(
        example(), Look(language=name, fences={"eu-centre": "Docks"}, vehicles={"fleet/eu-0001": "V 1"})
    )
    by_item = {row[1]: row for group in show.line_groups for row in group.rows}
    heading, due, amount, quantity, item = GOLDEN[name]
    assert (show.heading, *show.due) == (heading, due, amount)
    assert by_item[item][3] == quantity
    window, days = WORDS[name]
    assert window in by_item
    assert any(days in one for one in by_item)
    # the exact quantity, beside the vehicle's name
    [part] = [one for one in show.annex if one.name.startswith("V 1")]
    assert "fleet/eu-0001" in part.name
    exact = {row[1]: row[2] for row in part.rows}[item]
    assert re.sub(r"\D", "", exact) == "1003336000"


def test_every_language_has_a_file_and_every_file_the_same_keys_and_facts() -> None:
    assert {path.stem for path in TEXTS.glob("*.toml")} == {*LANGUAGES}
    facts = {
        name: {key: {one for _, one, _, _ in string.Formatter().parse(text) if one} for key, text in texts.items()}
        for name, texts in KEYS.items()
    }
    for name in LANGUAGES:
        assert facts[name].keys() == facts["en"].keys()
        assert {key: one for key, one in facts[name].items() if one != facts["en"][key]} == {}


def test_whatever_a_document_can_say_has_a_text() -> None:
    values = [("meter", one.value) for one in Meter]
    values += [("state", one.value) for one in CertificateState]
    values += [("vat", one.value) for one in VatCategory]
    values += [("type", one.value) for one in DocumentType]
    values += [("price", key) for key in NAME | HEADS | TERMS]
    assert [f"{part}.{one}" for part, one in values if f"{part}.{one}".replace(" ", "_") not in KEYS["en"]] == []
    for kind in ChargeKind:
        shown = Presentation(issued(taxed([fixed(1, kind)] if kind is not ChargeKind.USAGE else [charge()])))
        assert [*shown.line_groups]


def test_a_fee_of_a_period_says_which_it_is() -> None:
    show = Presentation(issued(taxed([fixed(1290, ChargeKind.FEE)])), Look(language="de"))
    [group] = show.line_groups
    assert group.rows[0][4] == "12,90 EUR je Monat, 20 von 31 Tagen"


def test_a_font_of_the_pdf_has_every_character_of_the_texts() -> None:
    paths = TEXTS / "NotoSansJP-labels.ttf", fontpkg_noto_sans.ROOT / "files" / "NotoSans[wdth,wght].ttf"
    there = {code for path in paths for code in TTFont("font", str(path)).face.charToGlyph}
    assert {
        sign for texts in KEYS.values() for text in texts.values() for sign in text if ord(sign) not in there
    } == set()


def test_the_language_is_the_payers_or_that_of_the_sellers_country() -> None:
    assert Presentation(example()).language.name == "de"
    assert Presentation(example(), Look(language="fr")).language.name == "fr"
    abroad = seller(address=seller().address.model_copy(update={"country": "NO"}))
    assert Presentation(issued(taxed([charge()]), seller=abroad)).language.name == "en"


TIERS = Tier(up_to=Decimal(100), unit_amount=Decimal("0.5")), Tier(unit_amount=Decimal("0.3"))
STAY = {
    "meter": "stay",
    "zone": "a",
    "unit": "min",
    "step_amount": "1.50",
    "step": "30",
    "allowance": "15",
    "most": "9",
}
PASSAGE = {"meter": "passage", "zone": "a", "unit": "each", "unit_amount": "5", "direction": "backward"}
PASSAGE |= {"after": "north bridge", "within": "60"}
PRICES = [
    price_text(Price(meter=Meter.DISTANCE, unit="km", unit_amount=Decimal("0.45")), "EUR"),
    price_text(Price(meter=Meter.EVENT, unit="each", unit_amount=Decimal(1), name="Entsperren"), "EUR"),
    price_text(
        Price(meter=Meter.DISTANCE, unit="km", tiers=TIERS, pool="km"),
        "EUR",
        NamedPool(id="km", scope="account", allowance=Decimal(50), unit="km"),
    ),
    price_text(Price(meter=Meter.DISTANCE, unit="km", tiers=TIERS, tier_mode=TierMode.VOLUME), "EUR"),
    *(
        cap_text(
            Cap(scope=scope, span=span, amount=Decimal(5), meters=meters, zones=zones, windows=zones[1:]),
            "EUR",
            [Window(id="port", name="Nacht (kurz)", hours=("22:00-06:00",))],
        )
        for scope, span, meters, zones in (
            ("device", "day", ("distance", "duration"), ("", "port")),
            ("account", "cycle", (), ()),
            ("account", "year", (), ("*",)),
        )
    ),
    price_text(Price(meter=Meter.EVENT, unit="each", unit_amount=Decimal("0.05"), step=Decimal(100)), "EUR"),
    price_text(Price.model_validate(STAY), "EUR"),
    price_text(Price.model_validate(STAY | {"step": None}), "EUR"),
    f"{price_text(Price.model_validate(PASSAGE), 'EUR')}, the dearest within 60 minutes",
    minimum_text(Decimal(10), "EUR", (20, 31)),
    *(
        fee_text(Fee.model_validate({"id": "fee"} | terms), "EUR", (20, 31), is_limited=True)
        for terms in (
            {"name": "Rate", "amount": "1290", "scope": "device"},
            {"name": "Coupon", "amount": "-20", "every": "once", "begin": "2026-03-01"},
            {"name": "Diesel", "percent": "3.7", "meters": ["distance", "entry"], "zones": ["port", "*", ""]},
            {"name": "Rabatt", "percent": "-50"},
        )
    ),
]


@pytest.mark.parametrize("price", PRICES)
def test_every_price_of_rating_is_translated(price: str) -> None:
    assert "".join(said(*term) for term in terms_of(price)) == price
    shown = language("de").price(price)
    assert shown != price or price == PRICES[0]
    assert not re.search(
        r"\b(to|first|free|pooled|most|least|each|all|steps|period|once|limited|Rate|only|any|outside)\b", shown
    )


def test_a_line_has_the_name_of_its_price_and_window() -> None:
    night = Window(id="night", name="Nachttarif", hours=("22:00-06:00",)).text
    [[row]] = [
        group.rows
        for group in Presentation(
            issued(taxed([charge(price=PRICES[1], window=night)])), Look(language="de")
        ).line_groups
    ]
    assert row[1] == "Entsperren, Zone eu-centre, Zeitfenster Nachttarif (Mo-So 22:00-06:00)"


def test_a_cap_has_the_names_of_its_prices_instead_of_their_meters() -> None:
    sold = [
        Price(meter=meter, unit="each", unit_amount=Decimal(1), name=name, zone=zone)
        for meter, zone, name in ((Meter.VISIT, "a", "Parking"), (Meter.EVENT, "", "Unlock"))
    ]
    cap = Cap(scope="account", span="day", amount=Decimal(5), meters=("visit", "event"))
    text = cap_text(cap, "EUR", (), sold)
    assert text == "Parking, Unlock: at most 5.00 EUR a day for the account (event, visit)"
    assert language("de").price(text) == "höchstens 5,00 EUR am Tag für das Konto"
    bare = cap_text(cap, "EUR", (), [*sold, sold[0].model_copy(update={"name": None})])
    assert bare == text.removeprefix("Parking, Unlock: ")


def test_a_text_that_is_no_price_stays() -> None:
    assert language("de").price("by agreement") == "by agreement"


@pytest.mark.parametrize(
    ("amount_minor", "quantity", "shown"),
    [
        (9_000, 200_000_000, "average 0.4500 EUR/km"),
        (5_000, 100_000_000, "0.50 EUR/km"),
        (30, 1_000_000, "0.30 EUR/km"),
        # two tiers are as near as the rounding
        (1, 30_000, "average 0.3333 EUR/km"),
        (0, 0, "volume"),
    ],
)
def test_the_price_of_the_tier_that_applied_is_shown_or_the_average(
    amount_minor: int, quantity: int, shown: str
) -> None:
    made = issued(taxed([charge(price=PRICES[3], amount_minor=amount_minor, quantity=quantity)]))
    [[row]] = [group.rows for group in Presentation(made, Look(language="en")).line_groups]
    assert row[4].split("\n")[0].startswith(shown) or shown in row[4]


@pytest.mark.parametrize(
    ("others", "counted"),
    [
        ({}, "4 × 30 min"),
        ({"step_amount": None, "unit_amount": "0.05"}, "4 × 30 min"),
        ({"most": "6"}, ""),
        ({"times": "axles"}, ""),
        ({"includes_tax": True}, ""),
    ],
)
def test_started_steps_are_counted_where_nothing_else_decides_the_amount(others: dict[str, Any], counted: str) -> None:
    taxes = others.pop("includes_tax", False)
    sold = Price.model_validate({name: of for name, of in STAY.items() if name != "most"} | others)
    text = price_text(sold, "EUR") + (TERMS["vat_included"] if taxes else "")
    shown = charged_steps(text, 600, currency="EUR", digits=2)
    assert (f"{shown[0]} × {shown[1].facts['quantity']} min" if shown else "") == counted
    # a term that the count does not know may decide the amount
    assert charged_steps(f"{price_text(sold, 'EUR')}, 20 of 31 days", 600, currency="EUR", digits=2) is None
    tiers = f"{PRICES[3]}{TERMS['vat_included']}"
    assert applied_price(tiers, "distance", 10_000_000, 500, currency="EUR", digits=2, vehicles=1) is None


def test_the_annex_lists_stays_with_the_amount_that_the_customer_was_shown() -> None:
    stay = {"meter": Meter.STAY, "zone": "garage", "price": "1.50 EUR per started 30 min, for each visit, VAT included"}
    parts = "2026-03-02T09:00:00Z/2400000/300 2026-03-02T23:30:00Z/60000/150 +17"
    made = charge(quantity=2_460_000, amount_minor=378, **stay)._replace(parts=parts, gross_minor=450)
    show = Presentation(issued(taxed([made])), Look(language="de"))
    [group], [part] = show.line_groups, show.annex
    assert group.rows[0][4].endswith("\n= 4,50 EUR inkl. USt")
    assert [row[1] for row in part.rows[1:]] == [
        "– 02.03.2026 10:00, 40,00 min: 3,00 EUR inkl. USt",
        "– 03.03.2026 00:30, 1,00 min: 1,50 EUR inkl. USt",
        "– und 17 weitere; der Verkäufer kann sie auflisten",
    ]


def test_the_annex_leaves_whole_vehicles_out_and_says_what_they_sum_to() -> None:
    show = Presentation(
        issued(taxed([charge(device=f"eu-{number:05}", amount_minor=1) for number in range(MAX_ANNEX_ENTRIES + 100)])),
        Look(language="en"),
    )
    assert len([*show.annex]) == MAX_ANNEX_ENTRIES
    assert show.annex_note.startswith("Not shown: 100 more vehicles, 1.00 EUR.")
