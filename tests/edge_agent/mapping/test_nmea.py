"""NMEA 0183 as receivers send it, and as cables and bridges damage it. The oracle is pynmea2."""

from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import xor
from typing import Any

import pynmea2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.mapping.formats import UndecodableMessage
from edge_agent.mapping.nmea import MAX_IGNORED_KINDS, MAX_SENTENCES, decode_nmea, read_nmea
from waybill.record import MAX_ELEMENTS

TIME_US = 1_795_359_064_626_000
RMC = "GNRMC,145104.626,A,5333.00000,N,00959.40000,E,5.4,84.4,221126,,,A"
GGA = "GNGGA,145104.626,5333.00000,N,00959.40000,E,1,08,0.9,12.3,M,45.0,M,,"
GST = "GNGST,145104.626,1.2,2.0,1.5,30,3.0,4.0,5.0"
VTG = "GNVTG,84.4,T,,M,5.4,N,10.0,K,A"
ZDA = "GNZDA,145104.626,22,11,2026,01,00"


def sentence(content: str, end: str = "\r\n") -> str:
    return f"${content}*{reduce(xor, content.encode('latin-1'), 0):02X}{end}"


def fixes_of(*contents: str) -> list[dict[str, Any]]:
    reading = read_nmea("".join(map(sentence, contents)).encode("latin-1"))
    assert not reading.faults
    return reading.fixes


def rmc(*, clock: str = "145104", day: str = "221126", latitude: str = "5333.0", mode: str = "A") -> str:
    return f"GPRMC,{clock},A,{latitude},N,00959.4,E,5.4,84.4,{day},,,{mode}"


