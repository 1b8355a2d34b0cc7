"""`waybill device`: what each command makes of the registry, and what it says became of it."""

# ruff: noqa: F811 - a fixture is asked for by its name

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.identity.makers import CERTIFICATE, CHANGE, active, change, expected
from tests.identity.registry_world import (  # noqa: F401 - fixtures
    Command,
    World,
    command,
    config,
    outcomes,
    put,
    table,
    world,
)
from tests.tokens import token_file
from waybill.identity.claims import token_user
from waybill.identity.command_session import shows_progress
from waybill.identity.device_cli import app
from waybill.identity.registry import DeviceState, renew, revoke, suspend
from waybill.identity.registry_topic import PublicationUnknown, RegistryRefused, RegistryUnreachable
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown, NotLetIn


@pytest.fixture
def fleet(world: World) -> World:
    for name in ("a", "b"):
        world.put(active("acme", name))
    world.put(suspend(active("acme", "off"), change()))
    return world


COMMANDS = {
    ("expect", "acme/new", "--region", "eu", "--by-hand"): {"new": "active"},
    ("expect", "acme/new", "--region", "eu", "--factory", "SN-1"): {"new": "expected"},
    ("suspend", "acme/a", "acme/b"): {"a": "suspended", "b": "suspended"},
    ("resume", "acme/off"): {"off": "active"},
    ("revoke", "acme/a"): {"a": "revoked"},
    ("sign", "acme/a"): {"a": "active"},
}


@pytest.mark.parametrize("asked", COMMANDS)
def test_a_change_holds_is_confirmed_by_every_region_and_known_to_programs(
    fleet: World, command: Command, asked: tuple[str, ...]
) -> None:
    done = command(*asked, "--wait", "0.05", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["result"], said["confirmed"]) == (0, "done", ["eu", "us"]), done.output
    assert set(outcomes(done).values()) == {"done"}
    assert COMMANDS[asked].items() <= fleet.states.items()


def test_a_revocation_is_published_before_the_registry_is_read_and_then_with_all_that_was_known(
    fleet: World, command: Command
) -> None:
    """So it takes effect equally soon in a registry of ten devices and of a million."""
    fleet.put(renew(active("acme", "a"), CERTIFICATE, CHANGE))
    fleet.before["acme/a"] = lambda: fleet.read_after.append(-1)
    assert command("revoke", "acme/a", "--wait", "0.05").exit_code == 0
    assert fleet.read_after == [-1, 5], "published first, read afterwards"
    entry = fleet.held()["acme/a"]
    assert (entry.state, entry.certificates, entry.version) == (DeviceState.REVOKED, (CERTIFICATE,), 3)


def test_a_revocation_that_was_cut_short_is_made_whole_by_the_next_one(fleet: World, command: Command) -> None:
    def cut() -> None:
        fleet.is_ended = False

    fleet.before["acme/a"] = cut
    assert command("revoke", "acme/a").exit_code == 1
    assert (fleet.states["a"], fleet.held()["acme/a"].version) == ("revoked", 1), "it holds already"
    fleet.is_ended = True
    assert command("revoke", "acme/a", "--wait", "0.05").exit_code == 0
    assert fleet.held()["acme/a"].version == 2


def test_a_name_that_was_not_known_is_refused_and_is_revoked_all_the_same(fleet: World, command: Command) -> None:
    done = command("revoke", "acme/aa", "acme/b", "--json")
    assert (done.exit_code, outcomes(done)) == (6, {"aa": "refused", "b": "done"}), done.output
    assert fleet.states["aa"] == "revoked"


def test_the_same_revocation_once_more_says_whether_it_is_in_force_by_now(fleet: World, command: Command) -> None:
    fleet.silent = {"us"}
    first = command("revoke", "acme/a", "--wait", "0.05")
    assert (first.exit_code, "not confirmed in us after 0.05 s" in first.stderr) == (5, True), first.output
    (held,) = (one for one in fleet.messages if json.loads(one.body)["version"] == 2 and one.key == "acme/a")
    assert command("revoke", "acme/a", "--wait", "0.05").exit_code == 5
    fleet.confirm("us", "acme/a", held.properties["publication_id"])
    again = command("revoke", "acme/a", "--wait", "0.05")
    assert (again.exit_code, "confirmed: eu, us" in again.stdout) == (0, True), again.output


def test_a_region_that_refuses_or_is_listed_nowhere_is_named_and_nothing_is_called_confirmed(
    fleet: World, command: Command
) -> None:
    fleet.silent = {"us"}
    fleet.confirm("a\x1b[2Jsia", "acme/other", "019e")
    done = command("suspend", "acme/a", "--wait", "0.05")
    assert (done.exit_code, "confirmed:" in done.stdout) == (5, False)
    assert "UNCONFIRMED: us has not confirmed it; a\\x1b[2Jsia has not confirmed it" in done.stdout
    assert not {"\x1b", "\x9b"} & {*done.output}
    fleet.confirm("us", "acme/a", str(fleet.newest), refused="unknown-key")
    assert "us refuses it: unknown-key" in command("suspend", "acme/a", "--wait", "0.05").stdout


