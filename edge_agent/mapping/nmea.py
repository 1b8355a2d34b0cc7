"""Reads NMEA 0183 sentences into fixes. Pure.

A payload has one sentence or many. Sentences of the same time of day become one fix:

    RMC  time, date, position, speed, course       GGA  position, altitude
    VTG  speed, course (of the fix before it)      GST  accuracy              ZDA  time, date

    b"$GNRMC,145104.626,A,5333.00000,N,00959.40000,E,5.4,84.4,221126,,,A*4D"
    -> {"status": "A", "time": 1795359064626000, "latitude": 53.55, "longitude": 9.99,
        "speed_kn": 5.4, "course_deg": 84.4}

`time` is in microseconds since 1970. A fix without a date has no `time`, one that the receiver calls void has null
coordinates. HDOP is no accuracy: only GST gives one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache, reduce
from operator import xor
from typing import Any, Final, NamedTuple

from edge_agent.mapping.formats import Undecodable, UndecodableMessage
from waybill.record import MAX_ELEMENTS

MAX_SENTENCE_CHARACTERS: Final = 255
"""The standard allows 82; receivers with many digits exceed it."""
MAX_IGNORED_KINDS: Final = 32
MAX_SENTENCES: Final = 10 * MAX_ELEMENTS
"""A fix of a receiver with several satellite systems has up to about ten sentences."""
OTHER_KINDS: Final = "other"
_TALKERS: Final = frozenset({"GP", "GN", "GL", "GA", "GB", "BD", "GQ", "QZ", "GI"})
_SENTENCE: Final = re.compile(r"[$!][^$!\r\n\0]*")
_PARTS: Final = re.compile(r"[$!](([A-Z][A-Z0-9]{1,7}),[ -~]*)\*([0-9A-Fa-f]{2})[ \t]*")
_KIND: Final = re.compile(r"[$!]([A-Z][A-Z0-9]{1,7}),[^*]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,10}(?:\.[0-9]{0,12})?")
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3])([0-5][0-9])([0-5][0-9]|60)(?:\.([0-9]{1,9})?)?")
_ANGLE: Final = re.compile(r"([0-9]{1,3})([0-5][0-9](?:\.[0-9]{0,12})?)")
_DAY_US: Final = 86_400_000_000
_FIRST_TWO_DIGIT_YEAR: Final = 80
"""GPS began in 1980, and a receiver that does not know the date reports that year."""
_VOID_MODES: Final = frozenset("NMS")
"""Modes of RMC that are no measurement: none, entered by hand, simulated."""
_VOID_QUALITIES: Final = frozenset({"", "0", "7", "8"})
"""The same as qualities of GGA."""
_R68_OF_DRMS: Final = math.sqrt(-math.log(1 - 0.68))
"""The circle with 68 % of a round error, in units of the distance root mean square."""


class NmeaFault(NamedTuple):
    """A sentence that cannot be used. `field`: its part; `why`: a word such as `format`; `text`: the sentence."""

    field: str
    why: str
    text: str


class NmeaReading(NamedTuple):
    """`fixes`: in the order of their first sentences. `ignored`: how many sentences of each other kind were there."""

    fixes: list[dict[str, Any]]
    faults: list[NmeaFault]
    ignored: dict[str, int]


class _Unusable(Exception):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(field)
        self.field, self.why = field, why


class _Epoch:
    """What the sentences of one time of day say. `clock_us`: since midnight; None: they have no time."""

    __slots__ = ("altitude", "clock_us", "day_us", "deviation", "is_void", "kinds", "motion", "position")

    def __init__(self, clock_us: int | None) -> None:
        self.clock_us = clock_us
        self.day_us: int | None = None
        self.position: tuple[float, float] | None = None
        self.is_void = False
        self.kinds: set[str] = set()
        self.motion: dict[str, float | str] = {}
        self.altitude: float | str | None = None
        self.deviation: float | None = None

    def as_fix(self) -> dict[str, Any]:
        fix: dict[str, Any] = {"status": "A"}
        if self.clock_us is not None and self.day_us is not None:
            fix["time"] = self.day_us + self.clock_us
        if self.is_void:
            return {**fix, "status": "V", "latitude": None, "longitude": None}
        if self.position is not None:
            fix["latitude"], fix["longitude"] = self.position
        fix.update(self.motion)
        if self.altitude is not None:
            fix["altitude_m"] = self.altitude
        if self.deviation is not None:
            fix["accuracy_m"] = self.deviation
        return fix


class _Epochs:
    """The epochs of one payload. A sentence without a time belongs to the epoch before it, else to the next."""

    def __init__(self) -> None:
        self._by_clock: dict[int | None, _Epoch] = {}
        self._last: _Epoch | None = None
        self.early: dict[str, float | str] = {}
        """Motion that came before any epoch."""

    def at(self, clock_us: int | None) -> _Epoch:
        epoch = self._by_clock.get(clock_us)
        if epoch is None:
            epoch = self._by_clock[clock_us] = _Epoch(clock_us)
            epoch.motion, self.early = self.early, {}
        self._last = epoch
        return epoch

    def new(self, kind: str, clock_us: int | None) -> _Epoch | None:
        """The epoch of a sentence; None if it has one of this kind: then this one is of another receiver."""
        epoch = self.at(clock_us)
        if kind in epoch.kinds:
            return None
        epoch.kinds.add(kind)
        return epoch

    @property
    def motion(self) -> dict[str, float | str]:
        return self.early if self._last is None else self._last.motion

    def fixes(self) -> list[dict[str, Any]]:
        epochs = list(self._by_clock.values())
        # A date holds for the epochs around it: receivers send it with one sentence of a burst.
        for ordered in (epochs, epochs[::-1]) if len(epochs) > 1 else ():
            near_us = None
            for epoch in ordered:
                if epoch.day_us is None and near_us is not None and epoch.clock_us is not None:
                    epoch.day_us = _nearest_day_us(near_us, epoch.clock_us)
                if epoch.day_us is not None and epoch.clock_us is not None:
                    near_us = epoch.day_us + epoch.clock_us
        return [epoch.as_fix() for epoch in epochs if epoch.is_void or epoch.position is not None]


def read_nmea(payload: bytes) -> NmeaReading:
    """The fixes of a payload, whatever its bytes.

    A sentence with a wrong checksum is a fault, and the others are read without it. Raises UndecodableMessage for more
    than MAX_SENTENCES sentences or MAX_ELEMENTS faults.
    """
    epochs, faults, ignored = _Epochs(), list[NmeaFault](), dict[str, int]()
    # Latin-1 has a character for each byte, so that a damaged sentence is shown as it came.
    for number, sentence in enumerate(_SENTENCE.finditer(payload.decode("latin-1"))):
        if number == MAX_SENTENCES or len(faults) > MAX_ELEMENTS:
            raise UndecodableMessage("too-many-values")
        text = sentence[0]
        try:
            kind, fields = _checked(text)
            read = _READERS.get(kind[2:]) if kind[:2] in _TALKERS else None
            if read is None:
                name = kind if kind in ignored or len(ignored) < MAX_IGNORED_KINDS else OTHER_KINDS
                ignored[name] = ignored.get(name, 0) + 1
            else:
                # Fields that the standard added later may be missing at the end.
                read(epochs, fields + [""] * (_MOST_FIELDS - len(fields)))
        except _Unusable as error:
            faults.append(NmeaFault(error.field, error.why, text[:MAX_SENTENCE_CHARACTERS]))
    return NmeaReading(epochs.fixes(), faults, ignored)


def decode_nmea(payload: bytes) -> Any:
    """As a decoder of mappings: the only fix, or a list of fixes and of sentences that cannot be read."""
    fixes, faults, ignored = read_nmea(payload)
    if len(fixes) == 1 and not faults:
        return fixes[0]
    if not fixes and not faults:
        raise UndecodableMessage("no-fix-sentence" if ignored else "no-sentence", " ".join(ignored))
    parts = [Undecodable(one.field, one.text.encode("latin-1"), f"`{one.field}`: {one.why}") for one in faults]
    return [*fixes, *parts]


def _checked(text: str) -> tuple[str, list[str]]:
    """The kind and the fields of a sentence whose checksum is right, or of an unknown sentence without one."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        kind = _KIND.fullmatch(text)
        if kind is None or "*" in text or len(text) > MAX_SENTENCE_CHARACTERS:
            raise _Unusable("sentence", "format")
        if kind[1][2:] in _READERS:
            # A sentence that was cut off may look whole: without a checksum its numbers cannot be trusted.
            raise _Unusable("checksum", "missing")
        return kind[1], []
    if len(text) > MAX_SENTENCE_CHARACTERS:
        raise _Unusable("sentence", "range")
    content = parts[1]
    if reduce(xor, content.encode("ascii")) != int(parts[3], 16):
        raise _Unusable("checksum", "no-match")
    return parts[2], content.split(",")