def moment_us(*parts: int) -> int:
    return (datetime(*parts, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)  # type: ignore[misc, arg-type]


PLACE = {"latitude": 53.55, "longitude": 9.99}
MOVES = {"speed_kn": 5.4, "course_deg": 84.4}
FIX = {"status": "A", "time": TIME_US, **PLACE, **MOVES}
VOID = {"status": "V", "latitude": None, "longitude": None}


@pytest.mark.parametrize(
    ("contents", "fixes"),
    [
        ([RMC], [FIX]),
        ([RMC, GGA, GST, VTG], [{**FIX, "altitude_m": 12.3, "accuracy_m": 5.337}]),
        ([GGA, GST, RMC], [{**FIX, "altitude_m": 12.3, "accuracy_m": 5.337}]),
        ([GGA], [{"status": "A", **PLACE, "altitude_m": 12.3}]),
        ([GGA, ZDA], [{"status": "A", "time": TIME_US, **PLACE, "altitude_m": 12.3}]),
        ([ZDA, GGA, VTG], [{"status": "A", "time": TIME_US, **PLACE, "altitude_m": 12.3, **MOVES}]),
        ([VTG, GGA], [{"status": "A", **PLACE, "altitude_m": 12.3, **MOVES}]),
        # Two receivers of one vehicle: the first is read.
        ([RMC, RMC.replace("5333.0", "5433.0").replace("5.4,84.4", "9.9,10.0")], [FIX]),
        (
            [GGA, GST, GGA.replace("5333.0", "5433.0").replace("12.3", "99.9"), GST.replace("3.0,4.0", "9.0,9.0")],
            [{"status": "A", **PLACE, "altitude_m": 12.3, "accuracy_m": 5.337}],
        ),
        # HDOP is no accuracy, and sentences without a position are no fix.
        ([GST], []),
        ([ZDA, VTG], []),
        # Empty fields.
        (["GPRMC,145104.626,A,5333.0,N,00959.4,E,,,221126,,"], [{"status": "A", "time": TIME_US, **PLACE}]),
        (["GPGGA,145104,5333.0,N,00959.4,E,1,08,0.9,,M,,M,,"], [{"status": "A", **PLACE}]),
        # South and west; minutes without a fraction.
        (
            ["GLRMC,145104.626,A,0030,S,00030,W,,,221126,,"],
            [{"status": "A", "time": TIME_US, "latitude": -0.5, "longitude": -0.5}],
        ),
        # What is no measurement.
        (["GPRMC,145104.626,V,5333.0,N,00959.4,E,,,221126,,,N"], [{**VOID, "time": TIME_US}]),
        (["GPRMC,,V,,,,,,,,,,N"], [VOID]),
        ([rmc(clock="145104.626", mode="S")], [{**VOID, "time": TIME_US}]),
        ([rmc(clock="145104.626", mode="M")], [{**VOID, "time": TIME_US}]),
        (["GPGGA,,,,,,0,00,,,M,,M,,"], [VOID]),
        ([RMC, GGA.replace(",E,1,", ",E,0,")], [{**VOID, "time": TIME_US}]),
        # A simulator of a receiver's maker.
        ([GGA.replace(",E,1,", ",E,8,"), ZDA], [{**VOID, "time": TIME_US}]),
        # An optional number that is none stays as it is, for the reader to count.
        (
            ["GPRMC,145104.626,A,5333.0,N,00959.4,E,1_0,x,221126,,"],
            [{"status": "A", "time": TIME_US, **PLACE, "speed_kn": "1_0", "course_deg": "x"}],
        ),
    ],
)
def test_sentences_of_one_time_become_one_fix(contents: list[str], fixes: list[dict[str, Any]]) -> None:
    assert fixes_of(*contents) == [pytest.approx(one) for one in fixes]


@pytest.mark.parametrize(
    ("clock", "day", "moment"),
    [
        ("000000", "010100", (2000, 1, 1)),
        ("235959.99", "311279", (2079, 12, 31, 23, 59, 59, 990_000)),
        ("000001", "060180", (1980, 1, 6, 0, 0, 1)),
        ("120000.1234567", "290224", (2024, 2, 29, 12, 0, 0, 123_456)),
        ("235960", "311216", (2017, 1, 1)),
    ],
)
def test_a_year_of_two_digits_lies_between_1980_and_2079(clock: str, day: str, moment: tuple[int, ...]) -> None:
    assert fixes_of(rmc(clock=clock, day=day))[0]["time"] == moment_us(*moment)


def test_at_midnight_a_time_without_a_date_belongs_to_the_nearest_day() -> None:
    late, early = GGA.replace("145104.626", "235959"), GGA.replace("145104.626", "000001")
    assert [one["time"] for one in fixes_of(rmc(clock="235958", day="311226"), late, early)] == [
        moment_us(2026, 12, 31, 23, 59, 58),
        moment_us(2026, 12, 31, 23, 59, 59),
        moment_us(2027, 1, 1, 0, 0, 1),
    ]
    assert [one["time"] for one in fixes_of(late, rmc(clock="000001", day="010127"))] == [
        moment_us(2026, 12, 31, 23, 59, 59),
        moment_us(2027, 1, 1, 0, 0, 1),
    ]


WHOLE = sentence(RMC)


@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        (WHOLE.replace("5333.0", "5334.0"), "checksum", "no-match"),
        (WHOLE.replace("*", "*0"), "sentence", "format"),
        (WHOLE[: WHOLE.index("*")], "checksum", "missing"),
        (WHOLE[:30], "checksum", "missing"),
        (WHOLE.replace("E", "\x1b"), "sentence", "format"),
        (sentence(rmc(latitude="53.55")), "latitude", "format"),
        (sentence(rmc(latitude="5360.0")), "latitude", "format"),
        (sentence(rmc(latitude="-5333.0")), "latitude", "format"),
        (sentence(rmc(latitude="9000.1")), "latitude", "range"),
        (sentence(rmc(latitude="")), "latitude", "missing"),
        (sentence(RMC.replace(",N,", ",E,")), "latitude", "format"),
        (sentence(RMC.replace(",00959.4", ",18100.0")), "longitude", "range"),
        (sentence(rmc(clock="245104")), "time", "format"),
        (sentence(rmc(day="300226")), "date", "range"),
        (sentence(rmc(day="22 126")), "date", "format"),
        (sentence(ZDA.replace("2026", "26")), "date", "format"),
        (sentence("GPRMC," + "1" * 300), "sentence", "range"),
        (sentence("GNGGA"), "sentence", "format"),
        ("$", "sentence", "format"),
    ],
)
def test_a_damaged_sentence_is_a_fault_and_no_fix(text: str, field: str, why: str) -> None:
    fixes, faults, _ = read_nmea(text.encode("latin-1"))
    assert not fixes
    assert [(one.field, one.why) for one in faults] == [(field, why)]
    assert text.startswith(faults[0].text)


