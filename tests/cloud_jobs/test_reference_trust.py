"""The centre takes what a trusted key signed that may speak for it; the rest is in quarantine with the reason."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.checks import history
from cloud_jobs.reference.tables import publications_in, quarantined_messages, store
from geo.reference.messages import Kind, ReferenceTrust, stated_version
from tests.cloud_jobs.billing.contracts.makers import account, device, tariff
from tests.cloud_jobs.publications import message_of, publication_id
from tests.identity.makers import operator, trusting
from tests.new_lakes import new_lake
from waybill.identity.signatures import NewOperator, Publication, sign_publication

ANNA = operator("anna")
ACME = operator("acme clerk", tenants=("acme",), accounts=("acme", "acme-*"))
TRUST = ReferenceTrust(trusting(ANNA, ACME))
HERS = device("van-1") | {"tenant": "acme"}
BETAS = device("van-2") | {"tenant": "beta"}


@dataclass(frozen=True)
class Signed:
    kind: Kind
    body: dict[str, Any]
    number: int = 0

    def by(self, who: NewOperator, **more: Any) -> dict[str, Any]:
        message = message_of(self.kind, self.body, self.number)
        publication = Publication(self.kind, "@".join(stated_version(self.kind, self.body)), message["value"])
        signed = sign_publication(who.key, publication, publication_id(self.number), "as agreed")
        return message | {"properties": [*signed.items()]} | more


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path)


def reasons(lake: Lake) -> list[str]:
    return [row["reason"].partition(":")[0] for row in quarantined_messages(lake)]


def test_what_a_trusted_key_signed_is_taken_with_who_and_why(lake: Lake) -> None:
    assert store(lake, {"tariff": [Signed("tariff", tariff()).by(ANNA)]}, TRUST).added == 1
    (row,) = publications_in(lake)
    assert (row["signer"], row["published_by"], row["reason"]) == (ANNA.key.key_id, "anna", "as agreed")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (message_of("tariff", tariff()), "unsigned"),
        (Signed("tariff", tariff()).by(operator("other")), "unknown-key"),
        (Signed("tariff", tariff()).by(ANNA, value=message_of("tariff", tariff(currency="USD"))["value"]), "altered"),
        (Signed("tariff", tariff()).by(ACME), "no-right"),
        (Signed("account", account("beta", HERS)).by(ACME), "no-right"),
        (Signed("account", account("acme", HERS, BETAS)).by(ACME), "no-right"),
        (Signed("account", account("acme", HERS, parent="beta")).by(ACME), "no-right"),
        (Signed("account", account("acme", {"tenant": ["acme"]})).by(ACME), "no-right"),
        (Signed("account", account("acme") | {"devices": 5}).by(ACME), "no-right"),
    ],
)  # fmt: skip
def test_what_is_not_theirs_to_publish_is_in_quarantine_once_with_the_reason(
    lake: Lake, message: dict[str, Any], reason: str
) -> None:
    kind: Kind = "account" if b'"devices"' in message["value"] else "tariff"
    for place in ("3:1:-1", "9:1:-1"):
        found = store(lake, {kind: [message | {"message_id": place}]}, TRUST)
        assert (found.added, len(found.quarantined)) == (0, 1)
    assert (reasons(lake), publications_in(lake)) == ([reason], [])


def test_what_was_taken_stays_and_is_not_judged_again_when_its_key_is_not_trusted_any_more(lake: Lake) -> None:
    messages = {"tariff": [Signed("tariff", tariff()).by(ANNA)]}
    store(lake, messages, TRUST)  # type: ignore[arg-type]
    again = store(lake, messages, ReferenceTrust(trusting(ACME)))  # type: ignore[arg-type]
    assert (again.added, again.quarantined, len(publications_in(lake))) == (0, (), 1)


def test_the_history_says_who_when_why_and_what_the_signature_is_worth_now(lake: Lake) -> None:
    later = Signed("tariff", tariff(currency="USD"), 5).by(ANNA)
    store(lake, {"tariff": [Signed("tariff", tariff()).by(ANNA), later]}, TRUST)
    found = history(publications_in(lake), [], TRUST)
    assert [(one.published_by, one.reason, one.signature, one.state) for one in found] == [
        ("anna", "as agreed", "signed", "replaced"),
        ("anna", "as agreed", "signed", "in force"),
    ]
    rows = [row | {"body": row["body"].replace("USD", "EUR")} for row in publications_in(lake)]
    assert [one.signature for one in history(rows, [], TRUST)] == ["signed", "altered"]
    assert {one.signature for one in history(rows, [], ReferenceTrust(None))} == {"not checked"}
    assert {one.signature for one in history(rows, [], ReferenceTrust(trusting(ACME)))} == {"unknown-key"}