def test_of_several_devices_each_that_is_refused_is_named_and_the_others_are_done(
    fleet: World, command: Command
) -> None:
    done = command("suspend", "acme/a", "acme/nobody", "acme/b", "acme/a")
    assert (done.exit_code, fleet.states["a"], fleet.states["b"]) == (6, "suspended", "suspended"), done.output
    assert "the registry has no device acme/nobody" in done.stderr
    assert "1 refused, 2 done" in done.stderr
    assert command("suspend", "acme/nobody", "acme/none").exit_code == 3


def test_another_change_of_the_same_moment_that_holds_is_said_and_hides_no_missing_region(
    fleet: World, command: Command
) -> None:
    fleet.silent_of = {"acme/b"}
    fleet.before["acme/a"] = lambda: fleet.put(revoke(suspend(active("acme", "a"), change()), change()))
    done = command("suspend", "acme/a", "acme/b", "--wait", "0.05", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, outcomes(done)) == (4, {"a": "superseded", "b": "unconfirmed"}), done.output
    assert "revoked, version 3 by anna" in said["outcomes"]["acme/a"]["why"]
    assert said["outcomes"]["acme/b"]["missing"] == ["eu"]


def test_a_device_that_renews_while_others_are_suspended_keeps_all_its_certificates(
    fleet: World, command: Command
) -> None:
    fleet.before["acme/a"] = lambda: fleet.put(renew(active("acme", "b"), CERTIFICATE, CHANGE))
    assert command("suspend", "acme/a", "acme/b").exit_code == 0
    assert fleet.held()["acme/b"].certificates == (CERTIFICATE,)


def interrupted() -> None:
    raise KeyboardInterrupt


def raises(error: Exception) -> Callable[[], None]:
    def cut() -> None:
        raise error

    return cut


@pytest.mark.parametrize(
    ("cut", "status", "of_b"),
    [
        (raises(RegistryUnreachable("the link is cut")), 1, "refused"),
        (raises(PublicationUnknown("no answer")), 1, "unconfirmed"),
        (interrupted, 130, "unconfirmed"),
    ],
)
def test_what_is_cut_short_says_of_each_device_how_far_it_came(
    fleet: World, command: Command, cut: Callable[[], None], status: int, of_b: str
) -> None:
    fleet.put(active("acme", "c"))
    fleet.before["acme/b"] = cut
    done = command("suspend", "acme/a", "acme/b", "acme/c", "--wait", "0.05", "--json")
    assert (done.exit_code, outcomes(done)) == (status, {"a": "unconfirmed", "b": of_b, "c": "refused"}), done.output
    assert "cut short: 1 published" in json.loads(done.stdout)["why"]


def test_what_a_cluster_refuses_first_is_a_refusal_and_nothing_is_changed(fleet: World, command: Command) -> None:
    fleet.before["acme/a"] = raises(RegistryRefused("the role may not"))
    done = command("suspend", "acme/a", "acme/b")
    assert (done.exit_code, fleet.states["a"]) == (3, "active"), done.output


def test_what_did_not_come_back_is_unconfirmed(fleet: World, command: Command) -> None:
    def lost() -> None:
        fleet.is_lost = True

    fleet.before["acme/a"] = lost
    done = command("suspend", "acme/a", "--json")
    assert (done.exit_code, outcomes(done)) == (5, {"a": "unconfirmed"}), done.output


@pytest.mark.parametrize(
    ("fault", "status"),
    [(ClockDiffers("http://nowhere", 90.0), 3), (ClockUnknown("it is away"), 1), (NotLetIn("it is another's"), 3)],
)
def test_nothing_is_published_by_a_clock_that_is_wrong_or_cannot_be_compared(
    fleet: World, command: Command, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int
) -> None:
    def refuses(*_: object) -> None:
        raise fault

    monkeypatch.setattr("waybill.identity.registry_session.check_clock", refuses)
    before = len(fleet.messages)
    for what in ("suspend", "revoke"):
        done = command(what, "acme/a")
        assert (done.exit_code, str(fault)[:10] in done.stderr) == (status, True), done.output
    assert len(fleet.messages) == before


