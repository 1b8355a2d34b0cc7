"""What the registry says of devices, in memory: for who asks a daemon's cache."""

from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication


class KnownDevices(dict[str, DevicePublication]):
    def put(self, entry: DeviceEntry, warrant: str = "") -> None:
        self[entry.name] = DevicePublication(entry, "019e", warrant=warrant)

    def publication(self, name: str) -> DevicePublication | None:
        return self.get(name)
