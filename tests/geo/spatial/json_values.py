"""Every place of a JSON value, and values that nobody expects there."""

import copy
from random import Random
from typing import Any, Final

GONE: Final = object()
"""Put in a place: nothing is there."""

UNEXPECTED: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 1 << 31, 1 << 53, 1 << 63, 10**400, 1e308, -1e300, -0.0, 5e-324, 1e-200, 1e-9, 540),
    *("", "x", " x", "\ud800", "\x00", "\x1b[2J", "Point", "Polygon", "LineString", "9" * 5000),
    *([], {}, [[]], [{}], {"a": 1}, ["Polygon"], {"Polygon": 1}, [1, 2], [[1, 2]], [[[[1, 2]] * 4]], ["a"] * 3, GONE),
)

Place = tuple[str | int, ...]


def drawn(value: Any, draw: Random) -> Place:
    """A place of a value; one of few neighbours is as likely as one of many."""
    place: Place = ()
    while isinstance(value, (dict, list)) and value and (not place or draw.random() < 0.7):
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        place, value = (*place, key), value[key]
    return place


def put(value: Any, place: Place, new: Any) -> Any:
    """A copy with another value in a place; at the place () the other value itself."""
    if not place:
        return None if new is GONE else new
    made = inner = copy.deepcopy(value)
    for key in place[:-1]:
        inner = inner[key]
    if new is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return made
