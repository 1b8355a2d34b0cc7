"""A discount that a payer earns only with what one of its vehicles drives late in a run."""

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.drive import drive
from simulator.fleet import pooled_with
from simulator.folder import write_folder
from simulator.messages import driven_line, journal_line
from simulator.scenario import Scenario, ScenarioDiscount, ScenarioVehicle
from simulator.truth import Truth

DISCOUNTED = Decimal("0.25")
"""What a kilometre costs with the discount: so little that more distance makes the whole cheaper."""
_MM_IN_KM = 1_000_000


def with_discount(scenario: Scenario, vehicle: ScenarioVehicle, after: float) -> Scenario:
    """The scenario with a discount that the vehicle's account earns only with what the vehicle drives after a share
    of the run.

    The threshold is halfway between the account's distance outside all zones with and without that part. If the
    vehicle drives nothing there, the scenario stays as it is. Raises TruthError, ScenarioError.
    """
    own = {(one.tenant, one.device) for one in pooled_with(scenario, vehicle)}
    pooled = tuple(one for one in scenario.vehicles if one.sender in own)
    begin = scenario.start + timedelta(seconds=scenario.duration_s) * after
    least_mm: list[int] = []
    most_mm: list[int] = []
    # The threshold must work with and without the receivers' noise.
    for truth in _truths(scenario.model_copy(update={"vehicles": pooled})):
        outside = [row for row in truth.usage() if not row.zone]
        late_mm = sum(row.distance_mm for row in outside if row.device == vehicle.device and row.quarter >= begin)
        most_mm.append(sum(row.distance_mm for row in outside))
        least_mm.append(most_mm[-1] - late_mm)
    whole_mm, late_mm = min(most_mm), min(most_mm) - max(least_mm)
    above_km = round(Decimal(whole_mm - late_mm // 2) / _MM_IN_KM, 3)
    if late_mm <= 0 or above_km <= 0:
        return scenario
    (account,) = [one for one in scenario.accounts if one.id == vehicle.account]
    discount = ScenarioDiscount(above_km=above_km, unit_amount=DISCOUNTED)
    tariffs = tuple(
        one.model_copy(update={"discount": discount}) if one.id == account.tariff else one for one in scenario.tariffs
    )
    return scenario.model_copy(update={"tariffs": tariffs})


def _truths(scenario: Scenario) -> Iterator[Truth]:
    """The truth, and that without noise if the receivers have some."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, scenario)
        with (folder / "made.jsonl").open("w", encoding="utf-8") as journal:
            journal.writelines(journal_line(one) for one in drive(scenario))
        yield Truth.from_folder(folder)
        if scenario.gps_noise is not None:
            with (folder / "driven.jsonl").open("w", encoding="utf-8") as journal:
                journal.writelines(driven_line(one) for one in drive(scenario))
            yield Truth.from_folder(folder, "driven.jsonl", "every_fix")
