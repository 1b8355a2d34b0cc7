"""Health says *fine* only of what was asked and is fine: each test tries to make it say so wrongly."""

import ast
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.status import facts
from cloud_jobs.status.facts import MaintenanceStatus
from console.app import make_app
from console.context import Console, Query, Viewer
from console.errors import NotThere
from console.health.bounded import Answer, BoundedReads
from console.health.canaries import HOPS, CanaryPlace, state_of
from console.health.centre import CentreAnswers, checks_of_centre
from console.health.checks import BILL_COLUMNS, Check, Health, Outcome, bill_states, runbook_step
from console.health.running import check_canary, check_registered, link_lags
from console.page import as_json
from console.pages import health as pages
from gateway.canary.config import Hop
from gateway.canary.ledger import HopColour
from gateway.canary.status import CanaryStatus, HopStatus
from geo.replication.verification import LinkState, Observation
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, address, document
from tests.console.conftest import NOW, console_of
from tests.system.lake_of_fixes import LakeFix, derive, ingest, lake_of, square
from waybill.commands import SUBCOMMANDS, command_line
from waybill.daemon.stack_daemons import DaemonStatus
from waybill.daemon.stack_folder import MARK, Registration, registered
from waybill.daemon.status_server import StatusServer, json_answer

FINE, WRONG, UNKNOWN = Outcome


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    Lake(tmp_path / "lake").create()
    return tmp_path / "lake"


def console_now(lake: Path) -> Console:
    return Console(console_of(lake).settings)


def checks_of(console: Any) -> dict[str, Check]:
    return {one.id: one for one in console.health.read().checks}


@contextmanager
def silent_server() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    routes = {f"/{path}": (lambda body=body: json_answer(json.dumps(body))) for path, body in answers.items()}
    server = StatusServer("127.0.0.1", 0, routes)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()


# The headline.


def test_the_headline_is_fine_only_if_everything_is():
    def outcome(*outcomes: Outcome) -> Outcome:
        return Health(NOW, tuple(Check(f"{at}", "", one, "") for at, one in enumerate(outcomes))).outcome

    assert [outcome(FINE, FINE), outcome(FINE, UNKNOWN), outcome(UNKNOWN, WRONG), outcome()] == [
        *(FINE, UNKNOWN, WRONG, UNKNOWN)
    ]


