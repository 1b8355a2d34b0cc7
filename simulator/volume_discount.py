"""A discount that a payer earns only with what one of its vehicles does late in a run, chosen from the truth."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.drive import Track, drive
from simulator.fleet_contracts import pooled_with
from simulator.folder import write_folder
from simulator.messages import journal_line
from simulator.scenario import Scenario, ScenarioDiscount, ScenarioVehicle
from simulator.truth import Truth

DISCOUNTED = Decimal("0.25")
"""What a kilometre costs with the discount: so little that more distance makes the whole cheaper."""
_MM_IN_KM = 1_000_000


def with_discount(scenario: Scenario, track: Track | None, vehicle: ScenarioVehicle, after: float) -> Scenario:
    """The scenario with a discount in the tariff of a vehicle's payer, earned by the vehicle after a share of the run.

    The threshold lies in the middle between what the account of the vehicle drives outside all zones with and without
    that share. A scenario in which the vehicle drives nothing there stays as it is. Raises TruthError, ScenarioError.
    """
    own = {(one.tenant, one.device) for one in pooled_with(scenario, vehicle)}
    pooled = tuple(one for one in scenario.vehicles if one.sender in own)
    begin = scenario.start + timedelta(seconds=scenario.duration_s) * after
    whole_mm = late_mm = 0
    for row in _truth(scenario.model_copy(update={"vehicles": pooled}), track).usage():
        if not row.zone:
            whole_mm += row.distance_mm
            late_mm += row.distance_mm * (row.device == vehicle.device and row.quarter >= begin)
    above_km = round(Decimal(whole_mm - late_mm // 2) / _MM_IN_KM, 3)
    if not late_mm or above_km <= 0:
        return scenario
    (account,) = [one for one in scenario.accounts if one.id == vehicle.account]
    discount = ScenarioDiscount(above_km=above_km, unit_amount=DISCOUNTED)
    tariffs = tuple(
        one.model_copy(update={"discount": discount}) if one.id == account.tariff else one for one in scenario.tariffs
    )
    return scenario.model_copy(update={"tariffs": tariffs})


def _truth(scenario: Scenario, track: Track | None) -> Truth:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, scenario, track)
        with (folder / "made.jsonl").open("w", encoding="utf-8") as journal:
            journal.writelines(journal_line(one) for one in drive(scenario, track))
        return Truth.from_folder(folder)