def _rmc(epochs: _Epochs, fields: list[str]) -> None:
    _, clock, status, *position, speed, course, day = fields[:10]
    # Of two receivers in one vehicle the first is believed, in all its members.
    if (epoch := epochs.new("RMC", _clock_us(clock))) is None:
        return
    if day:
        epoch.day_us = _day_us(day)
    if status != "A" or fields[12] in _VOID_MODES:
        epoch.is_void = True
        return
    epoch.position = _position(position)
    _add(epoch.motion, "speed_kn", speed)
    _add(epoch.motion, "course_deg", course)


def _gga(epochs: _Epochs, fields: list[str]) -> None:
    _, clock, *position, quality, _, _, altitude, unit = fields[:11]
    if (epoch := epochs.new("GGA", _clock_us(clock))) is None:
        return
    if quality in _VOID_QUALITIES:
        epoch.is_void = True
        return
    if epoch.position is None:
        epoch.position = _position(position)
    if altitude and unit == "M":
        epoch.altitude = _number(altitude)


def _gst(epochs: _Epochs, fields: list[str]) -> None:
    if (epoch := epochs.new("GST", _clock_us(fields[1]))) is None:
        return
    latitude_m, longitude_m = _number(fields[6]), _number(fields[7])
    if isinstance(latitude_m, float) and isinstance(longitude_m, float):
        # At least 68 %, for any shape of the ellipse of errors.
        epoch.deviation = round(_R68_OF_DRMS * math.hypot(latitude_m, longitude_m), 3)


