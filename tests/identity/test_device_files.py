"""Files of devices: what stands in them, where, and what they ask of a registry in which anything may have happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.held_devices import OPERATOR, HeldDevices, on_lines
from tests.identity.registry_strategies import CERTIFICATE, CHANGE, CLAIM, active, change, expected
from waybill.identity.device_files import (
    MAX_DEVICES,
    MAX_FILE_FAULTS,
    FileChangeRefused,
    FileFault,
    JudgedDevice,
    PlacedDevice,
    PlannedChange,
    StatedDevice,
    device_file_text,
    devices_of_toml,
    judged,
    planned,
)
from waybill.identity.registry import (
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
def stated_devices(draw: st.DrawFn, name: str = "bus-1") -> StatedDevice:
    """What a file may say of that device."""
    state = draw(st.sampled_from(DeviceState))
    return StatedDevice(
        tenant="acme",
        device=name,
        state=state,
        region=draw(st.sampled_from([None, "eu", "us"])),
        factory=draw(st.sampled_from([None, "SN-1", "SN-2"])) if state is DeviceState.EXPECTED else None,
        by_hand=draw(st.booleans()) if state is DeviceState.ACTIVE else False,
        resumes=draw(st.none() | st.integers(1, 4)) if state is DeviceState.ACTIVE else None,
    )


def claim_of(stated: StatedDevice) -> Claim | None:
    if stated.state is not DeviceState.EXPECTED:
        return None
    return CLAIM if stated.factory is None else Claim(id=stated.factory)


def made(stated: StatedDevice, held: DeviceEntry | None, claim: Claim | None = None) -> DeviceEntry | None:
    """What is published of a device so that it is as stated; None: nothing. Raises FileChangeRefused."""
    return JudgedDevice("f:1", stated, planned(stated, held), held).make(change(1), claim)(held)


@given(stated_devices(), st.none() | entries())
def test_a_file_is_refused_with_its_reason_or_in_force_and_then_asks_for_nothing(
    stated: StatedDevice, held: DeviceEntry | None
) -> None:
    claim = claim_of(stated)
    try:
        now = made(stated, held, claim if held is None else None)
    except FileChangeRefused:
        return
    if now is None:
        assert held is not None
        now = held
    else:
        assert now.version == (1 if held is None else held.version + 1)
        assert (now.changed_by, now.reason) == ("anna", "because")
    assert now.state is stated.state or (stated.state, now.state) == (DeviceState.EXPECTED, DeviceState.ACTIVE)
    assert made(stated, now) is None


@given(stated_devices(), entries())
def test_no_file_brings_back_what_has_ended_nor_moves_nor_replaces(stated: StatedDevice, held: DeviceEntry) -> None:
    if held.state in ENDED or stated.state in {DeviceState.MOVED, DeviceState.REPLACED}:
        try:
            assert planned(stated, held) is PlannedChange.NOTHING
        except FileChangeRefused:
            return
        assert (stated.state, held.state) == (DeviceState.REVOKED, DeviceState.REVOKED)


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, min_size=1)


@given(NAMES.flatmap(lambda names: st.tuples(*map(stated_devices, names))), st.data(), st.integers(1, 6))
def test_each_device_of_a_file_has_its_change_or_its_fault_however_many_stand_on_a_line(
    stated: tuple[StatedDevice, ...], data: st.DataObject, on_a_line: int
) -> None:
    held = [data.draw(entries(one.device)) for one in stated if data.draw(st.booleans())]
    registry = HeldDevices(held)
    placed, faults = devices_of_toml(on_lines(stated, on_a_line), "f.toml")
    assert (faults, [one.stated for one in placed]) == ([], [*stated])
    changes, faults = judged(placed, registry, OPERATOR)
    assert len(changes) + len(faults) == len(stated)
    assert {one.stated.name for one in changes if one.needs_token} == {
        one.name for one in stated if one.name not in registry.held and one.state == "expected" and not one.factory
    } & {one.stated.name for one in changes}


@given(st.integers(1, 3), st.none() | st.integers(1, 8))
def test_a_file_lets_in_who_was_locked_out_only_by_the_version_of_that(times: int, resumes: int | None) -> None:
    held = suspend(active(), CHANGE)
    for _ in range(times - 1):
        held = suspend(resume(held, CHANGE), CHANGE)
    stated = StatedDevice.model_validate(_facts(resumes=resumes))
    if resumes == held.version:
        resumed = made(stated, held)
        assert resumed is not None
        assert planned(stated, resumed) is PlannedChange.NOTHING
        held = suspend(resumed, CHANGE)
    with pytest.raises(FileChangeRefused) as refused:
        planned(stated, held)
    assert refused.value.fault is FileFault.LOCKED_OUT
    assert f"resumes = {held.version}" in str(refused.value)


def test_a_file_that_was_written_before_a_device_was_suspended_does_not_let_it_in() -> None:
    fleet = device_file_text([active()])
    stolen = suspend(active(), CHANGE)
    changes, faults = judged(devices_of_toml(fleet, "f.toml")[0], HeldDevices([stolen]), OPERATOR)
    assert (changes, [one.fault for one in faults]) == ([], [FileFault.LOCKED_OUT])
    assert "acme/bus-1: it is suspended, version 2 by anna" in str(faults[0])


def test_of_very_many_devices_that_are_not_known_the_first_hundred_are_named() -> None:
    stated = [StatedDevice.model_validate(_facts(device=f"bus-{number}")) for number in range(5000)]
    registry = HeldDevices()
    faults = judged([PlacedDevice("f.toml:1", one) for one in stated], registry, OPERATOR)[1]
    assert (len(faults), registry.asked) == (MAX_FILE_FAULTS, MAX_FILE_FAULTS)


@given(st.lists(st.sampled_from("abcdef"), unique=True).flatmap(lambda names: st.tuples(*map(entries, names))))
def test_a_registry_written_as_a_file_changes_nothing_of_it(held: tuple[DeviceEntry, ...]) -> None:
    by_name = {entry.name: entry for entry in held}
    placed, faults = devices_of_toml(device_file_text(held), "all.toml")
    assert not faults
    gone = {entry.name for entry in held if entry.state in {DeviceState.MOVED, DeviceState.REPLACED}}
    assert {one.stated.name for one in placed} == by_name.keys() - gone
    changes = [planned(one.stated, by_name[one.stated.name]) for one in placed]
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
    written = {name: str(value).lower() if isinstance(value, int) else f'"{value}"' for name, value in facts.items()}
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
        (device(state="active", by_hand="yes"), FileFault.WRONG_ENTRY, "by_hand: Input should be a valid boolean"),
        (device(state="suspended", resumes=2), FileFault.WRONG_ENTRY, '`resumes` goes with state = "active"'),
        (device(state="active", resumes=True), FileFault.WRONG_ENTRY, "resumes: it is a whole number"),
        (device(**{f"k{n}": 1 for n in range(21)}), FileFault.WRONG_ENTRY, "at most 20 keys, and this one 24"),
        ("".join(f"[x{n}.a.b.c.d]\n" for n in range(50_000)), FileFault.UNREADABLE, "200,000 are allowed"),
        (device() * (MAX_DEVICES + 1), FileFault.TOO_MANY, "at most 10,000 devices"),
    ],
    ids=range(17),
)
def test_what_is_wrong_with_a_file_is_named_with_its_line(text: str, fault: FileFault, said: str) -> None:
    _, faults = devices_of_toml(text, "f.toml")
    assert [one.fault for one in faults] == [fault]
    assert said in str(faults[0])


def _facts(**keys: object) -> dict[str, object]:
    return {"tenant": "acme", "device": "bus-1", "state": "active"} | keys


@pytest.mark.parametrize(
    ("facts", "held", "fault", "said"),
    [
        (_facts(), None, FileFault.NOT_KNOWN, "the registry has no such device"),
        (_facts(state="expected"), None, FileFault.NOT_KNOWN, "say by its `region` who enrols it"),
        (_facts(), expected(), FileFault.NO_WAY, "it is expected, and cannot be active by a file: it enrols"),
        (_facts(state="expected"), suspend(active(), CHANGE), FileFault.NO_WAY, "`resumes = 2` to resume it"),
        (_facts(), suspend(active(), CHANGE), FileFault.LOCKED_OUT, "or `resumes = 2` to let it in"),
        (_facts(resumes=1), suspend(active(), CHANGE), FileFault.LOCKED_OUT, "ends the suspension of version 1"),
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
