"""What becomes of each of many devices: the commands on a registry and regions in memory, where anything may happen."""

# ruff: noqa: F811 - a fixture is asked for by its name

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.identity.registry_strategies import CERTIFICATE, CHANGE, MOMENT, active, change, expected
from tests.identity.registry_world import Command, World, command, outcomes, put, world  # noqa: F401 - fixtures
from tests.identity.test_device_files_cli import table
from tests.identity.test_registry_session import Reader
from waybill.identity import registry_session
from waybill.identity.publication_id import PROPERTY, next_publication_id
from waybill.identity.registry import DeviceEntry, DeviceState, enrol, renew, resume, revoke, suspend
from waybill.identity.registry_messages import entry_body
from waybill.identity.registry_topic import PublicationUnknown, RegistryRefused, RegistryUnreachable
from waybill.pulsar.compacted_topic import TopicMessage

LATER = CERTIFICATE.model_copy(update={"serial": "abc2", "not_after": MOMENT.replace(year=2030)})


def test_of_many_devices_only_the_one_that_is_outranked_is_called_so(world: World, put: Command) -> None:
    names = ["a1", "a2", "a3"]
    for name in names:
        world.put(active("acme", name))
    again = resume(suspend(active("acme", "a2"), change()), change())
    text = "".join(table(name, "suspended") for name in names)
    world.before["acme/a2"] = lambda: world.put(again)
    done = put(text)
    marked = [line.partition(":")[0] for line in done.stdout.splitlines() if "OUTRANKED" in line]
    assert (done.exit_code, marked) == (4, ["acme/a2"]), done.output
    assert "another change of the same moment holds: active, version 3 by anna" in done.stdout
    assert "1 of 3 not known to hold" in done.stderr


