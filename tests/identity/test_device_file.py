"""Files of devices: what stands in them, where, and what they ask of a registry in which anything may have happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identity.device_file import (
    MAX_DEVICES,
    FileFault,
    PlacedDevice,
    StatedDevice,
    device_file_text,
    devices_of_toml,
    given_twice,
)
from identity.device_file_changes import FileChangeRefused, PlannedChange, made_entry, planned
from identity.registry import (
    ENDED,
    Beginning,
    ChangeRefused,
    Claim,
    DeviceEntry,
    DeviceState,
    enrol,
    expect,
    move,
    replace,
    resume,
    revoke,
    suspend,
)
from tests.identity.registry_strategies import CERTIFICATE, CHANGE, CLAIM, active, change, expected

CHANGES: list[Callable[[DeviceEntry], DeviceEntry]] = [
    lambda entry: enrol(entry, CERTIFICATE, CHANGE),
    lambda entry: suspend(entry, CHANGE),
    lambda entry: resume(entry, CHANGE),
    lambda entry: revoke(entry, CHANGE),
    lambda entry: move(entry, "zeta", Beginning(CLAIM), CHANGE)[0],
    lambda entry: replace(entry, "bus-9", Beginning(CLAIM), CHANGE)[0],
]
CLAIMS = st.sampled_from([CLAIM, Claim(id="SN-1"), None])


@st.composite
def entries(draw: st.DrawFn, name: str = "bus-1") -> DeviceEntry:
    """A device to which anything may have happened."""
    entry = expect("acme", name, region="eu", claim=draw(CLAIMS), change=CHANGE)
    for changed in draw(st.lists(st.sampled_from(CHANGES), max_size=4)):
        try:
            entry = changed(entry)
        except ChangeRefused:
            continue
    return entry


@st.composite
def stated_devices(draw: st.DrawFn) -> StatedDevice:
    """What a file may say of that device."""
    state = draw(st.sampled_from(DeviceState))
    return StatedDevice(
        tenant="acme",
        device="bus-1",
        state=state,
        region=draw(st.sampled_from([None, "eu", "us"])),
        factory=draw(st.sampled_from([None, "SN-1", "SN-2"])) if state is DeviceState.EXPECTED else None,
        by_hand=draw(st.booleans()) if state is DeviceState.ACTIVE else False,
    )


def claim_of(stated: StatedDevice) -> Claim | None:
    if stated.state is not DeviceState.EXPECTED:
        return None
    return CLAIM if stated.factory is None else Claim(id=stated.factory)


@given(stated_devices(), st.none() | entries())
def test_a_file_is_refused_with_its_reason_or_in_force_and_then_asks_for_nothing(
    stated: StatedDevice, held: DeviceEntry | None
) -> None:
    try:
        asked = planned(stated, held)
    except FileChangeRefused:
        return
    if asked.what is PlannedChange.NOTHING:
        assert held is not None
        now = held
    else:
        now = made_entry(asked, change(1), claim_of(stated))
        assert now.version == (1 if held is None else held.version + 1)
        assert (now.changed_by, now.reason) == ("anna", "because")
    assert now.state is stated.state or (stated.state, now.state) == (DeviceState.EXPECTED, DeviceState.ACTIVE)
    assert planned(stated, now).what is PlannedChange.NOTHING


@given(stated_devices(), entries())
def test_no_file_brings_back_what_has_ended_nor_moves_nor_replaces(stated: StatedDevice, held: DeviceEntry) -> None:
    if held.state in ENDED or stated.state in {DeviceState.MOVED, DeviceState.REPLACED}:
        try:
            assert planned(stated, held).what is PlannedChange.NOTHING
        except FileChangeRefused:
            return
        assert (stated.state, held.state) == (DeviceState.REVOKED, DeviceState.REVOKED)


@given(st.lists(st.sampled_from("abcdef"), unique=True).flatmap(lambda names: st.tuples(*map(entries, names))))
def test_a_registry_written_as_a_file_changes_nothing_of_it(held: tuple[DeviceEntry, ...]) -> None:
    by_name = {entry.name: entry for entry in held}
    placed, faults = devices_of_toml(device_file_text(held), "all.toml")
    assert not faults
    assert not [*given_twice(placed)]
    gone = {entry.name for entry in held if entry.state in {DeviceState.MOVED, DeviceState.REPLACED}}
    assert {one.stated.name for one in placed} == by_name.keys() - gone
    changes = [planned(one.stated, by_name[one.stated.name]).what for one in placed]
    assert set(changes) <= {PlannedChange.NOTHING}


@given(st.lists(st.sampled_from(["", "# a comment", "\n\n", '# [[device]] "']), min_size=1, max_size=5))
def test_each_device_is_placed_at_the_line_where_it_begins(between: list[str]) -> None:
    tables = [
        f'{gap}\n[[device]]\ntenant = "acme"\ndevice = "bus-{number}"\nstate = "suspended"\n'
        for number, gap in enumerate(between)
    ]
    placed, faults = devices_of_toml("".join(tables), "some.toml")
    assert not faults
    lines = "".join(tables).split("\n")
    begins = [number for number, line in enumerate(lines, 1) if line == "[[device]]"]
    assert [one.place for one in placed] == [f"some.toml:{number}" for number in begins]


def device(**keys: object) -> str:
    facts = {"tenant": "acme", "device": "bus-1", "state": "expected"} | keys
    written = {name: str(value).lower() if isinstance(value, bool) else f'"{value}"' for name, value in facts.items()}
    return "[[device]]\n" + "".join(f"{name} = {value}\n" for name, value in written.items())


@pytest.mark.parametrize(
    ("text", "fault", "said"),
    [
        ("[[device]\n", FileFault.UNREADABLE, "f.toml:1:9: is not valid TOML"),
        ("[[devices]]\n", FileFault.WRONG_ENTRY, "f.toml:1: devices: no such table; a file of devices has [[device]]"),
        ('[device]\ntenant = "acme"\n', FileFault.WRONG_ENTRY, "f.toml:1: device: is one table, and a list"),
        ("device = [1]\n", FileFault.WRONG_ENTRY, "f.toml:1: device: a table is needed"),
        (device(state="activ"), FileFault.WRONG_ENTRY, "f.toml:4: acme/bus-1: state: Input should be 'expected'"),
        (
            device(regoin="eu"),
            FileFault.WRONG_ENTRY,
            "f.toml:5: acme/bus-1: regoin: no such key; did you mean 'region'?",
        ),
        (device(device="bus 1"), FileFault.WRONG_ENTRY, "f.toml:3: acme/bus 1: device: String should match"),
        (device(tenant="a" * 63, device="b" * 63), FileFault.WRONG_ENTRY, "has 127 characters"),
        (device(factory="token-0123456789abcdef"), FileFault.WRONG_ENTRY, "what a token is called"),
        (device(state="active", factory="SN-1"), FileFault.WRONG_ENTRY, '`factory` goes with state = "expected"'),
        (device(by_hand=True), FileFault.WRONG_ENTRY, '`by_hand` goes with state = "active"'),
        (device() * (MAX_DEVICES + 1), FileFault.TOO_MANY, "at most 10,000 devices"),
    ],
    ids=range(12),
)
def test_what_is_wrong_with_a_file_is_named_with_its_line(text: str, fault: FileFault, said: str) -> None:
    _, faults = devices_of_toml(text, "f.toml")
    assert [one.fault for one in faults] == [fault]
    assert said in str(faults[0])


def test_a_device_that_is_given_twice_is_named_with_both_places() -> None:
    placed = [PlacedDevice(f"f.toml:{line}", StatedDevice.model_validate(_facts())) for line in (1, 9)]
    assert [str(fault) for fault in given_twice(placed)] == ["f.toml:9: acme/bus-1 is given twice (f.toml:1)"]


def _facts(**keys: object) -> dict[str, object]:
    return {"tenant": "acme", "device": "bus-1", "state": "active"} | keys


@pytest.mark.parametrize(
    ("facts", "held", "fault", "said"),
    [
        (_facts(), None, FileFault.NOT_KNOWN, "the registry has no such device"),
        (_facts(state="expected"), None, FileFault.NOT_KNOWN, "say by its `region` who enrols it"),
        (_facts(), expected(), FileFault.NO_WAY, "it is expected, and cannot be active by a file: it enrols"),
        (_facts(state="expected"), suspend(active(), CHANGE), FileFault.NO_WAY, 'write state = "active" to resume it'),
        (_facts(), revoke(active(), CHANGE), FileFault.NO_WAY, "a name is used once"),
        (_facts(state="revoked"), move(active(), "zeta", Beginning(CLAIM), CHANGE)[0], FileFault.NO_WAY, "zeta/bus-1"),
        (_facts(state="moved"), active(), FileFault.NOT_BY_FILE, "`waybill device move`"),
        (_facts(state="replaced"), active(), FileFault.NOT_BY_FILE, "`waybill device replace`"),
        (_facts(region="us"), active(), FileFault.OTHER_FACTS, "in region eu, and a file gives it no other"),
        (_facts(state="expected", factory="SN-2"), expected(), FileFault.OTHER_FACTS, "expect --again"),
    ],
)
def test_what_the_state_of_a_device_does_not_allow_is_refused_with_the_way_on(
    facts: dict[str, object], held: DeviceEntry | None, fault: FileFault, said: str
) -> None:
    with pytest.raises(FileChangeRefused) as refused:
        planned(StatedDevice.model_validate(facts), held)
    assert (refused.value.fault, said in str(refused.value)) == (fault, True), refused.value
