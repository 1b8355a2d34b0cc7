"""Whatever stands in a message of the registry: it is refused by its type, or all that comes after can handle it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.access.core import AccessCore
from gateway.access.enrolment import OpenTokens
from gateway.access.revocation import next_list
from tests.identity.makers import CERTIFICATE, CHANGE, MOMENT, expected, regional_authority, root_authority
from waybill.identity.authority import Authority, Revoked
from waybill.identity.command_session import device_line
from waybill.identity.names import MAX_VERSION
from waybill.identity.registry import ChangeRefused, DeviceEntry, enrol, resume, revoke, suspend
from waybill.identity.registry_messages import DevicePublication, EntryRefused, entry_body, read_entry, signed_by
from waybill.identity.signatures import ID_PROPERTY, OperatorKey, next_publication_id

NOW_S = MOMENT.timestamp()
PUBLICATION_ID = next_publication_id(None, int(NOW_S * 1000), 7)
KEY = OperatorKey.generate()
STATES = st.sampled_from(["expected", "active", "suspended", "revoked", "moved", "replaced", "free"])
MOMENTS = st.one_of(
    st.datetimes(timezones=st.timezones() | st.just(UTC)).map(datetime.isoformat),
    st.sampled_from(
        [
            "0001-01-01T00:00:00+14:00",
            "9999-12-31T23:59:59-14:00",
            "2199-12-31T23:59:59.999999Z",
            "2020-01-01T00:00:00Z",
        ]
    ),
    st.integers(),
    st.floats(),
)
TEXTS = st.text(max_size=600) | st.sampled_from(["anna", "zoe\nacme/stolen  revoked", "\x1b[2K", "\u202eanna", ""])
VERSIONS = st.integers(-5, 5) | st.sampled_from([MAX_VERSION, MAX_VERSION + 1, 1 << 53, 10**30, 1.5, True, "7", None])
CERTIFICATES = st.fixed_dictionaries(
    {"issuer": TEXTS | st.just("x"), "serial": st.from_regex(r"[0-9a-f]{1,41}", fullmatch=True), "not_after": MOMENTS}
)
ANYTHING = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "state": STATES,
        "version": VERSIONS | ANYTHING,
        "changed_at": MOMENTS,
        "changed_by": TEXTS,
        "reason": TEXTS,
        "region": TEXTS | st.just("us"),
        "certificates": st.lists(CERTIFICATES, max_size=3) | ANYTHING,
        "claim": ANYTHING | st.fixed_dictionaries({"id": st.just("SN-1"), "until": MOMENTS}),
    },
)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return regional_authority(root_authority())


def read(facts: Any) -> DeviceEntry:
    body = json.dumps(facts).encode()
    return read_entry("acme/bus-1", body, {ID_PROPERTY: PUBLICATION_ID}, NOW_S * 1000).entry


def handle(entry: DeviceEntry, authority: Authority) -> None:
    assert read(json.loads(entry_body(entry))) == entry
    signed_by(KEY)(entry, entry_body(entry), PUBLICATION_ID, "")
    assert device_line(entry).isprintable(), "an entry is one line of a screen"
    tokens = OpenTokens("eu")
    tokens.take(entry, MOMENT)
    tokens.passwords(MOMENT)
    core = AccessCore(authority.name)
    core.on_issued(entry.name, 5, NOW_S + 86_400, NOW_S)
    core.on_ready()
    core.on_device(published(entry))
    step = core.take_step(NOW_S + 1)
    assert step is not None
    serials = [Revoked(int(one.serial, 16), entry.changed_at) for one in entry.certificates]
    every = {one.serial: one for one in [*step.revoked.values(), *serials]}
    next_list(authority, every.values(), None, now=MOMENT, life=timedelta(days=1))
    for change in (suspend, resume, revoke):
        try:
            change(entry, CHANGE)
        except ChangeRefused:
            continue


def published(entry: DeviceEntry) -> DevicePublication:
    return DevicePublication(entry, PUBLICATION_ID)


BASE = json.loads(entry_body(enrol(expected(), CERTIFICATE, CHANGE)))


@given(CHANGES)
@example({"changed_at": "0001-01-01T00:00:00+14:00"})
@example({"version": 1 << 53})
@example({"state": "suspended", "changed_at": "0001-01-01T00:00:00Z"})
@example({"changed_at": "9999-12-31T23:59:59Z"})
@example({"changed_by": "zoe\nacme/stolen"})
@example({"certificates": [{"issuer": "x", "serial": "0", "not_after": "2027-01-01T00:00:00Z"}]})
@example({"certificates": [{"issuer": "x", "serial": "f" * 40, "not_after": "2027-01-01T00:00:00Z"}]})
def test_what_is_taken_is_handled_by_all_who_hear_of_it(authority: Authority, changes: dict[str, Any]) -> None:
    try:
        entry = read(BASE | changes)
    except EntryRefused:
        return
    handle(entry, authority)


def test_a_device_at_its_last_version_is_still_locked_out_and_goes_no_other_way() -> None:
    last = read(BASE | {"version": MAX_VERSION})
    for change in (suspend, revoke):
        assert change(last, CHANGE).version == MAX_VERSION
        assert published(change(last, CHANGE)).precedence > published(last).precedence
    with pytest.raises(ChangeRefused, match="last version"):
        resume(suspend(last, CHANGE), CHANGE)
