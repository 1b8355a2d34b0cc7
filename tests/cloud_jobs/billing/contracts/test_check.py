"""Contracts are checked before they are published: alone, and beside what is published."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.contracts import contracts_of_toml
from cloud_jobs.billing.register.effect import Effect, effect_of
from cloud_jobs.reference.commands import app
from cloud_jobs.reference.tables import store
from geo.reference.messages import ANYBODY
from simulator.fleet import toml_text
from tests.cloud_jobs.billing.contracts.checks import PUBLISHED, WHOLE, checked
from tests.cloud_jobs.billing.contracts.makers import account, calendar, device, kind_of, payer, price, rows, tariff
from tests.cloud_jobs.billing.page_lake import DOCS, NOW, PageLake
from tests.cloud_jobs.publications import message_of, row_of
from tests.new_lakes import new_lake
from tests.page_sessions import assert_shown, steps_of

ENTRY = price("2.50", meter="entry", unit="each", zone="*")


@pytest.mark.parametrize("since", ["2026-01-01T00:00:00Z", "2026-03-15T00:00:00Z", "2026-05-01T00:00:00Z"])
def test_a_version_that_forgets_a_meter_is_a_fault_wherever_it_begins(since: str) -> None:
    """Also where it replaces the one that has it: then there is none before it."""
    published = rows(*WHOLE[:1], tariff(price(), ENTRY), *WHOLE[2:], tariff(id="other"))
    forgets = tariff(price(), effective_from=since)
    forgotten = checked(forgets, published=published)
    (fault,) = forgotten.faults
    # not the same as a warning besides
    assert not [one for one in forgotten.notices if "no price for entry" in one]
    assert fault.startswith(f"f:1: tariff 'standard' from {since} has no price for entry, which is sold until then")
    found = checked(forgets | {"not_sold": ["entry"]}, published=published)
    assert found.faults == []


def test_what_is_neither_there_nor_in_the_files_is_named() -> None:
    found = checked(account("gamma", device("van-3"), tariff="none"), account("child", parent="nobody"))
    assert any(one.startswith("f:1: ") and "tariff 'none', which was not published" in one for one in found.lacking)
    assert any("the parent 'nobody', which is not in force" in one for one in found.lacking)


def test_of_what_is_not_there_the_nearest_name_is_said() -> None:
    wrong = account("gamma", device("van-3"), tariff="standart"), account("child", parent="acmee")
    lacking = checked(*wrong).lacking
    assert any("tariff 'standart', which was not published; did you mean 'standard'?" in one for one in lacking)
    assert any("did you mean 'acme'?" in one for one in lacking)
    assert not any("did you mean" in one for one in checked(account("gamma", device("van-3"), tariff="zz")).lacking)


def test_a_parent_that_a_new_version_makes_a_child_is_named() -> None:
    published = rows(*WHOLE, tariff(id="other"), account("child", parent="beta"))
    closing = account("beta", device("van-2"), parent="child", effective_from="2026-05-01T00:00:00Z")
    assert any(
        "account 'child' has the parent 'beta', which has the parent 'child'; a parent must pay itself" in one
        for one in checked(closing, published=published).faults
    )


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    found = new_lake(tmp_path / "lake")
    bodies = [*WHOLE, tariff(id="other")]
    messages: dict[Any, list[dict[str, Any]]] = {}
    for number, body in enumerate(bodies):
        messages.setdefault(kind_of(body), []).append(message_of(kind_of(body), body, number))
    assert store(found, messages, ANYBODY).added == len(bodies)
    return tmp_path / "lake"


def file_of(folder: Path, *bodies: dict[str, Any]) -> Path:
    tables: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        tables.setdefault(kind_of(body), []).append(body)
    (folder / "contracts.toml").write_text(toml_text(tables), encoding="utf-8")
    return folder / "contracts.toml"


def test_right_files_end_with_0_and_what_is_not_in_them_is_said(tmp_path: Path) -> None:
    assert run(file_of(tmp_path, *WHOLE, tariff(id="other"))) == (
        0,
        "no fault (not compared with a lake): 2 accounts, 1 legal entity, 2 tariffs\n",
        "",
    )
    status, _, said = run(file_of(tmp_path, account()))
    assert status == 0
    assert "account 'acme' has the tariff 'standard', which was not published" in said


def test_a_fault_ends_with_1_and_has_its_file_and_line(tmp_path: Path) -> None:
    file = file_of(tmp_path, tariff(price(unit="mile")))
    status, shown, said = run(file)
    assert (status, shown) == (1, "")
    assert said.startswith(f"{file}:")
    assert "prices.0: distance is sold by 'km' or 'm' or 'mi', not by 'mile'" in said
    status, shown, _ = run(file, "--json")
    assert status == 1
    assert len(json.loads(shown)["faults"]) == 1


def test_versions_are_held_against_those_of_the_lake(tmp_path: Path, lake: Path) -> None:
    status, out, _ = run(file_of(tmp_path, tariff(price("0.50"))), "--lake", lake)
    assert (status, out.splitlines()[0]) == (0, "no fault: 1 tariff")
    status, _, said = run(file_of(tmp_path, account("gamma", device())), "--lake", lake)
    assert status == 1
    assert "device 'van-1' of tenant 'fleet' is in account 'acme' and in account 'gamma'" in said


def fence(name: str = "depot", **more: Any) -> dict[str, Any]:
    ring = [[10.0, 50.0], [10.01, 50.0], [10.01, 50.01], [10.0, 50.01], [10.0, 50.0]]
    shape = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "properties": {"id": name} | more, "geometry": shape}


def gate(name: str) -> dict[str, Any]:
    line = {"type": "LineString", "coordinates": [[10.0, 50.0], [10.01, 50.0]]}
    return {"type": "Feature", "properties": {"id": name, "gate": True}, "geometry": line}


def fence_rows(*features: dict[str, Any]) -> list[dict[str, Any]]:
    return [row_of("fence", one["properties"]["id"], one, number) for number, one in enumerate(features)]


IN_DEPOT = tariff(price("0.50"), price("0.60", zone="depot"))


def test_a_price_for_a_zone_that_no_fence_has_is_named_with_the_one_that_is_near() -> None:
    (said,) = checked(IN_DEPOT, published=[*PUBLISHED, *fence_rows(fence("depots"), fence("port"))]).lacking
    assert said == (
        "f:1: tariff 'standard': prices.1 is for distance in zone 'depot', but no usable fence or gate has this id; "
        "did you mean 'depots'?"
    )
    found = checked(IN_DEPOT, published=[*PUBLISHED, *fence_rows(fence("depot"))])
    assert (found.faults, found.lacking) == ([], [])


def test_crossings_are_of_gates_and_all_else_of_fences() -> None:
    there = [*PUBLISHED, *fence_rows(fence("depot"), gate("toll"))]
    crossing = price("1", meter="crossing", unit="each", zone="depot")
    (said,) = checked(tariff(price(), crossing), published=there).faults
    assert "prices.1 is for crossing in zone 'depot', which is a fence; only gates have crossings and passages" in said
    surcharge = {"id": "port", "name": "Port", "percent": "5", "zones": ["", "*", "depot", "prt"]}
    cap = {"scope": "device", "span": "day", "amount": "5", "zones": ["*", "depot", "prt"]}
    for body in (tariff(fees=[surcharge]), account(fees=[surcharge]), tariff(caps=[cap])):
        said = " ".join([*checked(body, published=there).faults, *checked(body, published=there).lacking])
        assert "'prt', but no usable fence or gate has this id" in said
        assert said.count(" is for usage in zone ") == 1
    (said,) = checked(tariff(price(), price("1", zone="toll")), published=there).faults
    assert "which is a gate; gates only have crossings and passages" in said
    passage = price("1", meter="passage", unit="each", zone="toll")
    assert checked(tariff(price(), passage), published=there).faults == []
    # also the last of many zones of a table
    many = {f"gate-{at}": "1" for at in range(200)} | {"depot": "1"}
    fences = [gate(zone) for zone in many if zone != "depot"]
    table = price(meter="crossing", unit="each", unit_amount=None, amounts=many)
    (said,) = checked(tariff(price(), table), published=[*PUBLISHED, *fence_rows(fence("depot"), *fences)]).faults
    assert "prices.1 is for crossing in zone 'depot', which is a fence" in said


def test_a_currency_that_changes_inside_a_month_is_a_fault_and_with_a_month_it_is_none() -> None:
    def dollars(since: str) -> Any:
        return checked(
            account("acme", device(), effective_from=since, payer=payer(currency="USD")), tariff(currency="USD")
        ).faults

    (fault,) = dollars("2026-05-10T00:00:00+02:00")
    assert "the currency of account 'acme' changes from EUR to USD" in fault
    assert dollars("2026-05-01T00:00:00+02:00") == []


def test_devices_that_nobody_pays_for_any_more_are_named_and_those_that_move_are_not() -> None:
    since = "2026-05-01T00:00:00+02:00"
    (said,) = checked(account("acme", device("van-9"), effective_from=since)).notices
    assert said == (
        "f:1: account 'acme' no longer has fleet/van-1 from 2026-04-30T22:00:00Z on, and no other account pays for them"
    )
    moved = account("gamma", device("van-1"), effective_from=since)
    assert checked(account("acme", effective_from=since), moved).notices == []


def test_hours_between_the_local_days_of_two_payers_are_named() -> None:
    berlin, new_york = "2026-03-16T00:00:00+01:00", "2026-03-16T00:00:00-04:00"
    ended = account("acme", device(end=berlin))
    found = checked(ended, account("gamma", device(begin=new_york), payer=payer(time_zone="America/New_York"))).notices
    [said] = [one for one in found if "no account pays" in one]
    assert said.startswith(
        "f:1: no account pays for fleet/van-1 from 2026-03-15T23:00:00Z until 2026-03-16T04:00:00Z, "
        "between 'acme' and 'gamma'; a local day begins by the clock of its payer"
    )
    assert checked(ended, account("gamma", device(begin=berlin))).notices == []
    assert checked(ended, account("gamma", device(begin="2026-04-01T00:00:00+02:00"))).notices == []


def test_a_fee_of_a_day_before_its_version_is_named() -> None:
    coupon = {"id": "coupon", "name": "Coupon", "amount": "-20", "every": "once", "begin": "2026-03-01"}
    late, on_time = "2026-03-02T00:00:00+01:00", "2026-03-01T00:00:00+01:00"
    said = checked(account("acme", device(), fees=[coupon], effective_from=late)).notices
    assert any("fee 'coupon' of account 'acme' is charged once, on 2026-03-01" in one for one in said)
    assert checked(account("acme", device(), fees=[coupon], effective_from=on_time)).notices == []


def test_a_moment_at_no_midnight_and_a_year_by_default_are_warned_of() -> None:
    summer = "2026-07-01T00:00:00+01:00"
    said = f"{summer} is 2026-07-01 01:00 in Europe/Berlin; for a whole day write 2026-07-01"
    assert checked(tariff(effective_from=summer)).notices == [f"f:1: tariff 'standard': {said}"]
    assert checked(account("gamma", device("van-9", begin=summer))).notices == [f"f:1: account 'gamma': {said}"]
    gamma = account("gamma", effective_from="2026-07-01T00:00:00+02:00")
    [said] = checked(gamma, tariff(minimum_amount="12000", minimum_span="year")).notices
    assert said.startswith("f:1: account 'gamma': begins on 2026-07-01, and its contract year on 1 January: ")
    assert checked(gamma, tariff()).notices == []
    assert checked(gamma | {"year_begins": "2026-07-01"}, tariff(minimum_amount="12000")).notices == []


def test_an_end_that_leaves_devices_or_children_to_nobody_is_said() -> None:
    until = "2026-05-01T00:00:00+02:00"
    ended = account("acme", device(), effective_until=until)
    (said,) = checked(ended).notices
    assert said == (
        "f:1: account 'acme' no longer has fleet/van-1 from 2026-04-30T22:00:00Z on, and no other account pays for them"
    )
    assert checked(ended, account("gamma", device("van-1", begin=until))).notices == []
    (fault,) = checked(ended, account("child", parent="acme")).lacking
    assert "account 'child' has the parent 'acme', which is not in force at 2026-04-30T22:00:00Z" in fault


def test_a_mistyped_attribute_and_calendar_have_the_one_that_is_there_and_a_rate_like_a_fraction_is_doubtful() -> None:
    heavy = account("gamma", device("van-3", attributes={"class": "hgv"}))
    [said] = checked(heavy, tariff(price(), price(devices={"clas": "hgv"}))).notices
    assert "prices.1 names the attribute 'clas', which no device has; did you mean 'class'?" in said
    selects = tariff(price(), price(devices={"class": "hgv"}))
    assert checked(heavy, selects).notices == []
    [said] = checked(account("gamma", device("van-3"), device("van-4", attributes={"class": "HGV"})), selects).notices
    assert said == "account 'gamma' has devices with class 'HGV', which no price names; did you mean 'hgv'?"
    [doubtful] = checked(tariff(price(vat={"category": "S", "rate": "0.19"}))).notices
    assert "0.19" in doubtful
    [lack] = checked(calendar(), tariff(calendar="swedn")).lacking
    assert lack.endswith("did you mean 'sweden'?")


def stated_of(text: str) -> list[dict[str, str]]:
    return [
        {
            "kind": one.kind,
            "id": one.made.model_dump()["id"],
            "body": one.made.model_dump_json(by_alias=True, exclude_none=True),
        }
        for one in contracts_of_toml(text)[0]
    ]


def test_a_dear_step_and_a_calendar_that_ends_soon_are_warned_of() -> None:
    [said] = checked(tariff(price(unit_amount="2", step="60"))).notices
    assert "prices.0 costs 120 EUR for each started 60 km; if it is to be 2, write step_amount" in said
    free = {"id": "free", "hours": "00:00-00:00", "holidays": "only"}
    dated = tariff(price(), price(window="free"), calendar="sweden", windows=[free])
    short = calendar(until="2026-06-01")
    [said] = checked(dated, short).notices
    assert said.startswith(
        "f:1, f:1: tariff 'standard' has windows with holidays or seasons of calendar 'sweden', which"
    )
    published = rows(*WHOLE[:1], dated, *WHOLE[2:], tariff(id="other"))
    assert checked(short, published=published).notices == [said.removeprefix("f:1, ")]
    assert checked(dated, calendar()).notices == []


def test_each_change_of_a_sum_is_named_with_its_price_fee_minimum_or_tax(tmp_path: Path) -> None:
    made, day = PageLake(tmp_path), (date(2026, 1, 5), date(2026, 1, 5))
    made.arrive()
    text = (tmp_path / "contracts.toml").read_text(encoding="utf-8")

    def effect(*changes: tuple[str, str]) -> Effect:
        return effect_of(made.lake, stated_of(changed(text, *changes)), day, NOW)

    assert [*effect().texts()] == ["2026-01-05: no amount changes (accounts rated: 1)"]
    later = ('"standard"\neffective_from = 2026', '"standard"\neffective_from = 2027')
    fee = ("windows = [", 'fees = [{ id = "r", name = "Rate", amount = 9.00, proration = "whole" }]\nwindows = [')
    for when in ((), (later,)):
        least = ('currency = "EUR"\nprices', 'currency = "EUR"\nminimum_amount = 5000.00\nprices')
        daily = ("time_zone = ", 'cycle = "day"\ntime_zone = ')
        [one] = effect(*when, fee, least, daily).payers
        lines = {line.of: line for line in one.lines}
        added = lines["acme, fee Rate"]
        assert (added.was, added.now, added.now_minor) == ("", "Rate: 9.00 EUR a period", 900)
        assert "at least 5000.00 EUR a period" in lines["acme, minimum fee"].now
        assert sum(line.now_minor - line.was_minor for line in one.lines) == one.now_minor - one.was_minor
    year = ("T00:00:00+01:00", "T00:00:00+01:00"), ("effective_from = 2026", "effective_from = 2027")
    begins = ("begin = 2026", "begin = 2027")
    first, *_ = effect(*year[1:], begins).texts()
    assert first == "2026-01-05: devices of acme begin later; the sum with these versions is without them"
    assert effect_of(made.lake, stated_of(changed(text, *year[1:])), (date(1970, 1, 1), date(1970, 1, 31)), NOW)
    [one] = effect(("rate = 19", "rate = 7")).payers
    assert {(line.of, line.was_minor > 0, line.now_minor > 0) for line in one.lines} == {
        ("tax S 19", True, False),
        ("tax S 7", False, True),
    }
    harbour = 'meter = "distance", unit = "km"', 'meter = "distance", zone = "harbour", unit = "km"'
    [one] = effect(harbour).payers
    assert (bool(one.reason), [*one.lines]) == (True, [])
    # what is unknown is not called unchanged, and not counted as rated
    reason = one.reason
    [row] = [one for one in stated_of(changed(text, harbour)) if one["kind"] == "tariff"]
    made.lake.append("reference", [row_of("tariff", row["id"], row["body"], 99)])
    assert [*effect(harbour).texts()] == [
        f"2026-01-05: acme: cannot be rated, with these versions or without: {reason}"
    ]
    found = effect()
    assert (found.rated, [one.was_reason for one in found.payers]) == (0, [reason])
    [said] = found.texts()
    assert said.startswith(f"2026-01-05: acme: until now unknown ({reason}) -> ")


PAGE = (DOCS / "contracts.md").read_text(encoding="utf-8")
NEEDS_PULSAR = "$ waybill reference put"


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def write_examples(example: str) -> None:
    seller, tariff, acme, south = re.split(r"^(?=\[\[)", example, flags=re.MULTILINE)[1:]
    tiers = ("tiers = [", "tiers = [{ up_to = 1000, unit_amount = 0.2 }, { up_to = 500, unit_amount = 0.1 },")
    wrong = [seller, changed(tariff, ('"entry"', '"entree"'), tiers), acme]
    files = {
        "wrong": "".join((*wrong, changed(south, ("effective_from", "efective_from")))),
        "overlap": changed(example, ("eu-0002", "eu-0001")),
        "tariff-corrected": changed(tariff, ("unit_amount = 0.45", "unit_amount = 0.50")),
        "beta": changed(acme, ('"acme"', '"beta"'), ("Acme Logistics", "Beta Freight"), ("2026-01-01", "2026-02-01")),
    }
    for name, text in files.items():
        Path(f"{name}.toml").write_text(text, encoding="utf-8")


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PageLake(tmp_path).arrive()
    monkeypatch.chdir(tmp_path)
    write_examples(Path("contracts.toml").read_text(encoding="utf-8"))
    steps = [step for step in steps_of(PAGE) if not step[0].startswith(NEEDS_PULSAR)]
    names = {"contracts", "wrong", "overlap", "tariff-corrected", "beta"}
    assert {line.split()[4].rstrip(";") for line, _ in steps} == {f"{name}.toml" for name in names}
    for line, expected in steps:
        assert_shown(line, expected)