def test_an_outranked_device_hides_no_region_that_is_missing_of_another(world: World, command: Command) -> None:
    for name in ("z1", "z2"):
        world.put(active("acme", name))
    world.silent = {"us"}
    world.before["acme/z1"] = lambda: world.put(resume(suspend(active("acme", "z1"), change()), change()))
    arguments = ("acme/z1", "acme/z2", "acme/nobody", "--wait", "0.05")
    done = command("suspend", *arguments, "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["result"], said["missing"]) == (4, "outranked", ["us"]), done.output
    assert outcomes(done) == {"z1": "outranked", "z2": "not-confirmed"}
    assert said["outcomes"]["acme/z2"]["missing"] == ["us"]
    assert [one["device"] for one in said["refused"]] == ["acme/nobody"]
    assert "us has not confirmed it (acme/z2)" in said["why"]


def test_the_one_device_that_a_region_has_not_confirmed_is_named(world: World, put: Command) -> None:
    names = [f"k{number}" for number in range(30)]
    for name in names:
        world.put(active("acme", name))
    world.silent_of = {"acme/k17"}
    done = put("".join(table(name, "revoked") for name in names))
    marked = [line.partition(":")[0] for line in done.stdout.splitlines() if "NOT CONFIRMED" in line]
    assert (done.exit_code, marked) == (5, ["acme/k17"]), done.output
    assert "in force in us alone after 0.05 s: eu has not confirmed it (1 of 30: acme/k17)" in done.stderr


def test_the_same_file_once_more_does_not_say_that_all_is_well_while_a_region_has_not_confirmed(
    world: World, put: Command
) -> None:
    world.put(active("acme", "bus-1"))
    world.silent = {"us"}
    stolen = table("bus-1", "revoked")
    for _ in range(2):
        done = put(stolen)
        assert (done.exit_code, "us has not confirmed it" in done.stderr) == (5, True), done.output
    assert "acme/bus-1:  NOT CONFIRMED: us has not confirmed it" in done.stdout
    assert (outcomes(put(stolen, "--json")), put(stolen, "--wait", "0").exit_code) == ({"bus-1": "not-confirmed"}, 0)
    world.confirm("us", "acme/bus-1", str(world.newest))
    done = put(stolen)
    assert (done.exit_code, "confirmed: eu, us" in done.stdout) == (0, True), done.output
    assert json.loads(put(stolen, "--json").stdout)["result"] == "done"


def test_the_same_revocation_once_more_says_whether_it_is_in_force_by_now(world: World, command: Command) -> None:
    world.put(active("acme", "bus-1"))
    world.silent = {"us"}
    stolen = ("revoke", "acme/bus-1", "--wait", "0.05")
    for _ in range(2):
        done = command(*stolen)
        assert (done.exit_code, "us has not confirmed it" in done.stderr) == (5, True), done.output
    world.confirm("us", "acme/bus-1", str(world.newest))
    done = command(*stolen)
    assert (done.exit_code, "it is revoked for good" in done.stderr) == (3, True), done.output
    assert "confirmed: eu, us" in done.stdout


def test_of_what_was_published_long_ago_no_region_is_asked(world: World, put: Command) -> None:
    old = next_publication_id(None, round((time.time() - 2 * 86_400) * 1000), 7)
    entry = revoke(active("acme", "bus-1"), change())
    world.messages.append(TopicMessage(entry.name, entry_body(entry), {PROPERTY: old}, 0))
    done = put(table("bus-1", "revoked"), "--json")
    assert (done.exit_code, outcomes(done)) == (0, {"bus-1": "as-it-is"}), done.output


CUTS = {
    "not sent": (RegistryUnreachable("the link is cut"), "not-published"),
    "no answer": (PublicationUnknown("whether acme/c15 is published is not known"), "unknown"),
}


@pytest.mark.parametrize(("error", "became"), CUTS.values(), ids=CUTS)
def test_a_put_that_is_cut_short_says_of_each_device_how_far_it_came_and_the_next_one_asks_about_all(
    world: World, put: Command, error: Exception, became: str
) -> None:
    names = [f"c{number:02}" for number in range(20)]
    for name in names:
        world.put(active("acme", name))
    text = "".join(table(name, "revoked") for name in names)

    def cut() -> None:
        raise error

    world.silent, world.before["acme/c15"] = {"us"}, cut
    done = put(text, "--json")
    said = outcomes(done)
    assert (done.exit_code, [*said.values()]) == (75, [*["published"] * 15, became, *["not-published"] * 4]), (
        done.output
    )
    assert len(json.loads(done.stdout)["devices"]) == 15
    world.silent = set()
    done = put(text, "--json")
    assert (done.exit_code, [*outcomes(done).values()].count("not-confirmed")) == (5, 15), done.output


def test_of_names_that_are_cut_short_the_refused_ones_are_still_there(world: World, command: Command) -> None:
    for name in "pq":
        world.put(active("acme", name))

    def cut() -> None:
        raise RegistryUnreachable("the link is cut")

    for at in ("acme/p", "acme/q"):
        world.before = {at: cut}
        done = command("suspend", "acme/p", "acme/q", "acme/unknown", "--json")
        said = json.loads(done.stdout)
        assert (done.exit_code, said["result"], len(said["refused"])) == (1, "unreachable", 1), done.output


def test_a_device_that_is_enrolled_while_others_are_published_keeps_its_certificate(world: World, put: Command) -> None:
    world.put(active("acme", "r0"))
    world.put(expected("acme", "r1"))
    world.before["acme/r0"] = lambda: world.put(enrol(expected("acme", "r1"), CERTIFICATE, CHANGE))
    assert put(table("r0", "suspended") + table("r1", "suspended")).exit_code == 0
    held = {one.key: one for one in world.messages}["acme/r1"]
    found = DeviceEntry.model_validate_json(held.body)
    assert (found.state, found.version, found.certificates) == (DeviceState.SUSPENDED, 3, (CERTIFICATE,))


def test_a_stolen_device_that_renews_while_others_are_revoked_is_revoked_with_all_its_certificates(
    world: World, command: Command
) -> None:
    enrolled = enrol(expected("acme", "r1"), CERTIFICATE, CHANGE)
    world.put(active("acme", "r0"))
    world.put(enrolled)
    world.before["acme/r0"] = lambda: world.put(renew(enrolled, LATER, change()))
    assert command("revoke", "acme/r0", "acme/r1").exit_code == 0
    found = DeviceEntry.model_validate_json({one.key: one for one in world.messages}["acme/r1"].body)
    assert (found.state, found.version, LATER in found.certificates) == (DeviceState.REVOKED, 4, True)


def test_what_changed_meanwhile_is_refused_by_its_name_and_its_token_does_not_stay(
    world: World, put: Command, tmp_path: Path
) -> None:
    world.put(active("acme", "r0"))
    world.put(suspend(active("acme", "r1"), change()))

    def meanwhile() -> None:
        world.put(expected("acme", "new"))
        world.put(suspend(resume(suspend(active("acme", "r1"), change()), change()), change()))

    world.before["acme/r0"] = meanwhile
    text = table("r0", "suspended") + table("r1", "active", resumes=2)
    done = put(text + table("new", "expected", region="eu"), "--tokens", tmp_path / "tokens", "--json")
    assert (done.exit_code, outcomes(done)) == (6, {"r0": "confirmed", "r1": "refused", "new": "refused"}), done.output
    assert world.held()["acme/r1"] is DeviceState.SUSPENDED
    assert "it is suspended, version 4 by anna" in json.loads(done.stdout)["refused"][0]["why"]
    assert not [*tmp_path.rglob("*.token")]


def test_the_first_of_many_that_a_cluster_refuses_is_a_refusal_and_nothing_is_changed(
    world: World, put: Command, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise RegistryRefused("no right")

    world.before["acme/new"] = refuse
    done = put(table("new", "expected", region="eu"), "--tokens", tmp_path / "tokens")
    assert (done.exit_code, world.messages, [*tmp_path.rglob("*.token")]) == (3, [], []), done.output


def test_a_publication_that_was_outranked_is_no_change_in_the_history(world: World, command: Command) -> None:
    world.put(active("acme", "bus-1"))
    world.before["acme/bus-1"] = lambda: world.put(resume(suspend(active("acme", "bus-1"), change()), change()))
    assert command("suspend", "acme/bus-1").exit_code == 4
    marked = ["OUTRANKED: " in line for line in command("history", "acme/bus-1").stdout.splitlines()]
    assert marked == [False, False, False, True]
    history = json.loads(command("history", "acme/bus-1", "--json").stdout)["history"]
    assert [one["outranked"] for one in history] == [False, False, True]


def test_what_did_not_come_back_is_unknown(world: World, put: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(active("acme", "bus-1"))
    monkeypatch.setattr(registry_session, "_SILENCE_S", 0.05)
    world.before["acme/bus-1"] = lambda: monkeypatch.setattr(Reader, "hear", lambda *_: None)
    done = put(table("bus-1", "revoked"), "--json")
    assert (done.exit_code, outcomes(done)) == (4, {"bus-1": "unknown"}), done.output


def test_a_device_whose_entry_is_not_taken_here_is_not_taken_for_an_unknown_one(
    world: World, put: Command, command: Command, tmp_path: Path
) -> None:
    ahead = next_publication_id(None, round((time.time() + 3600) * 1000), 7)
    world.put(active("acme", "bus-2"))
    entry = active("acme", "bus-1")
    world.messages.append(TopicMessage(entry.name, entry_body(entry), {PROPERTY: ahead}, 0))
    done = command("revoke", "acme/bus-1")
    assert (done.exit_code, "did you mean" in done.stderr) == (3, False), done.output
    assert "acme/bus-1: it is not known here, and may be elsewhere: the registry's message" in done.stderr
    for text in (table("bus-1", "revoked"), table("bus-1", "expected", region="eu")):
        done = put(text, "--tokens", tmp_path / "tokens", "--json")
        said = json.loads(done.stdout)
        assert (done.exit_code, said["faults"][0]["fault"], len(world.messages)) == (1, "not-taken", 2), done.output
    # once our clock has come so far, or the key is trusted, it is known
    world.messages.insert(0, TopicMessage(entry.name, entry_body(entry), {PROPERTY: str(world.newest)}, 0))
    assert command("revoke", "acme/bus-1").exit_code == 0