def test_each_section_of_a_runbook_that_a_check_names_is_there():
    sources = [*(Path(pages.__file__).parents[1] / "health").glob("*.py"), Path(facts.__file__)]
    named = set[str]()
    for node in (node for file in sources for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        named |= {text} if re.fullmatch(r"\w+\.md#Waybill\w+", text) else set()
    assert len(named) > 25
    assert [one for one in sorted(named) if runbook_step(one) is None] == []


# The lake.


def test_an_empty_lake_whose_cluster_is_down_is_unknown_and_costs_no_time(lake):
    begun = time.monotonic()
    console = console_now(lake)
    found = checks_of(console)
    assert time.monotonic() - begun < 5
    assert {found[name].outcome for name in ("backlog", "links")} == {UNKNOWN}
    assert console.health.read().outcome is UNKNOWN
    assert found["backlog"].affects is None


@pytest.mark.parametrize("table", ["usage", "closings", "geofence_events", "quarantine"])
def test_a_missing_table_is_wrong_and_what_reads_it_is_not_fine(lake, table):
    (lake / table).rename(lake / f"{table}-gone")
    found = checks_of(console_now(lake))
    assert found["tables"].outcome is WRONG
    assert found["tables"].found.startswith(f"table {table} cannot be read")
    reader = {"closings": "bills"}.get(table, table)
    assert found[reader].outcome is UNKNOWN


def test_events_that_were_never_computed_are_not_left_out_if_there_are_fences(tmp_path):
    made = lake_of(tmp_path / "lake", [square("ring")])
    assert "geofence_events" not in checks_of(console_now(tmp_path / "lake"))
    ingest(made, [LakeFix("v1", 1, NOW, 1.0, 1.0)])
    found = checks_of(console_now(tmp_path / "lake"))["geofence_events"]
    assert (found.outcome, "has never run" in found.found) == (UNKNOWN, True)
    derive(made, "geofence_events")
    assert "has never run" not in checks_of(console_now(tmp_path / "lake"))["geofence_events"].found


def test_without_a_lake_nothing_of_it_is_fine(tmp_path):
    found = checks_of(console_now(tmp_path / "nowhere"))
    assert found["tables"].outcome is WRONG
    assert {one.id for one in found.values() if one.outcome is FINE} <= {"token"}


def test_a_missing_file_of_a_table_is_wrong(page_lake, tmp_path):
    console = console_of(page_lake)
    status = console.health.reads.ask({"lake": console.health._lake_reader.read}, 30)["lake"].get()
    assert {one.missing_files for one in status.tables} == {0}
    damaged = tuple(replace(one, missing_files=3) if one.table == "usage" else one for one in status.tables)
    status = replace(status, tables=damaged, maintenance=MaintenanceStatus(errors=("usage: it hangs",), ended_at=NOW))
    checks = checks_of_centre(
        CentreAnswers(Answer(status), status, Answer((0, None))), console.settings, Answer(error="not read")
    )
    found = {one.id: one for one in checks if isinstance(one, Check)}
    assert (found["tables"].outcome, found["maintenance"].outcome) == (WRONG, WRONG)
    assert "usage" in found["tables"].found
    assert found["maintenance"].since == NOW


def test_a_damaged_note_of_topics_that_are_left_out_is_not_fine(lake):
    console = console_now(lake)
    console.settings.checkpoints.mkdir()
    console.settings.left_out_file.write_text("{")
    assert checks_of(console)["left_out"].outcome is UNKNOWN


# Clusters.


def test_a_cluster_that_accepts_and_never_answers_costs_two_seconds_and_is_unknown(lake):
    with silent_server() as where:
        console = console_now(lake)
        cluster = console.settings.clusters[0].model_copy(update={"admin_url": f"http://{where}"})
        console.health.settings = console.settings.model_copy(update={"clusters": (cluster,)})
        begun = time.monotonic()
        found = checks_of(console)
        first_s = time.monotonic() - begun
        assert first_s < 4
        assert {found[name].outcome for name in ("backlog", "links")} == {UNKNOWN}
        assert "no answer within 2 s" in found["backlog"].found


def test_a_cluster_without_the_subscription_is_not_fine(lake):
    with address() as admin:
        assert isinstance(admin, FakeAdmin)
        stats = {"subscriptions": {}, "replication": {"eu": {"connected": True, "replicationBacklog": 0}}}
        admin.says = lambda path: document({"partitions": 0} if path.endswith("/partitions") else stats)
        console = console_now(lake)
        cluster = console.settings.clusters[0].model_copy(update={"admin_url": admin.url})
        console.health.settings = console.settings.model_copy(update={"clusters": (cluster,)})
        assert checks_of(console)["backlog"].outcome is UNKNOWN


def test_a_faulty_topology_and_a_silent_region_are_unknown(lake):
    console = console_now(lake)
    console.health.folder = lake.parent
    (lake.parent / "topology.toml").write_text("centre = 3")
    assert checks_of(console)["replication"].outcome is UNKNOWN
    link = LinkState(
        namespace="a/b", source="eu", target="hq", connected=False, backlog=None, delay_s=None, problem="?"
    )
    down = link.model_copy(update={"source": "us", "backlog": 4, "delay_s": 7.0})
    lags = link_lags(Observation(links=(link, down), cursors=(), unreachable={"eu": "refused"}))
    assert [(one.source, one.connected, one.backlog) for one in lags] == [("eu", None, None), ("us", False, 4)]


# Bounded reads.


def test_a_read_that_hangs_is_asked_once_and_an_answer_is_kept():
    clock, asked = SimpleNamespace(s=0.0), []
    reads = BoundedReads(kept_s=5, clock=lambda: clock.s)
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(20)

        def hang() -> None:
            asked.append("hang")
            one.recv(1)

        for _ in range(3):
            answers = reads.ask({"hang": hang, "quick": lambda: asked.append("quick")}, wait_s=0.05)
            assert answers["hang"].error
            assert not answers["quick"].error
        assert sorted(asked) == ["hang", "quick"]
        clock.s = 6
        reads.ask({"quick": lambda: asked.append("quick")}, wait_s=5)
        assert asked.count("quick") == 2


def test_a_read_that_fails_in_any_way_has_no_answer():
    assert BoundedReads().ask({"one": lambda: 1 / 0})["one"].error == "division by zero"


# Bills.


def closing(payer: str, number: int, outcome: str, *, month: int = 1) -> dict[str, Any]:
    return {
        "legal_entity": "seller",
        "payer": payer,
        "first_day": date(2025, month, 1),
        "last_day": date(2025, month, 31 if month == 1 else 28),
        "number": number,
        "outcome": outcome,
        "reasons": '["fleet/us-0009: never sent a statement"]',
        "period_end": datetime(2025, month, 28, 23, tzinfo=UTC),
    }


def test_only_the_newest_closing_of_a_past_period_counts():
    rows = [
        closing("acme", 1, "provisional"),
        closing("acme", 2, "final"),
        closing("kaze", 3, "final", month=2),
        closing("kaze", 4, "blocked", month=2),
        closing("canary-eu", 1, "provisional"),
    ]
    schema = pa.schema([TABLES["closings"].schema.field(name) for name in BILL_COLUMNS])
    bills = bill_states(pa.Table.from_pylist(rows, schema=schema), NOW)
    assert bills.final == ("2025-01",)
    assert [(period, payer) for period, payer, _, _ in bills.waiting] == [("2025-02", "kaze")]
    assert "2025-01 are not affected" in bills.kept


# Canaries.

PLACE = CanaryPlace("127.0.0.1:9479", "eu", "canary/canary-eu", "canary.toml")


def canary(**changed: Any) -> dict[str, Any]:
    hops = [{"hop": name, "colour": "green"} for name in HOPS]
    said = {"region": "eu", "device": "canary/canary-eu", "asked_s": NOW.timestamp(), "sent": 90, "not_sent": ""}
    return {**said, "hops": hops, **changed}


def test_a_canary_with_green_hops_is_fine():
    assert check_canary(state_of(PLACE, Answer(canary()), NOW)).outcome is FINE


@pytest.mark.parametrize(
    "damage",
    [
        {"hops": [{"hop": "region", "colour": "green"}]},
        {"hops": []},
        {"hops": "green"},
        {"hops": [{"hop": name, "colour": "GREEN"} for name in HOPS]},
        {"hops": [{"hop": name, "colour": "not watched"} for name in HOPS]},
        {"asked_s": NOW.timestamp() - 3600},
        {"asked_s": 1e300},
        {"asked_s": float("nan")},
        {"region": "us"},
        {"device": "canary/another"},
        {"region": None},
    ],
)
def test_a_damaged_old_or_foreign_status_of_a_canary_is_unknown(damage):
    state = state_of(PLACE, Answer(canary(**damage)), NOW)
    assert check_canary(state).outcome is UNKNOWN
    assert "red" not in state.colours


def test_the_status_that_the_canary_program_serves_is_read_whole():
    colours = dict(zip(Hop, (*HopColour, *HopColour), strict=False))
    hops = tuple(HopStatus(hop=hop, colour=colour) for hop, colour in colours.items())
    asked = {"region": "eu", "device": "canary/canary-eu", "asked_s": NOW.timestamp(), "sent": 3, "not_sent": ""}
    said = json.loads(CanaryStatus(**asked, hops=hops).model_dump_json())
    state = state_of(PLACE, Answer(said), NOW)
    assert {hop: state.hop(hop.value).colour for hop in Hop} == {hop: one.value for hop, one in colours.items()}
    assert {*HOPS} == {one.value for one in Hop}


def test_a_red_hop_is_wrong_even_if_others_are_unknown():
    hops = [{"hop": "region", "colour": "green"}, {"hop": "rated", "colour": "red", "reason": "an amount is wrong"}]
    check = check_canary(state_of(PLACE, Answer(canary(hops=hops)), NOW))
    assert (check.outcome, check.found) == (WRONG, "rated: an amount is wrong")
    assert "issue no invoice" in (check.affects or "")


def test_each_region_without_a_canary_that_answers_is_unknown(lake):
    console = console_now(lake)
    said = canary(asked_s=time.time(), device="canary/canary-eu")
    with serving({"status": said}) as where, silent_server() as silent:
        console.health.settings = console.settings.model_copy(
            update={"console": console.settings.console.model_copy(update={"daemons": (where, silent)})}
        )
        page = pages.canaries_page(console, Query())
    rows = {row["region"]: row for row in page.tables[0].rows}
    assert {row["region"]: row["hop_rated"] for row in page.tables[0].rows} == {"eu": "green", "us": "unknown"}
    assert rows["us"]["device"] is None
    assert {fact.key: fact.value for fact in page.facts} == {"regions": 2, "red": 0, "unknown": 1}


# Daemons.


def test_a_daemon_is_fine_only_by_its_own_word(tmp_path):
    one = Registration("fleet-gateway run", str(tmp_path / "g.toml"), 3, "127.0.0.1:1", is_running=True)

    def outcome(state: Any) -> Outcome:
        said = DaemonStatus(program=one.program, config=one.config, state=state, pid=3)
        return check_registered(one, Answer(error="not read"), Answer(said)).outcome

    assert [outcome(one) for one in ("healthy", "unknown", "not healthy", "no answer", "ended")] == [
        *(FINE, UNKNOWN, WRONG, WRONG, WRONG)
    ]
    silent = check_registered(one, Answer(error="not read"), Answer(error="no answer within 2 s"))
    assert silent.outcome is UNKNOWN


def test_daemons_of_a_stack_are_asked_and_one_that_was_killed_is_wrong(lake):
    folder = lake.parent
    (folder / MARK).touch()
    for name in ("cloud.toml", "gateway-eu.toml"):
        (folder / name).touch()
    console = console_now(lake)
    console.health.folder = folder
    killed = {"program": "edge-agent run", "config": str(folder / "a.toml"), "pid": 1, "status": ""}
    with (
        serving({"health": {"healthy": True}}) as where,
        registered("fleet-gateway run", folder / "gateway-eu.toml", "127.0.0.1", int(where.rpartition(":")[2])),
        registered("cloud-jobs ingest", folder / "cloud.toml"),
    ):
        (folder / "daemons" / "edge-agent@a.json").write_text(json.dumps(killed))
        (folder / "daemons" / "damaged.json").write_text("{")
        health = console.health.read()
    found = {one.title: one.outcome for one in health.checks if one.title.startswith("Daemon")}
    assert found == {"Daemon fleet-gateway run gateway-eu.toml": FINE, "Daemon edge-agent run a.toml": WRONG}
    assert any("cloud-jobs ingest" in one for one in health.not_checked)


# The page and the command.


def test_the_page_has_every_check_once_and_only_for_those_who_see_everything(lake):
    console = console_now(lake)
    health = console.health.read()
    page = as_json(pages.health_page(health))
    listed = [row["id"] for name in ("attention", "fine") for row in page["tables"][name]["rows"]]
    assert sorted(listed) == sorted(one.id for one in health.checks)
    assert page["facts"]["outcome"] == "unknown"
    customer = Query(Viewer("customer", tenants=frozenset({"fleet"})))
    for view in (pages.page, pages.canaries_page):
        with pytest.raises(NotThere):
            view(console, customer)
    assert make_app(console)


def test_the_command_ends_with_three_while_something_is_unknown(lake):
    config = lake.parent / "cloud.toml"
    config.write_text(
        f'lake = "{lake}"\ncheckpoints = "{lake.parent}/checkpoints"\nreference = {{ unsigned = true }}\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
    )
    app = command_line(SUBCOMMANDS, ["health"], "Waybill.")
    shown = CliRunner().invoke(app, ["health", "--config", str(config)])
    assert shown.exit_code == 3
    assert "unknown Ingest: the backlog" in shown.output
    (lake / "usage").rename(lake / "gone")
    answer = CliRunner().invoke(app, ["health", "--config", str(config), "--json"])
    assert answer.exit_code == 1
    assert json.loads(answer.output)["facts"]["outcome"] == "wrong"