@pytest.mark.parametrize(
    "payload",
    [
        WHOLE,
        WHOLE.rstrip(),
        WHOLE.rstrip() + "\n\0\0",
        WHOLE.lower().replace(RMC.lower(), RMC),
        "4,E,1,08*11\r\n" + WHOLE,
        WHOLE.rstrip() + sentence("GPGSV,1,1,00"),
        sentence("GPGSV,1,1,00", end="") + WHOLE,
        "\\s:r1*12\\" + WHOLE,
        "!AIVDM,1,1,,A,13aG?P0P00PD;88MD5MTDww@2<0L,0*23\r\n" + WHOLE,
        "$PUBX,00\r\n" + WHOLE,
    ],
)
def test_the_form_of_a_payload_does_not_change_the_fix(payload: str) -> None:
    assert read_nmea(payload.encode("latin-1")).fixes == [pytest.approx(FIX)]


def test_a_damaged_sentence_costs_only_itself() -> None:
    payload = sentence(rmc(clock="145103")) + sentence(GGA).replace("12.3", "12.4") + WHOLE
    fixes, faults, _ = read_nmea(payload.encode())
    assert [one["time"] for one in fixes] == [TIME_US - 1_626_000, TIME_US]
    assert [one.field for one in faults] == ["checksum"]


def test_other_sentences_are_counted_by_kind_up_to_a_bound() -> None:
    assert read_nmea((sentence("GPGSV,1,1,00") * 2 + sentence("IIRMC,1")).encode()).ignored == {
        "GPGSV": 2,
        "IIRMC": 1,
    }
    kinds = [sentence(f"P{number:03}X,") for number in range(2 * MAX_IGNORED_KINDS)]
    ignored = read_nmea("".join(kinds).replace("P", "PA").encode()).ignored
    assert len(ignored) <= MAX_IGNORED_KINDS + 1


@pytest.mark.parametrize("payload", ["$" * (MAX_ELEMENTS + 2), WHOLE * (MAX_SENTENCES + 1)])
def test_a_payload_with_too_many_sentences_or_faults_is_not_read_to_its_end(payload: str) -> None:
    with pytest.raises(UndecodableMessage, match="too-many-values"):
        decode_nmea(payload.encode())


DEGREES = st.integers(0, 89), st.integers(0, 179)
MINUTES = st.integers(0, 59_999_999).map(lambda ten_millionths: ten_millionths / 1e6)


@given(
    talker=st.sampled_from(["GP", "GN", "GL", "GA", "BD"]),
    moment=st.datetimes(datetime(1980, 1, 6), datetime(2079, 12, 31)),
    latitude=st.tuples(DEGREES[0], MINUTES, st.sampled_from("NS")),
    longitude=st.tuples(DEGREES[1], MINUTES, st.sampled_from("EW")),
    speed=st.floats(0, 999),
    course=st.floats(0, 360),
    altitude=st.floats(-400, 9000),
)
def test_pynmea2_reads_the_same(
    *,
    talker: str,
    moment: datetime,
    latitude: tuple[int, float, str],
    longitude: tuple[int, float, str],
    speed: float,
    course: float,
    altitude: float,
) -> None:
    clock = f"{moment:%H%M%S}.{moment.microsecond:06}"
    place = f"{latitude[0]:02}{latitude[1]:09.6f},{latitude[2]},{longitude[0]:03}{longitude[1]:09.6f},{longitude[2]}"
    contents = [
        f"{talker}RMC,{clock},A,{place},{speed:.3f},{course:.1f},{moment:%d%m%y},,,A",
        f"{talker}GGA,{clock},{place},1,08,0.9,{altitude:.2f},M,,M,,",
    ]
    (fix,) = fixes_of(*contents)
    other_rmc, other_gga = (pynmea2.parse(sentence(one, end=""), check=True) for one in contents)
    assert fix["time"] == moment_us(*moment.timetuple()[:6], moment.microsecond)
    assert (fix["latitude"], fix["longitude"]) == pytest.approx((other_rmc.latitude, other_rmc.longitude), abs=1e-12)
    assert (fix["speed_kn"], fix["course_deg"]) == (other_rmc.spd_over_grnd, other_rmc.true_course)
    assert fix["altitude_m"] == other_gga.altitude
    seconds = other_rmc.datetime.replace(tzinfo=UTC).timestamp()
    # pynmea2 takes two digits below 70 for the years after 2000; it is asked only about those
    assert moment.year > 2068 or moment.year < 2000 or fix["time"] == pytest.approx(seconds * 1e6, abs=1)
