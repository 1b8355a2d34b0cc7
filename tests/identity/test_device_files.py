"""Files of devices: what stands in them, where, and what they ask of a registry in which anything may have happened."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cloud_jobs.reference.commands import app
from tests.identity.makers import CERTIFICATE, CHANGE, CLAIM, OPERATOR, HeldDevices, active, change, expected, on_lines
from tests.identity.registry_world import Command, World, command, config, outcomes, put, table, world  # noqa: F401 - fixtures
from waybill.identity.claims import make_token, read_token
from waybill.identity.device_files import (
    MAX_DEVICES,
    MAX_DEVICES_FILE_BYTES,
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
from waybill.identity.errors import SignatureFault, SignatureRefused
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
from waybill.identity.registry_session import RegistrySession
from waybill.identity.registry_topic import RegistryUnreachable

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


def test_a_file_is_published_whole_and_then_asks_for_nothing(
    tmp_path: Path, fleet: World, command: Command, put: Command
) -> None:
    tokens = tmp_path / "a" / "tokens"
    done = put(GOOD, "--tokens", tokens)
    assert (done.exit_code, "changes: 2 expect, 1 resume, 1 suspend; 1 as they are" in done.stdout) == (0, True), done
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
    assert command("diff", tmp_path / "devices.toml").exit_code == 0
    fleet.confirmed(enrol(fleet.held()["acme/serial"], CERTIFICATE, CHANGE))
    assert put(GOOD).exit_code == 0, "who is enrolled by now is as the file says"
    # The registry as a file changes nothing of it.
    listed = tmp_path / "listed.toml"
    listed.write_text(command("toml").stdout)
    assert (listed.read_text().count("[[device]]"), command("diff", listed).exit_code) == (5, 0)
    assert command("history", "acme/active").stdout.count("because") == 2


def test_a_difference_is_shown_by_device_and_place(tmp_path: Path, fleet: World, command: Command) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(GOOD)
    done = command("diff", file)
    assert done.exit_code == 1
    assert [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()] == [
        "1: acme/new: new, expected, region eu (expect)",
        "6: acme/serial: new, expected, region eu (expect)",
        "12: acme/active: active -> suspended (version 1 by anna)",
        "16: acme/suspended: suspended -> active (version 2 by anna)",
        "21: acme/revoked: same, revoked (version 2 by anna)",
    ]
    facts = json.loads(command("diff", file, "--json").stdout)["devices"]
    assert [one["change"] for one in facts] == ["expect", "expect", "suspend", "resume", "nothing"]


def test_of_a_file_with_a_fault_nothing_is_published_and_all_faults_are_named(
    tmp_path: Path, fleet: World, command: Command
) -> None:
    file, tokens, before = tmp_path / "devices.toml", tmp_path / "tokens", len(fleet.messages)
    file.write_text(
        GOOD
        + table("activ", "suspended")
        + table("far", "expected", region="mars")
        + table("other", "expected", region="eu", tenant="acne")
        + table("active-2", "moved")
    )
    for asked in (("check", file), ("diff", file), ("put", file, "--tokens", tokens)):
        done = command(*asked)
        assert (done.exit_code, "4 faults; nothing can be published" in done.stderr) == (1, True), done.output
        assert f"{file}:25: acme/activ: the registry has no such device" in done.stderr
        assert "did you mean acme/active?" in done.stderr
        assert f"{file}:29: acme/far: there is no region 'mars'" in done.stderr
        assert f"{file}:34: acne/other: there is no tenant 'acne': did you mean acme?" in done.stderr
        assert f"{file}:39: acme/active-2: a file has no such change: `waybill device move`" in done.stderr
        kinds = [one["fault"] for one in json.loads(command(*asked, "--json").stdout)["faults"]]
        assert kinds == ["not-known", "not-in-settings", "not-in-settings", "not-by-file"]
    assert (len(fleet.messages), tokens.exists()) == (before, False)


def test_a_token_without_a_folder_and_a_change_without_a_right_are_faults_at_their_places(
    tmp_path: Path, fleet: World, put: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, tokens = len(fleet.messages), tmp_path / "tokens"
    done = put(GOOD)
    assert (done.exit_code, ":1: acme/new: it gets a one-time token" in done.stderr) == (1, True), done.output
    no_right = SignatureRefused(SignatureFault.NO_RIGHT, "not for acme")
    monkeypatch.setattr(RegistrySession, "refusal", lambda *_: no_right)
    done = put(GOOD, "--tokens", tokens)
    assert (done.exit_code, done.stderr.count("no-right: not for acme")) == (1, 4), done.output
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
    assert (done.exit_code, "cut short: 1 published, 3 not published" in done.stderr) == (75, True), done.output
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


def spoil(kind: str, file: Path) -> None:
    token = make_token().text.get_secret_value() + "\n"
    if kind == "link":
        (file.parent / "other").write_text(token)
        file.symlink_to("other")
    else:
        file.write_text("my notes" if kind == "no token" else token)
    if kind == "folder":
        file.parent.chmod(0o777)
    if kind == "another token twice":
        (file.parent / "new-2.token").write_text(token)


@pytest.mark.parametrize("kind", ["link", "no token", "folder", "another token twice"])
def test_a_token_that_another_may_have_put_there_is_not_published(
    tmp_path: Path, fleet: World, put: Command, kind: str
) -> None:
    tokens, before = tmp_path / "tokens", len(fleet.messages)
    (tokens / "acme").mkdir(parents=True, mode=0o700)
    spoil(kind, tokens / "acme" / "new.token")
    done = put(table("new", "expected", region="eu") + table("new-2", "expected", region="eu"), "--tokens", tokens)
    assert (done.exit_code, "its token cannot be kept in" in done.stderr) == (1, True), done.output
    assert len(fleet.messages) == before


def test_one_factory_serial_is_not_given_to_several_devices(
    tmp_path: Path, fleet: World, command: Command, put: Command
) -> None:
    serials, file = {"region": "eu", "factory": "SN-1"}, tmp_path / "devices.toml"
    file.write_text(table("s1", "expected", **serials) + table("s2", "expected", **serials))
    done = command("check", file)
    said = f"{file}:7: acme/s2: the factory serial SN-1 is that of acme/s1 ({file}:1)"
    assert (done.exit_code, done.stderr.splitlines()[0]) == (1, said)
    fleet.put(expect("acme", "s0", region="eu", claim=Claim(id="SN-1"), change=CHANGE))
    done = put(table("s1", "expected", **serials) + table("s0", "expected"))
    assert (done.exit_code, "serial SN-1 is that of acme/s0" in done.stderr) == (1, True), done.output


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


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "300"}, color=True)
    return done.exit_code, done.stdout, done.stderr


def test_a_check_without_settings_judges_the_file_alone(tmp_path: Path) -> None:
    file, empty, none = tmp_path / "devices.toml", tmp_path / "empty.toml", tmp_path / "none.toml"
    file.write_text(GOOD)
    empty.write_text("# later\n")
    right = "right by themselves, not held against the registry: 5 devices\n"
    assert run("check", "devices", file)[:2] == run("devices", "check", file)[:2] == (0, right)
    assert run("check", "devices", file, "-c", none)[0] == 78
    assert "no device is in it" in run("check", "devices", empty, file)[2]
    assert run("check", "devices", none)[0] == 1
    file.write_text(table("a", "active") * 2)
    assert f"{file}:5: acme/a is given twice ({file}:1)" in run("check", "devices", file)[2]


def test_the_files_of_a_command_are_bounded_together(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.toml" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text("".join(table(f"b-{number}-{one}", "revoked") for one in range(4000)))
    assert f"{files[2]}:8001: the files of a command have at most 10,000" in run("check", "devices", *files)[2]
    for file in files:
        file.write_text("#" * (MAX_DEVICES_FILE_BYTES // 2))
    assert f"{files[2]}: cannot be read: it has more than" in run("check", "devices", *files)[2]


def test_a_put_once_more_says_whether_a_region_has_confirmed_by_now(fleet: World, put: Command) -> None:
    fleet.silent = {"us"}
    text = table("active", "suspended")
    assert [put(text).exit_code, put(text).exit_code] == [5, 5]
    fleet.confirm("us", "acme/active", str(fleet.newest))
    assert put(text).exit_code == 0