def _zda(epochs: _Epochs, fields: list[str]) -> None:
    _, clock, day, month, year = fields[:5]
    if clock and (day or month or year):
        if not (len(year) == 4 and year.isdigit()):
            raise _Unusable("date", "format")
        epochs.at(_clock_us(clock)).day_us = _day_us(day + month + year)


def _vtg(epochs: _Epochs, fields: list[str]) -> None:
    if fields[9] not in _VOID_MODES:
        _add(epochs.motion, "course_deg", fields[1] if fields[2] == "T" else "")
        _add(epochs.motion, "speed_kn", fields[5] if fields[6] == "N" else "")


_READERS: Final[dict[str, Callable[[_Epochs, list[str]], None]]] = {
    "RMC": _rmc,
    "GGA": _gga,
    "GST": _gst,
    "ZDA": _zda,
    "VTG": _vtg,
}
_MOST_FIELDS: Final = 15


def _add(values: dict[str, float | str], name: str, text: str) -> None:
    if text and name not in values:
        values[name] = _number(text)


def _number(text: str) -> float | str:
    """The number, or the text as it is: whoever reads the fix then leaves it out and counts it."""
    return float(text) if _NUMBER.fullmatch(text) else text


def _position(fields: list[str]) -> tuple[float, float]:
    return (
        _angle("latitude", fields[0], fields[1], "NS", 90),
        _angle("longitude", fields[2], fields[3], "EW", 180),
    )


def _angle(name: str, text: str, hemisphere: str, hemispheres: str, most: int) -> float:
    if not text or not hemisphere:
        raise _Unusable(name, "missing")
    parts = _ANGLE.fullmatch(text)
    if parts is None or hemisphere not in hemispheres:
        raise _Unusable(name, "format")
    degrees = int(parts[1]) + float(parts[2]) / 60
    if degrees > most:
        raise _Unusable(name, "range")
    return -degrees if hemisphere == hemispheres[1] else degrees


def _clock_us(text: str) -> int | None:
    """Microseconds since midnight. Second 60 of a leap second is, as in POSIX, the first of the next day."""
    if not text:
        return None
    parts = _CLOCK.fullmatch(text)
    if parts is None:
        raise _Unusable("time", "format")
    hours, minutes, seconds, fraction = parts.groups()
    us = int((fraction or "0")[:6].ljust(6, "0"))
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + us


@lru_cache(maxsize=64)
def _day_us(text: str) -> int:
    """The midnight of a date `ddmmyy` or `ddmmyyyy`."""
    if len(text) not in {6, 8} or not (text.isascii() and text.isdigit()):
        raise _Unusable("date", "format")
    year = int(text[4:])
    if len(text) == 6:
        year += 1900 if year >= _FIRST_TWO_DIGIT_YEAR else 2000
    try:
        return (date(year, int(text[2:4]), int(text[:2])) - date(1970, 1, 1)) // timedelta(microseconds=1)
    except ValueError:
        raise _Unusable("date", "range") from None


def _nearest_day_us(near_us: int, clock_us: int) -> int:
    """The midnight that puts a time of day nearest to a known time: after 23:59:59 comes 00:00:00 of the next day."""
    return round((near_us - clock_us) / _DAY_US) * _DAY_US
