"""What a canary says: red wins, green is said of what is known alone, and its metrics say the same."""

from io import StringIO
from math import isnan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from deploy.local import free_port
from gateway.canary.cli import app
from gateway.canary.config import Hop
from gateway.canary.ledger import HopColour
from gateway.canary.status import CanaryStatus, HopStatus, status_table
from gateway.canary.watch import CanaryWatch
from tests.gateway.canary.canaries import CANARY_FILE, canary_settings
from waybill.daemon.status_server import StatusServer, json_answer


def status(*colours: HopColour, reason: str = "") -> CanaryStatus:
    """One in which each hop has its colour; the last colour is that of all that follow."""
    of = [*colours, *[colours[-1]] * (len(Hop) - len(colours))]
    hops = tuple(HopStatus(hop=hop, colour=colour, reason=reason) for hop, colour in zip(Hop, of, strict=True))
    return CanaryStatus(region="eu", device="canary/canary-eu", asked_s=0.0, sent=0, not_sent="", hops=hops)


def shown(table: Table) -> str:
    out = StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


@given(st.lists(st.sampled_from(HopColour), min_size=len(Hop), max_size=len(Hop)))
def test_a_canary_is_healthy_only_if_each_watched_hop_is_green(colours: list[HopColour]) -> None:
    # one that watches nothing says nothing
    seen = {*colours} - {HopColour.NOT_WATCHED} or {HopColour.UNKNOWN}
    wanted = False if HopColour.RED in seen else None if HopColour.UNKNOWN in seen else True
    assert status(*colours).healthy is wanted


def test_what_the_settings_leave_out_makes_nothing_unknown_and_nothing_green() -> None:
    unwatched = status(HopColour.NOT_WATCHED)
    green = status(HopColour.GREEN)
    assert unwatched.healthy is None
    assert green.model_copy(update={"hops": (*green.hops[:5], *unwatched.hops[5:])}).healthy is True


def test_where_no_canary_answers_nothing_is_known(tmp_path: Path) -> None:
    file = tmp_path / "canary.toml"
    file.write_text(f"{CANARY_FILE}[status]\nport = {free_port()}\n")
    done = CliRunner().invoke(app, ["status", "--config", str(file)])
    assert (done.exit_code, "no canary answers at http://127.0.0.1:" in done.output) == (3, True)
    assert "Connection refused; is it running with this file?" in " ".join(done.output.split())
    assert "Errno" not in done.output


def canary_file(folder: Path, name: str, port: int, device: str = "canary-eu", region: str = "eu") -> str:
    file = folder / f"{name}.toml"
    text = CANARY_FILE.replace('"canary-eu"', f'"{device}"').replace('"eu"', f'"{region}"')
    file.write_text(f"{text}[status]\nport = {port}\n")
    return str(file)


def says(one: CanaryStatus) -> StatusServer:
    return StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer(one.model_dump_json())})


@pytest.mark.parametrize(("colour", "code"), [(HopColour.GREEN, 0), (HopColour.RED, 1), (HopColour.UNKNOWN, 3)])
def test_the_exit_status_is_that_of_the_hops(tmp_path: Path, colour: HopColour, code: int) -> None:
    with says(status(colour)) as answering:
        file = canary_file(tmp_path, "eu", answering.port)
        assert CliRunner().invoke(app, ["status", "-c", file]).exit_code == code
        done = CliRunner().invoke(app, ["status", "-c", file, "--json"])
    assert (done.exit_code, CanaryStatus.model_validate_json(done.stdout, strict=False)) == (code, status(colour))


def test_the_green_of_another_canary_at_the_same_port_is_not_shown_as_ones_own(tmp_path: Path) -> None:
    with says(status(HopColour.GREEN)) as answering:
        file = canary_file(tmp_path, "us", answering.port, device="canary-us", region="us")
        done = CliRunner().invoke(app, ["status", "-c", file])
    assert done.exit_code == 3
    assert "is canary canary/canary-eu of region eu, not canary canary/canary-us of region us" in done.output
    assert "its own status.port" in done.output


@pytest.mark.parametrize("arrives_s", [2.0, 1_000.0])
def test_a_probe_that_comes_through_is_green_and_one_that_does_not_is_red(tmp_path: Path, arrives_s: float) -> None:
    now = [1_000_000_000.0]
    watch = CanaryWatch(canary_settings(tmp_path), lambda: now[0])
    number = watch.script.number_at(round(now[0] * 1000))
    watch.send(number)
    now[0] = watch.script.begins_ms(number) / 1000 + watch.script.driven_ms / 1000 + arrives_s
    for hop, items in watch.script.items(number).items():
        watch.show(number, hop, items)
    watch.update_metrics()
    said, text = watch.status(), shown(status_table(watch.status()))
    healthy = watch.metrics.registry.get_sample_value("waybill_canary_healthy", {"hop": "region"})
    level = watch.metrics.registry.get_sample_value("waybill_canary_service_level_ratio", {"hop": "region"})
    if arrives_s < 10:
        assert (said.healthy, healthy, level) == (True, 1.0, 1.0)
        assert "100 %" in text
    else:
        assert (said.healthy, healthy, level) == (False, 0.0, 0.0)
        assert said.of(HopColour.RED)[0] is Hop.REGION
    assert CanaryStatus.model_validate_json(said.model_dump_json(), strict=False) == said


def test_a_canary_that_has_seen_nothing_yet_does_not_say_that_it_is_healthy(tmp_path: Path) -> None:
    now = [1_000_000_000.0]
    watch = CanaryWatch(canary_settings(tmp_path, watched=["region"]), lambda: now[0])
    assert (watch.status().healthy, watch.status().hops[0].reason) == (None, "no probe was sent yet")
    number = watch.script.number_at(round(now[0] * 1000))
    watch.send(number)
    now[0] += watch.script.driven_ms / 1000
    watch.show(number, Hop.REGION, watch.script.items(number)[Hop.REGION])
    assert watch.status().healthy is True
    now[0] += 1_000
    assert watch.status().healthy is None, "it drives no more"


def test_metrics_of_a_canary_that_sent_nothing_are_unknown_and_those_of_unwatched_hops_are_not_there(
    tmp_path: Path,
) -> None:
    watch = CanaryWatch(canary_settings(tmp_path, watched=["region", "table"]))
    watch.update_metrics()
    values = {hop: watch.metrics.registry.get_sample_value("waybill_canary_healthy", {"hop": hop.value}) for hop in Hop}
    assert {hop for hop, value in values.items() if value is not None and isnan(value)} == {Hop.REGION, Hop.TABLE}
    assert {hop for hop, value in values.items() if value is None} == set(Hop) - {Hop.REGION, Hop.TABLE}
