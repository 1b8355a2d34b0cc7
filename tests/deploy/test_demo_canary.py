"""The canary of the demo: red or unknown fails the demo, and none of its records is counted as the fleet's."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.data_files import write_data_files
from deploy.demo.audit import ingested_records
from deploy.demo.watching import CanaryFindings
from gateway.canary.ledger import HopColour
from tests.cloud_jobs.billing.register.billed_lake import LONG_AGO, NOW, BilledLake
from tests.deploy.test_demo_faults import AUDIT
from tests.gateway.canary.test_canary_status import status
from tests.system.lake_of_fixes import commit_ingest, records_table
from waybill.record import IntervalSet

GREEN, RED, UNKNOWN = HopColour.GREEN, HopColour.RED, HopColour.UNKNOWN
NOT_WATCHED = HopColour.NOT_WATCHED


def found(last: HopColour, reason: str = "") -> CanaryFindings:
    said = status(GREEN)
    hop = said.hops[-1].model_copy(update={"colour": last, "reason": reason})
    return CanaryFindings(said.model_copy(update={"hops": (*said.hops[:-1], hop)}))


@pytest.mark.parametrize("canary", [found(GREEN), found(NOT_WATCHED)])
def test_a_canary_that_is_green_wherever_it_looks_lets_the_demo_pass(canary: CanaryFindings) -> None:
    assert replace(AUDIT, canary=canary).equal


@pytest.mark.parametrize(
    ("canary", "said"),
    [
        (
            found(RED, "10 of 10 items of probe 7 are overdue for 1 s"),
            "5 of 6 hops green; rated red: 10 of 10 items of probe 7 are overdue for 1 s",
        ),
        (found(UNKNOWN, "nothing is due yet"), "5 of 6 hops green; rated unknown: nothing is due yet"),
        (CanaryFindings(None), "the canary did not answer"),
    ],
)
def test_a_canary_that_is_not_green_fails_the_demo_and_says_where(canary: CanaryFindings, said: str) -> None:
    audit = replace(AUDIT, canary=canary)
    assert not audit.equal
    assert [said in one.found for one in audit.verdicts if not one.holds] == [True]


def test_records_of_a_canary_are_not_counted_as_the_fleet_s(tmp_path: Path) -> None:
    lake = BilledLake.create(tmp_path, "van").lake
    row = LONG_AGO | {"tenant": CANARY, "device": "canary-us", "seq": 1, "ingest_number": 2}
    files = write_data_files(lake.files("records"), records_table([row]), NOW)
    commit_ingest(lake, files, {DeviceStream(CANARY, "canary-us", 1): Coverage(IntervalSet([(1, 1)]), head=1)})
    assert lake.rows("records").num_rows == 6
    assert {name: sum(made.values()) for name, made in ingested_records(lake, {}).items()} == {"fleet/van": 5}
