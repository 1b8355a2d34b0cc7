"""Signatures of registry entries: who may say what of a device, and what stands when somebody else says it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.identity.makers import (
    CERTIFICATE,
    CHANGE,
    CLAIM,
    MOMENT,
    active,
    change,
    expected,
    operator,
    operators_file,
    trusting,
)
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry import (
    Claim,
    DeviceEntry,
    DeviceState,
    enrol,
    expect,
    renew,
    resume,
    revoke,
    suspend,
)
from waybill.identity.registry_messages import (
    MAX_WARRANTED_CHANGES,
    WARRANT,
    EntryRefused,
    RegistryTrust,
    check_by,
    check_right,
    entry_body,
    signed_by,
)
from waybill.identity.registry_topic import DeviceRegistry, EntryInForce
from waybill.identity.signatures import ID_PROPERTY, SIGNATURE, SIGNER, NewOperator, next_publication_id
from waybill.pulsar.compacted_topic import TopicMessage
from waybill.settings import SettingsError

NOW_MS = int(MOMENT.timestamp() * 1000)
ANNA = operator("anna", tenants=("acme",), kinds=("device",))
BOTH = operator("bea", tenants=("acme", "zeta"), kinds=("device",))
ACCESS = operator("access@eu", kinds=("enrolment",))
KEYS = trusting(ANNA, BOTH, ACCESS)


def signed(
    entry: DeviceEntry,
    by: NewOperator = ANNA,
    *,
    after_ms: int = 0,
    on: DeviceEntry | None = None,
    warrant_by: NewOperator = ANNA,
) -> TopicMessage:
    """The message of an entry, published so long after the moment of the tests; `on` what anna signed of it."""
    body, publication_id = entry_body(entry), next_publication_id(None, NOW_MS + after_ms, 7)
    warrant = "" if on is None else signed(on, warrant_by).properties[WARRANT]
    properties = {ID_PROPERTY: publication_id, **signed_by(by.key)(entry, body, publication_id, warrant)}
    return TopicMessage(entry.name, body, properties, NOW_MS + after_ms)


class Read:
    def __init__(self, keys: OperatorKeys = KEYS) -> None:
        self.registry: DeviceRegistry[DeviceState] = DeviceRegistry(lambda made, _: made.entry.state)
        self._check = check_by(keys)

    def take(self, message: TopicMessage) -> object:
        return self.registry.take(message, self._check)

    def fault(self, message: TopicMessage) -> str:
        """Why a message is refused; what was held before must stay."""
        before = self.registry.all()
        became = self.take(message)
        assert isinstance(became, EntryRefused), became
        assert self.registry.all() == before
        return became.reason


def test_what_an_operator_of_the_tenant_signed_is_taken() -> None:
    read = Read()
    assert isinstance(read.take(signed(active())), EntryInForce)
    assert isinstance(read.take(signed(revoke(active(), change()), after_ms=5)), EntryInForce)
    assert read.registry.get("acme/bus-1") is DeviceState.REVOKED


def without(message: TopicMessage, *names: str) -> TopicMessage:
    properties: Mapping[str, str] = {name: text for name, text in message.properties.items() if name not in names}
    return message._replace(properties=properties)


STRANGER = operator("anna", kinds=("device",))
FORMER = operator("carl", kinds=("device",), valid_until=MOMENT)
FENCES = operator("fay", kinds=("fence",))
OTHER_TENANT = operator("zoe", tenants=("zeta",), kinds=("device",))
ALL_KEYS = trusting(ANNA, BOTH, ACCESS, FORMER, FENCES, OTHER_TENANT)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (without(signed(active()), SIGNATURE, SIGNER), SignatureFault.UNSIGNED),
        (without(signed(active()), SIGNATURE), SignatureFault.UNSIGNED),
        (signed(active(), STRANGER), SignatureFault.UNKNOWN_KEY),
        (signed(active())._replace(body=entry_body(suspend(active(), change()))), SignatureFault.ALTERED),
        (signed(active(), FORMER, after_ms=1), SignatureFault.NOT_VALID_THEN),
        (signed(active(), FENCES), SignatureFault.NO_RIGHT),
        (signed(active(), OTHER_TENANT), SignatureFault.NO_RIGHT),
    ],
)
def test_what_nobody_signed_who_may_is_not_taken_and_the_former_entry_holds(
    message: TopicMessage, fault: SignatureFault
) -> None:
    read = Read(ALL_KEYS)
    read.take(signed(revoke(active(), change())))
    assert read.fault(message) == fault
    assert read.registry.refused_by == {fault: 1}
    assert read.registry.get("acme/bus-1") is DeviceState.REVOKED


def test_a_signature_of_another_device_or_another_publication_is_none_of_this_one() -> None:
    read, other = Read(), signed(active("acme", "bus-2"))
    mine = signed(active())
    assert read.fault(mine._replace(properties=other.properties)) == SignatureFault.ALTERED
    later = {**mine.properties, ID_PROPERTY: next_publication_id(None, NOW_MS + 9, 7)}
    assert read.fault(mine._replace(properties=later)) == SignatureFault.ALTERED


def test_an_access_daemon_may_say_that_a_device_was_enrolled_or_renewed() -> None:
    enrolled = enrol(expected(), CERTIFICATE, CHANGE)
    read = Read()
    assert isinstance(read.take(signed(enrolled, ACCESS, on=expected())), EntryInForce)
    later = CERTIFICATE.model_copy(update={"serial": "abc2", "not_after": MOMENT + timedelta(days=1)})
    assert isinstance(read.take(signed(renew(enrolled, later, CHANGE), ACCESS, on=expected())), EntryInForce)


US = operator("access@us", kinds=("enrolment",))
FURTHER = MAX_WARRANTED_CHANGES + 1


@pytest.mark.parametrize(
    ("said", "by"),
    [
        ({"region": "us"}, US),
        ({"claim": Claim(id="SN-9")}, ACCESS),
        ({"device": "bus-2"}, ACCESS),
    ],
)
def test_a_daemon_speaks_only_for_devices_that_an_operator_gave_to_its_region(
    said: dict[str, object], by: NewOperator
) -> None:
    lie = enrol(expected(), CERTIFICATE, CHANGE).model_copy(update=said)
    # A reader that knows nothing else, as after compaction, must see it too.
    assert Read(trusting(ANNA, ACCESS, US)).fault(signed(lie, by, on=expected())) == SignatureFault.ALTERED
    assert Read(trusting(ANNA, ACCESS, US)).fault(signed(lie, by)) == SignatureFault.NO_RIGHT


@pytest.mark.parametrize(("version", "is_taken"), [(1, False), (2, True), (FURTHER, True), (FURTHER + 1, False)])
def test_a_daemon_takes_a_device_no_further_than_by_so_many_changes(version: int, is_taken: bool) -> None:
    said = enrol(expected(), CERTIFICATE, CHANGE).model_copy(update={"version": version})
    assert isinstance(Read().take(signed(said, ACCESS, on=expected())), EntryInForce) == is_taken


def test_a_warrant_of_who_may_not_speak_for_the_tenant_is_none() -> None:
    enrolled = enrol(expected(), CERTIFICATE, CHANGE)
    for by, fault in ((OTHER_TENANT, SignatureFault.NO_RIGHT), (STRANGER, SignatureFault.UNKNOWN_KEY), (ACCESS, "")):
        became = Read(ALL_KEYS).take(signed(enrolled, ACCESS, on=expected(), warrant_by=by))
        assert isinstance(became, EntryRefused)
        assert became.reason == (fault or SignatureFault.NO_RIGHT)


ENROLLED = enrol(expected(), CERTIFICATE, CHANGE)
SUSPENDED_FIRST = resume(suspend(expected(), CHANGE), CHANGE)


@pytest.mark.parametrize(
    "entry",
    [
        expected(),
        active(),
        SUSPENDED_FIRST,
        suspend(ENROLLED, CHANGE),
        revoke(ENROLLED, CHANGE),
        enrol(expect("acme", "bus-1", region="us", claim=CLAIM, change=CHANGE), CERTIFICATE, CHANGE),
    ],
)
def test_an_access_daemon_may_say_nothing_else_and_nothing_of_devices_of_other_regions(entry: DeviceEntry) -> None:
    assert Read().fault(signed(entry, ACCESS)) == SignatureFault.NO_RIGHT
    if entry.version > 1 and entry.name == "acme/bus-1":
        assert Read().fault(signed(entry, ACCESS, on=expected())) in {SignatureFault.NO_RIGHT, SignatureFault.ALTERED}


def test_who_has_no_right_hears_it_before_anything_is_published() -> None:
    check_right(KEYS, ANNA.key.key_id, active(), datetime.now(UTC))
    with pytest.raises(SignatureRefused, match="zeta"):
        check_right(KEYS, ANNA.key.key_id, active("zeta"), datetime.now(UTC))
    with pytest.raises(SignatureRefused, match="no key"):
        check_right(KEYS, STRANGER.key.key_id, active(), datetime.now(UTC))


def test_who_reads_the_registry_says_whom_it_trusts(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="unsigned = true"):
        RegistryTrust()
    with pytest.raises(ValidationError, match="one of them"):
        RegistryTrust(unsigned=True, operators=tmp_path / "operators.toml")
    assert RegistryTrust(unsigned=True).check_signed() is None
    with pytest.raises(SettingsError, match=r"operators\.toml"):
        RegistryTrust(operators=tmp_path / "operators.toml").check_signed()
    trusted = RegistryTrust(operators=operators_file(tmp_path / "operators.toml", ANNA)).check_signed()
    read = DeviceRegistry(lambda made, _: made.entry.state)
    assert isinstance(read.take(signed(active()), trusted), EntryInForce)
    assert isinstance(read.take(signed(active("acme", "bus-2"), BOTH), trusted), EntryRefused)