def test_a_token_that_was_given_out_ends_by_again_alone_and_never_unseen(
    world: World, command: Command, tmp_path: Path
) -> None:
    token, asked = tmp_path / "other.token", ("expect", "acme/bus-1", "--region", "eu")
    world.put(expected())
    refused = command(*asked, "--token-file", token)
    assert (refused.exit_code, token.exists()) == (3, False), refused.output
    assert "it is expected already; waybill device expect --again gives it another claim" in refused.stderr
    done = command(*asked, "--again", "--token-file", token)
    assert (done.exit_code, token.stat().st_mode & 0o777) == (0, 0o600), done.output
    claim = world.held()["acme/bus-1"].claim
    assert claim is not None
    assert token_user(token.read_text().strip()) == f"claim@{claim.id}"
    assert command(*asked, "--again", "--token-file", token).exit_code == 2, "an existing file is never overwritten"


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_token_stays_only_if_its_entry_may_be_published(
    world: World, command: Command, put: Command, tmp_path: Path, is_sent: bool
) -> None:
    world.is_ended = is_sent
    world.before = dict.fromkeys(("acme/bus-1", "acme/bus-2"), raises(PublicationUnknown("no answer")))
    token = tmp_path / "bus.token"
    done = command("expect", "acme/bus-1", "--region", "eu", "--token-file", token)
    assert (done.exit_code, token.exists()) == (1, is_sent), done.output
    done = put(table("bus-2", "expected", region="eu"), "--tokens", tmp_path / "tokens")
    assert (done.exit_code, (tmp_path / "tokens" / "acme" / "bus-2.token").exists()) == (1, is_sent), done.output


def test_a_list_and_a_device_show_state_and_last_change(fleet: World, command: Command) -> None:
    assert "acme/off  suspended  version 2  eu" in command("list", "--tenant", "acme").stdout
    assert {one["device"] for one in json.loads(command("list", "--json").stdout)} == {"a", "b", "off"}
    assert "because" in command("show", "acme/a").stdout
    assert json.loads(command("show", "acme/a", "--json").stdout)["state"] == "active"


def test_an_empty_registry_is_said_to_be_empty(world: World, command: Command) -> None:
    assert "there are devices of: nobody" in command("list").stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("show", "acme/aa"), 3, "waybill device: the registry has no device acme/aa: see `waybill device list`"),
        (("resume", "acme/a"), 3, "resume of acme/a is refused by its entry in the registry: it"),
        (("show", "bus-9"), 2, "write TENANT/DEVICE"),
        (("expect", "acme/bus 9", "--region", "eu", "--by-hand"), 2, "'bus 9' is not a name for a device"),
        (("revoke", "acme/a", "--reason", " "), 2, "the reason is one line"),
        (("revoke", "acme/a", "--reason", "x" * 501), 2, "the reason is one line"),
        (("revoke", "acme/a", "--key", "nowhere.key"), 2, "does not exist"),
        (("list", "--tenant", "acmee"), 0, "no such device is registered; there are devices of: acme"),
        (("expect", "acme/new", "--region", "EU", "--by-hand"), 3, "; a new one is added there; did you mean 'eu'?"),
        (("expect", "zetta/b", "--region", "eu", "--by-hand"), 3, "; a new one is added there; did you mean 'zeta'?"),
        (("revoke", "acma/a"), 3, "there is no tenant 'acma': `tenants` of the settings names acme"),
        (("expect", "acme/n", "--region", "eu", "--token-file", "/nodir/b"), 2, "there is no such file or folder"),
        (("expect", "acme/n", "--region", "eu", "--factory", "token-0123456789abcdef"), 2, "cannot use it"),
        (("expect", "acme/n", "--region", "eu", "--factory", "S", "--by-hand"), 2, "say one of"),
        (("expect", "acme/n", "--region", "eu", "--token-file", "t", "--days", "400"), 2, "--days"),
    ],
)
def test_what_is_wrong_is_said_with_the_value_and_what_to_write(
    fleet: World, command: Command, arguments: tuple[str, ...], status: int, said: str
) -> None:
    before = len(fleet.messages)
    options = arguments[1:]
    if "--reason" in arguments:
        done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "300"})
    else:
        done = command(arguments[0], *options)
    assert (done.exit_code, said in done.stderr) == (status, True), done.output
    assert len(fleet.messages) == before


def test_wrong_settings_and_a_token_that_has_ended_are_named(
    fleet: World, command: Command, config: Path, tmp_path: Path
) -> None:
    right = config.read_text()
    config.write_text(right + f'[access]\ntoken_file = "{tmp_path}/nope.token"\n')
    done = command("list")
    assert (done.exit_code, f"{tmp_path}/nope.token" in done.stderr) == (78, True), done.stderr
    token = token_file(tmp_path, "fleet-operator", ends_in_s=-86_400)
    config.write_text(right + f'[access]\ntoken_file = "{token}"\n')
    done = command("suspend", "acme/a", "--json")
    assert (done.exit_code, json.loads(done.stdout)["result"]) == (3, "refused")
    assert f"token of fleet-operator in {token} ended at" in json.loads(done.stdout)["why"]
    config.write_text("wrong = 1\n")
    done = command("suspend", "acme/a", "--json")
    assert (done.exit_code, json.loads(done.stdout)["result"]) == (78, "wrong-settings")


def test_a_step_is_shown_once_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with shows_progress() as shown:
        for count in (1, 2, 3_000):
            shown("reading the registry", count)
    assert capsys.readouterr().err == "waybill device: reading the registry: 1 ...\n"
