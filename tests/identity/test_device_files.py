"""Files of devices: what stands in them, where, and what they ask of a registry in which anything may have happened."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.makers import (
    CERTIFICATE,
    CHANGE,
    CLAIM,
    OPERATOR,
    HeldDevices,
    active,
    change,
    devices_toml,
    expected,
)
from tests.identity.registry_world import Command, World, command, config, outcomes, put, table, world  # noqa: F401 - fixtures
from waybill.identity.claims import read_token
from waybill.identity.device_files import (
    DeviceFile,
    FileChange,
    PlannedChange,
    StatedDevice,
    judged,
    planned,
    read_device_file,
)
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.registry import (
    ChangeRefused,
    Claim,
    DeviceEntry,
    DeviceState,
    enrol,
    expect,
    resume,
    revoke,
    suspend,
)
from waybill.identity.registry_session import RegistrySession
from waybill.identity.registry_topic import RegistryUnreachable
from waybill.settings import SettingsError, parse

CHANGES: list[Callable[[DeviceEntry], DeviceEntry]] = [
    lambda entry: enrol(entry, CERTIFICATE, CHANGE),
    lambda entry: suspend(entry, CHANGE),
    lambda entry: resume(entry, CHANGE),
    lambda entry: revoke(entry, CHANGE),
]
CLAIMS = st.sampled_from([CLAIM, Claim(id="SN-1"), None])


@st.composite
def entries(draw: st.DrawFn, name: str = "bus-1") -> DeviceEntry:
    entry = expect("acme", name, region="eu", claim=draw(CLAIMS), change=CHANGE)
    for changed in draw(st.lists(st.sampled_from(CHANGES), max_size=4)):
        try:
            entry = changed(entry)
        except ChangeRefused:
            continue
    return entry


@st.composite
def stated_devices(draw: st.DrawFn, name: str = "bus-1") -> StatedDevice:
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
    """What is published of a device so that it is as stated; None: nothing. Raises ChangeRefused."""
    return FileChange(stated, planned(stated, held), held).make(change(1), claim)(held)


@given(stated_devices(), st.none() | entries())
def test_a_file_is_refused_with_its_reason_or_in_force_and_then_asks_for_nothing(
    stated: StatedDevice, held: DeviceEntry | None
) -> None:
    claim = claim_of(stated)
    try:
        now = made(stated, held, claim if held is None else None)
    except ChangeRefused:
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
def test_no_file_brings_back_what_has_ended(stated: StatedDevice, held: DeviceEntry) -> None:
    if held.is_ended:
        try:
            assert planned(stated, held) is PlannedChange.NOTHING
        except ChangeRefused:
            return
        assert (stated.state, held.state) == (DeviceState.REVOKED, DeviceState.REVOKED)


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, min_size=1)


@given(NAMES.flatmap(lambda names: st.tuples(*map(stated_devices, names))), st.data())
def test_each_device_of_a_file_has_its_change_or_its_fault(
    stated: tuple[StatedDevice, ...], data: st.DataObject
) -> None:
    registry = HeldDevices([data.draw(entries(one.device)) for one in stated if data.draw(st.booleans())])
    assert parse(DeviceFile, devices_toml(stated), "f.toml").device == stated
    changes, faults = judged(stated, registry, OPERATOR)
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
    with pytest.raises(ChangeRefused) as refused:
        planned(stated, held)
    assert f"resumes = {held.version}" in str(refused.value)


def test_a_file_that_was_written_before_a_device_was_suspended_does_not_let_it_in() -> None:
    stated = StatedDevice(tenant="acme", device="bus-1", state=DeviceState.ACTIVE)
    changes, faults = judged([stated], HeldDevices([suspend(active(), CHANGE)]), OPERATOR)
    assert (changes, len(faults)) == ([], 1)
    assert "acme/bus-1: it is suspended, version 2 by anna" in faults[0]


def device(**keys: object) -> str:
    facts = {"tenant": "acme", "device": "bus-1", "state": "expected"} | keys
    written = {name: str(value).lower() if isinstance(value, int) else f'"{value}"' for name, value in facts.items()}
    return "[[device]]\n" + "".join(f"{name} = {value}\n" for name, value in written.items())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[device]\n", "is not valid TOML"),
        ("[[devices]]\n", "devices: no such setting; did you mean 'device'?"),
        ('[device]\ntenant = "acme"\n', "device: is one table, and a list of them is needed"),
        ("# later\n", "device: Field required"),
        (device(state="activ"), "device.0.state: Input should be 'expected'"),
        (device(regoin="eu"), "device.0.regoin: no such setting; did you mean 'region'?"),
        (device(device="bus 1"), "device.0.device: String should match"),
        (device(tenant="a" * 63, device="b" * 63), "has 127 characters"),
        (device(factory="token-0123456789abcdef"), "has the form of a token"),
        (device(state="active", factory="SN-1"), '`factory` goes with state = "expected"'),
        (device(by_hand=True), '`by_hand` goes with state = "active"'),
        (device(state="active", by_hand="yes"), "by_hand: Input should be a valid boolean"),
        (device(state="suspended", resumes=2), '`resumes` goes with state = "active"'),
        (device(state="active", resumes=True), "resumes: it is a whole number"),
        (device() * 2, "acme/bus-1 is given twice"),
        (device(factory="SN-1") + device(device="bus-2", factory="SN-1"), "the factory serial SN-1 is given twice"),
    ],
    ids=range(16),
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as wrong:
        read_device_file(file)
    assert said in str(wrong.value)


def _facts(**keys: object) -> dict[str, object]:
    return {"tenant": "acme", "device": "bus-1", "state": "active"} | keys


@pytest.mark.parametrize(
    ("facts", "held", "said"),
    [
        (_facts(), None, "the registry has no such device"),
        (_facts(state="expected"), None, "name the region that enrols it"),
        (_facts(), expected(), "a file cannot make it active: it is expected: it enrols"),
        (_facts(state="expected"), suspend(active(), CHANGE), "resume it first"),
        (_facts(), suspend(active(), CHANGE), "`resumes = 2` to let it in"),
        (_facts(resumes=1), suspend(active(), CHANGE), "it is suspended, version 2 by anna"),
        (_facts(), revoke(active(), CHANGE), "it is revoked permanently"),
        (_facts(region="us"), active(), "in region eu, and a file does not change that"),
        (_facts(state="expected", factory="SN-2"), expected(), "expect --again"),
    ],
)
def test_what_the_state_of_a_device_does_not_allow_is_refused_with_the_way_on(
    facts: dict[str, object], held: DeviceEntry | None, said: str
) -> None:
    with pytest.raises(ChangeRefused) as refused:
        planned(StatedDevice.model_validate(facts), held)
    assert said in str(refused.value)


# ruff: noqa: F811 - a fixture is asked for by its name


GOOD = (
    table("new", "expected", region="eu")
    + table("serial", "expected", region="eu", factory="SN-1")
    + table("active", "suspended")
    + table("suspended", "active", resumes=2)
    + table("revoked", "revoked")
)


@pytest.fixture
def fleet(world: World) -> World:
    for entry in (
        active(device="active"),
        suspend(active(device="suspended"), CHANGE),
        revoke(active(device="revoked"), CHANGE),
    ):
        world.confirmed(entry)
    return world


def test_a_file_is_published_whole_and_then_asks_for_nothing(tmp_path: Path, fleet: World, put: Command) -> None:
    tokens, before = tmp_path / "a" / "tokens", len(fleet.messages)
    shown = put(GOOD, "--dry-run")
    assert (shown.exit_code, len(fleet.messages)) == (0, before), shown.output
    assert shown.stdout.splitlines() == [
        "acme/new: expect (new -> expected)",
        "acme/serial: expect (new -> expected)",
        "acme/active: suspend (active -> suspended)",
        "acme/suspended: resume (suspended -> active)",
        "1 devices without a change",
    ]
    done = put(GOOD, "--tokens", tokens)
    assert done.exit_code == 0, done.output
    assert fleet.states == {
        "active": "suspended",
        "suspended": "active",
        "revoked": "revoked",
        "new": "expected",
        "serial": "expected",
    }
    token, claim = tokens / "acme" / "new.token", fleet.held()["acme/new"].claim
    assert [one.stat().st_mode & 0o777 for one in (token, tokens / "acme", tokens)] == [0o600, 0o700, 0o700]
    assert claim is not None
    assert claim.password_hash == read_token(token.read_text().strip()).password_hash
    assert [one.name for one in tokens.rglob("*.token")] == ["new.token"]
    before = len(fleet.messages)
    assert (put(GOOD).exit_code, len(fleet.messages)) == (0, before)
    fleet.confirmed(enrol(fleet.held()["acme/serial"], CERTIFICATE, CHANGE))
    assert put(GOOD).exit_code == 0, "who is enrolled by now is as the file says"


def test_of_a_file_with_a_fault_nothing_is_published_and_all_faults_are_named(
    tmp_path: Path, fleet: World, put: Command
) -> None:
    tokens, before = tmp_path / "tokens", len(fleet.messages)
    text = (
        GOOD
        + table("activ", "suspended")
        + table("far", "expected", region="mars")
        + table("other", "expected", region="eu", tenant="acne")
        + table("active-2", "suspended")
    )
    done = put(text, "--tokens", tokens)
    assert (done.exit_code, "4 faults; nothing was published" in done.stderr) == (3, True), done.output
    assert "acme/activ: the registry has no such device" in done.stderr
    assert "acme/far: there is no region 'mars'" in done.stderr
    assert "acne/other: there is no tenant 'acne': `tenants` of the settings names acme" in done.stderr
    assert "acme/active-2: the registry has no such device" in done.stderr
    assert json.loads(put(text, "--json").stdout)["result"] == "refused"
    assert (len(fleet.messages), tokens.exists()) == (before, False)


def test_a_token_without_a_folder_and_a_change_without_a_right_are_faults(
    tmp_path: Path, fleet: World, put: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, tokens = len(fleet.messages), tmp_path / "tokens"
    done = put(GOOD)
    assert (done.exit_code, "acme/new: it gets a one-time token" in done.stderr) == (3, True), done.output
    no_right = SignatureRefused(SignatureFault.NO_RIGHT, "not for acme")
    monkeypatch.setattr(RegistrySession, "refusal", lambda *_: no_right)
    done = put(GOOD, "--tokens", tokens)
    assert (done.exit_code, done.stderr.count("no-right: not for acme")) == (3, 4), done.output
    assert not [*tokens.rglob("*.token")], "a token that was never published does not stay"
    assert len(fleet.messages) == before


def test_a_put_that_was_cut_short_is_given_again_with_the_same_tokens(
    tmp_path: Path, world: World, put: Command
) -> None:
    def cut() -> None:
        raise RegistryUnreachable("the link is cut")

    names = [f"new-{number}" for number in range(4)]
    text, tokens = "".join(table(name, "expected", region="eu") for name in names), tmp_path / "tokens"
    world.before["acme/new-1"] = cut
    done = put(text, "--tokens", tokens)
    assert (done.exit_code, "cut short: 1 published, 3 not published" in done.stderr) == (1, True), done.output
    before = {one.name: one.read_text() for one in tokens.rglob("*.token")}
    assert [*before] == ["new-0.token"], "of what was not published no token stays"
    assert put(text, "--tokens", tokens).exit_code == 0
    after = {one.name: one.read_text() for one in tokens.rglob("*.token")}
    assert (len(after), before.items() <= after.items()) == (4, True)
    for name, entry in world.held().items():
        assert entry.claim is not None
        assert entry.claim.id == read_token(after[f"{name.removeprefix('acme/')}.token"].strip()).id


def test_what_changed_meanwhile_is_refused_by_its_name_and_its_token_does_not_stay(
    tmp_path: Path, fleet: World, put: Command
) -> None:
    tokens, other = tmp_path / "tokens", expect("acme", "new", region="eu", claim=Claim(id="SN-9"), change=CHANGE)
    fleet.before["acme/active"] = lambda: fleet.confirmed(other)
    done = put(table("active", "suspended") + table("new", "expected", region="eu"), "--tokens", tokens, "--json")
    assert (done.exit_code, outcomes(done)) == (6, {"active": "done", "new": "refused"}), done.output
    assert not [*tokens.rglob("*.token")]


def test_a_token_file_with_other_content_is_not_published(tmp_path: Path, fleet: World, put: Command) -> None:
    tokens, before = tmp_path / "tokens", len(fleet.messages)
    (tokens / "acme").mkdir(parents=True)
    (tokens / "acme" / "new.token").write_text("my notes")
    done = put(table("new", "expected", region="eu"), "--tokens", tokens)
    assert (done.exit_code, "its token cannot be kept in" in done.stderr) == (3, True), done.output
    assert len(fleet.messages) == before


def test_of_what_was_published_long_ago_no_region_is_asked(
    fleet: World, put: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.said.clear()
    later_s = time.time() + 2 * 86_400
    monkeypatch.setattr(time, "time", lambda: later_s)
    done = put(table("revoked", "revoked"), "--json")
    assert (done.exit_code, outcomes(done)) == (0, {"revoked": "done"}), done.output
    assert "not kept so long" in done.stdout


def test_a_token_that_is_refused_at_the_clock_or_interrupted_stays_only_where_it_may_be_published(
    tmp_path: Path, world: World, put: Command
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.before["acme/new"] = interrupt
    done = put(table("new", "expected", region="eu"), "--tokens", tmp_path / "tokens", "--json")
    assert (done.exit_code, outcomes(done)) == (130, {"new": "unconfirmed"}), done.output
    assert len([*tmp_path.rglob("*.token")]) == 1


def test_a_put_once_more_says_whether_a_region_has_confirmed_by_now(fleet: World, put: Command) -> None:
    fleet.silent = {"us"}
    text = table("active", "suspended")
    assert [put(text).exit_code, put(text).exit_code] == [5, 5]
    fleet.confirm("us", "acme/active", str(fleet.newest))
    assert put(text).exit_code == 0
