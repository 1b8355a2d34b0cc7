"""Devices that send their batches one after another, and the order in which those came into the topic."""

from __future__ import annotations

import time
from itertools import pairwise

from telemetry import read_header
from tests.system.gateway_region import Devices


class InTurn:
    """Devices of which each sends its next batch when the one before is acknowledged, and again after two seconds."""

    def __init__(self, fleet: Devices) -> None:
        self._fleet = fleet
        self._waiting: dict[str, list[int]] = {}
        for device, first in sorted(fleet.batches):
            self._waiting.setdefault(device, []).append(first)
        self._sent_s: dict[tuple[str, int], float] = {}
        self.heard_s: list[float] = []

    def send_until(self, left: int) -> None:
        """Go on until so many batches are left."""
        while sum(map(len, self._waiting.values())) > left:
            for device, firsts in self._waiting.items():
                while firsts and self._fleet.knows(device, firsts[0]):
                    firsts.pop(0)
                    self.heard_s.append(time.monotonic())
                if firsts and time.monotonic() - self._sent_s.get((device, firsts[0]), -9.0) > 2:
                    self._sent_s[device, firsts[0]] = time.monotonic()
                    self._fleet.send(device, self._fleet.batches[device, firsts[0]])
            time.sleep(0.002)

    @property
    def longest_silence_s(self) -> float:
        return max(later - earlier for earlier, later in pairwise(self.heard_s))


def firsts_of(messages: list[tuple[bytes, dict[str, str]]], tenant: str) -> dict[str, list[int]]:
    """By device the batches in the order of their first copies in the topic, each by its first seq."""
    found: dict[str, dict[int, None]] = {}
    for payload, properties in messages:
        if properties["tenant"] == tenant:
            first = read_header(payload).seqs.first
            assert first is not None
            found.setdefault(properties["device"], {})[first] = None
    return {device: list(firsts) for device, firsts in found.items()}
