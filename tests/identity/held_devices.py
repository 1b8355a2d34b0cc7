"""A registry in memory, for what is judged beside one, and files of devices in each form that TOML has for them."""

from __future__ import annotations

from collections.abc import Iterable

from waybill.identity.device_files import StatedDevice
from waybill.identity.errors import SignatureRefused
from waybill.identity.operator_settings import OperatorSettings
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_session import RegistrySession

OPERATOR = OperatorSettings(
    service_url="pulsar://nowhere",
    admin_url="http://nowhere",
    regions=("eu", "us"),
    tenants=("acme", "zeta"),
    unsigned=True,
    operator="bea",
)


class HeldDevices(RegistrySession):
    """What is known of devices; `asked` counts the questions for the nearest name."""

    def __init__(self, held: Iterable[DeviceEntry] = ()) -> None:
        self.held = {one.name: one for one in held}
        self.asked = 0

    def get(self, name: str) -> DeviceEntry | None:
        return self.held.get(name)

    def nearest(self, _: str) -> str:
        self.asked += 1
        return ""

    def not_taken(self, _: str) -> str:
        return ""

    def refusal(self, _: DeviceEntry) -> SignatureRefused | None:
        return None


def inline(stated: StatedDevice) -> str:
    """A device as a table that stands on a line with others."""
    facts = stated.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    written = (
        f"{key} = {str(value).lower() if isinstance(value, bool | int) else repr(value)}"
        for key, value in facts.items()
    )
    return "{" + ", ".join(written) + "}"


def on_lines(stated: Iterable[StatedDevice], on_a_line: int) -> str:
    """A file with so many devices on each line."""
    tables = [inline(one) for one in stated]
    lines = (", ".join(tables[start : start + on_a_line]) for start in range(0, len(tables), on_a_line))
    return "device = [\n" + "".join(f"{line},\n" for line in lines) + "]\n"
