"""What a canary says: red wins, green is said of what is known alone, and its metrics say the same."""

from __future__ import annotations

from io import StringIO
from math import isnan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from deploy.canary.cli import app
from deploy.canary.hops import Hop
from deploy.canary.ledger import NOT_WATCHED
from deploy.canary.probe_at_hop import HopColour
from deploy.canary.status import CanaryStatus, HopStatus, exit_status, regions_table, status_table
from deploy.canary.watch import CanaryWatch
from deploy.local import free_port
from tests.deploy.canary.canaries import canary_settings


def status(*colours: HopColour, reason: str = "") -> CanaryStatus:
    """One in which each hop has its colour; the last colour is that of all that follow."""
    of = [*colours, *[colours[-1]] * (len(Hop) - len(colours))]
    hops = (
        HopStatus(
            hop=hop, colour=colour, reason=reason, p50_s=None, p99_s=None, level=None,
            consumed=0, delayed=0, lost=0, doubled=0, wrong=0, repeated=0,
        )
        for hop, colour in zip(Hop, of, strict=True)
    )  # fmt: skip
    return CanaryStatus(region="eu", device="canary/canary-eu", asked_s=0.0, not_sent="", hops=tuple(hops))


def shown(table: Table) -> str:
    out = StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


COLOURS = st.lists(st.sampled_from(HopColour), min_size=len(Hop), max_size=len(Hop))


@given(st.lists(st.none() | COLOURS, min_size=1, max_size=4))
def test_the_exit_status_is_0_only_if_each_hop_of_each_region_is_green(of: list[list[HopColour] | None]) -> None:
    found = exit_status([None if one is None else status(*one) for one in of])
    seen = {colour for one in of for colour in (one or [HopColour.UNKNOWN])}
    assert found == (1 if HopColour.RED in seen else 3 if HopColour.UNKNOWN in seen else 0)


def test_what_the_settings_leave_out_makes_nothing_unknown_and_nothing_green() -> None:
    unwatched = status(HopColour.UNKNOWN, reason=NOT_WATCHED)
    green = status(HopColour.GREEN)
    assert unwatched.is_healthy is None
    assert green.model_copy(update={"hops": (*green.hops[:5], *unwatched.hops[5:])}).is_healthy is True


def test_a_table_has_the_hops_of_each_region() -> None:
    text = shown(regions_table({"eu": status(HopColour.GREEN, HopColour.RED), "us": None}))
    assert all(word in text for word in ("eu", "us", "region", "rated", "green", "red", "no canary"))


def test_where_no_canary_answers_nothing_is_known(tmp_path: Path) -> None:
    file = tmp_path / "canary.toml"
    file.write_text(f"""region = "eu"
device = "canary-eu"
watched = ["acknowledged"]
[script]
latitude = 54.6
longitude = 4.2
[[agent.uplinks]]
region = "eu"
host = "127.0.0.1"
[status]
port = {free_port()}
""")
    done = CliRunner().invoke(app, ["status", "--config", str(file)])
    assert (done.exit_code, "no canary answers at port" in done.output) == (3, True)
    assert CliRunner().invoke(app, ["status", "--config", str(file), "--json"]).stdout.strip() == "null"


@pytest.mark.parametrize("arrives_s", [2.0, 1_000.0])
def test_a_probe_that_comes_through_is_green_with_its_money_and_one_that_does_not_is_red(
    tmp_path: Path, arrives_s: float
) -> None:
    now = [1_000_000_000.0]
    watch = CanaryWatch(canary_settings(tmp_path), lambda: now[0])
    number = watch.script.number_at(round(now[0] * 1000))
    watch.send(number)
    now[0] = watch.script.begins_ms(number) / 1000 + watch.script.driven_ms / 1000 + arrives_s
    for hop, items in watch.script.items(number).items():
        watch.show(number, hop, items)
    watch.count()
    said, text = watch.status(), shown(status_table(watch.status()))
    healthy = watch.metrics.registry.get_sample_value("waybill_canary_healthy", {"hop": "region"})
    level = watch.metrics.registry.get_sample_value("waybill_canary_service_level_ratio", {"hop": "region"})
    if arrives_s < 10:
        assert (said.is_healthy, healthy, level) == (True, 1.0, 1.0)
        assert "1.00 EUR of 1.00 EUR" in text
    else:
        assert (said.is_healthy, healthy, level) == (False, 0.0, 0.0)
        assert said.of(HopColour.RED)[0] is Hop.REGION
    assert CanaryStatus.model_validate_json(said.model_dump_json(), strict=False) == said


def test_metrics_of_a_canary_that_sent_nothing_are_unknown_and_those_of_unwatched_hops_are_not_there(
    tmp_path: Path,
) -> None:
    watch = CanaryWatch(canary_settings(tmp_path, watched=["region", "table"]))
    watch.count()
    values = {hop: watch.metrics.registry.get_sample_value("waybill_canary_healthy", {"hop": hop.value}) for hop in Hop}
    assert {hop for hop, value in values.items() if value is not None and isnan(value)} == {Hop.REGION, Hop.TABLE}
    assert {hop for hop, value in values.items() if value is None} == set(Hop) - {Hop.REGION, Hop.TABLE}
