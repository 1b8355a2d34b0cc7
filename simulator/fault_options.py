"""Reads the faults that the command line asks for."""

from pydantic import ValidationError

from simulator.errors import ScenarioError
from simulator.scenario import Faults


def parse_faults(text: str) -> Faults:
    """`duplicates=0.01,wrong_clocks=2,late=1` as Faults; empty: none. Raises ScenarioError."""
    given: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            raise ScenarioError(f"{word!r} is no FAULT=NUMBER; faults are {', '.join(Faults.model_fields)}")
        given[name.strip()] = value.strip()
    try:
        return Faults.model_validate(given)
    except ValidationError as error:
        raise ScenarioError(f"faults {text!r}: {error.errors()[0]['msg']}") from error
