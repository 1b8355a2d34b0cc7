"""Accounts and tariffs as they are published, validated where they enter."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, NamedTuple, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.errors import BadReference, NoTariffInForce
from cloud_jobs.billing.meters import MEASURE_OF, Meter
from cloud_jobs.in_force import Usable
from cloud_jobs.lake.coverage import TenantDevice

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class _Reference(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Price(_Reference):
    """What one unit of a meter costs in a zone. `zone` "" is everything outside all zones."""

    meter: Meter
    zone: str = ""
    unit: str
    unit_amount: Decimal = Field(ge=0, max_digits=24, decimal_places=12, allow_inf_nan=False)

    @model_validator(mode="after")
    def _sold_by_its_unit(self) -> Self:
        if self.unit != MEASURE_OF[self.meter].unit:
            raise ValueError(f"{self.meter} is sold by {MEASURE_OF[self.meter].unit!r}, not by {self.unit!r}")
        return self


class Tariff(_Reference):
    """One version of a price list, in force from `effective_from` until the next version's."""

    id: Name
    currency: str
    effective_from: AwareDatetime
    prices: tuple[Price, ...]

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        exponent(self.currency)
        ambiguous = [key for key, count in Counter((p.meter, p.zone) for p in self.prices).items() if count > 1]
        if ambiguous:
            meter, zone = ambiguous[0]
            raise ValueError(f"two prices for {meter} in zone {zone!r}")
        return self


class BilledVehicle(_Reference):
    """A device that an account pays for, by its tenant and its id there, and the region that it reports to."""

    tenant: Name
    device: Name
    region: Name

    @property
    def of_device(self) -> TenantDevice:
        """Which device it is."""
        return TenantDevice(self.tenant, self.device)


class Account(_Reference):
    """Who gets the bill: one currency, one tariff, vehicles in any number of regions."""

    id: Name
    name: str
    currency: str
    tariff: Name
    vehicles: tuple[BilledVehicle, ...]

    @model_validator(mode="after")
    def _each_vehicle_once(self) -> Self:
        exponent(self.currency)
        twice = [device for device, count in Counter(v.of_device for v in self.vehicles).items() if count > 1]
        if twice:
            raise ValueError(f"vehicle {twice[0].device!r} of tenant {twice[0].tenant!r} is listed twice")
        return self


_Kind = TypeVar("_Kind", Account, Tariff)


def parse(kind: type[_Kind], body: str | bytes) -> _Kind:
    """An account or a tariff from its JSON text. Raises BadReference, UnknownCurrency."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise BadReference(f"{kind.__name__.lower()}: {where}: {first['msg']}") from error


def usable_tariff(body: str) -> Usable[Tariff]:
    """A tariff from its JSON text, and from when it is in force (µs since 1970). Raises as `parse`."""
    tariff = parse(Tariff, body)
    return Usable((tariff.effective_from - _EPOCH) // timedelta(microseconds=1), tariff)


def usable_account(body: str) -> Usable[Account]:
    """An account from its JSON text: it has one version, in force always. Raises as `parse`."""
    return Usable(0, parse(Account, body))


class PriceInForce(NamedTuple):
    """A price and the moment since which it is the price: versions that repeat it do not split a line."""

    since: datetime
    unit_amount: Decimal


class PriceHistory:
    """The versions of one tariff, in the order of their effective dates.

    Raises BadReference for two different versions effective at one moment.
    """

    def __init__(self, tariff: str, versions: Iterable[Tariff]) -> None:
        mine = sorted((v for v in versions if v.id == tariff), key=lambda version: version.effective_from)
        for before, after in pairwise(mine):
            if before.effective_from == after.effective_from and before != after:
                moment = before.effective_from.isoformat()
                raise BadReference(f"tariff {tariff!r} has two different versions effective from {moment}")
        self._tariff = tariff
        self._starts = [version.effective_from.astimezone(UTC) for version in mine]
        self._prices = [{(p.meter, p.zone): p.unit_amount for p in version.prices} for version in mine]
        self.currencies = {version.currency for version in mine}

    def at(self, hour: datetime, meter: Meter, zone: str) -> PriceInForce | None:
        """The price in force at `hour`; None if the tariff does not charge for it. Raises NoTariffInForce."""
        version = bisect_right(self._starts, hour) - 1
        if version < 0:
            raise NoTariffInForce(self._tariff, hour)
        price = self._prices[version].get((meter, zone))
        if price is None:
            return None
        while version and self._prices[version - 1].get((meter, zone)) == price:
            version -= 1
        return PriceInForce(self._starts[version], self._prices[version][meter, zone])
