"""Alert rules in files: each fault with its place, what they lack, and who may publish them."""

from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.errors import ReferenceFileError
from cloud_jobs.reference.checks import check_rules
from cloud_jobs.reference.files import read_placed, usable
from cloud_jobs.reference.tables import in_force, publications_in, quarantined_messages, store
from geo.reference.messages import ReferenceTrust
from tests.cloud_jobs.billing.contracts.makers import account
from tests.cloud_jobs.publications import message_of, publication_id, row_of
from tests.identity.makers import operator, trusting
from tests.new_lakes import new_lake
from waybill.identity.signatures import NewOperator, Publication, sign_publication

TEXT = """
[[alert_rule]]
id = "acme/yard"
effective_from = 2026-12-01T00:00:00+01:00
webhook = "ops"
places = ["yard", "depot-*"]
quiet = { timezone = "Europe/Berlin", windows = [{ days = ["mon"], from = "22:00", until = "06:00" }] }
"""
RULE = {"id": "acme/yard", "effective_from": "2026-12-01T00:00:00Z", "webhook": "ops"}
CLERK = operator("acme clerk", tenants=("acme",), accounts=("acme", "acme-*"))


def square(name: str) -> dict[str, Any]:
    ring = [[8.0, 50.0], [8.1, 50.0], [8.1, 50.1], [8.0, 50.0]]
    return {"type": "Feature", "properties": {"id": name}, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def stated(folder: Path, text: str) -> list[dict[str, Any]]:
    file = folder / "rules.toml"
    file.write_text(text)
    return [
        {"kind": one.version.kind, "id": one.version.id, "body": one.version.body}
        | {"place": one.place, "place_of": one.place_of}
        for one in read_placed([file])
    ]


def test_each_fault_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ReferenceFileError) as refused:
        stated(tmp_path, TEXT.replace('"ops"', '"ops"\nwebhok = 1').replace('"mon"', '"monday"'))
    lines = {fault.rpartition("rules.toml:")[2].partition(":")[0] for fault in refused.value.faults}
    assert lines == {"6", "8"}


def test_an_account_or_place_that_is_nowhere_is_lacking_with_the_nearest_one(tmp_path: Path) -> None:
    rows = stated(tmp_path, TEXT)
    assert check_rules([], rows) == [
        f"{rows[0]['place_of']()}: alert_rule 'acme/yard' is of account 'acme', which was not published"
    ]
    published = [row_of("account", "acm", account("acm")), row_of("fence", "yards", square("yards"), 1)]
    first, second, third = check_rules(published, rows)
    assert "did you mean 'acm'?" in first
    assert "'yard'; did you mean 'yards'?" in second
    assert "'depot-*'" in third
    published = [row_of("account", "acme", account("acme"))]
    published += [row_of("fence", name, square(name), number) for number, name in enumerate(("yard", "depot-7"), 1)]
    assert check_rules(published, rows) == []


def test_a_tenant_s_key_speaks_for_the_rules_of_its_accounts_alone(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    bodies = [RULE | {"id": name} for name in ("acme/yard", "acme-north/yard", "acmes/yard", "beta/yard")]
    messages = [signed(body, number, CLERK) for number, body in enumerate(bodies)]
    store(lake, {"alert_rule": messages}, ReferenceTrust(trusting(CLERK)))
    found = in_force(publications_in(lake), usable)
    assert [one.row["id"] for one in found.held] == ["acme-north/yard", "acme/yard"]
    reasons = [row["reason"] for row in quarantined_messages(lake)]
    assert sorted(reason.partition(":")[0] for reason in reasons) == ["no-right", "no-right"]


def signed(body: dict[str, Any], number: int, who: NewOperator) -> dict[str, Any]:
    message = message_of("alert_rule", body, number)
    publication = Publication("alert_rule", message["key"], message["value"])
    properties = sign_publication(who.key, publication, publication_id(number), "as agreed")
    return message | {"properties": [*properties.items()]}
