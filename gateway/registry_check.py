"""Whether a gateway accepts batches of a device, by the device registry."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.config import RegistrySettings
from gateway.inflight import Refusal, Sender
from waybill.identity.registry import DeviceState
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_topic import DeviceRegistry, RegistryReader
from waybill.pulsar.compacted_topic import TopicMessage
from waybill.record import RefusalReason

_TAKEN = frozenset({DeviceState.EXPECTED, DeviceState.ACTIVE})


class RegistryCheck:
    """Follows the registry in a thread. `refusal_of`: why a sender is refused; None if it is not."""

    def __init__(self, settings: RegistrySettings, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970. Raises SettingsError."""
        registry = DeviceRegistry(kept_of_entry, settings.max_devices, clock)
        self._operators = operators = settings.followed()
        self.reader = RegistryReader(
            settings.service_url,
            settings.access,
            registry,
            tenants=settings.tenants,
            check_signed=None if operators is None else operators.check_signed,
            starts_anew=(lambda: False) if operators is None else operators.look,
        )
        self.refusal_of: Callable[[Sender], Refusal | None] = judge(
            registry.get,
            self.reader.was_read,
            refuses_unknown=settings.unknown_devices == "refuse",
        )

    @property
    def facts(self) -> dict[str, object]:
        """The registry's state, by the status's keys."""
        standing, registry = self.reader.standing, self.reader.registry
        return {
            "registry_current": standing.is_current,
            "registry_unreachable_since_s": standing.unreachable_since_s,
            "registry_devices": len(registry),
            "registry_entries_refused_by": dict(registry.refused_by),
            "registry_last_refused": registry.last_refused,
        }

    @property
    def problem(self) -> str:
        """Why the registry is not current; "" while it is. Entries that were read before stay in force."""
        standing = self.reader.standing
        problem = standing.last_unhandled if standing.is_current else standing.problem
        problem = problem or self.reader.registry.problem
        problem = problem or (self._operators.problem if self._operators is not None else "")
        return f"device registry: {problem}" if problem else ""


def judge(
    state_of: Callable[[str], DeviceState | None], was_read: Callable[[str], bool], *, refuses_unknown: bool
) -> Callable[[Sender], Refusal | None]:
    """Why a sender is refused; None: it is not. A device is unknown only after its tenant's topic was read.

    A device without room in the registry's memory is refused as unknown too, because it may be locked out.
    """

    def refusal_of(sender: Sender) -> Refusal | None:
        state = state_of(f"{sender.tenant}/{sender.device}")
        if state in _TAKEN:
            return None
        if state is not None:
            return Refusal(RefusalReason.DEVICE_NOT_ACTIVE, f"the registry says it is {state}")
        # The broker let it in, so it is accepted while the registry is being read.
        if refuses_unknown and was_read(sender.tenant):
            return Refusal(RefusalReason.UNKNOWN_DEVICE, "the registry has no device of this tenant by this name")
        return None

    return refusal_of


def kept_of_entry(publication: DevicePublication, _: TopicMessage) -> DeviceState:
    return publication.entry.state
