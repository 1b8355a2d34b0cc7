"""Writes tables as TOML: what `tomllib` reads back as the same values."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, time
from decimal import Decimal
from typing import Any


def toml_text(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Arrays of tables, a key a line; lists of tables one table a line. A key whose value is None is left out.

    Values: texts, whole numbers, truth values, decimals (as texts), moments, times, lists and tables of these.
    """
    lines: list[str] = []
    for name, entries in tables.items():
        for entry in entries:
            lines += ["", f"[[{name}]]"]
            lines += [f"{key} = {_value(value, inline=False)}" for key, value in entry.items() if value is not None]
    return "\n".join(lines[1:]) + "\n"


def _value(value: Any, *, inline: bool = True) -> str:
    if isinstance(value, Mapping):
        inside = (f"{key} = {_value(one)}" for key, one in value.items() if one is not None)
        return f"{{ {', '.join(inside)} }}"
    if isinstance(value, list | tuple):
        items = [_value(one) for one in value]
        if items and not inline and isinstance(value[0], Mapping):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if isinstance(value, datetime | time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        # A float of TOML is a double to most readers: a tenth would not be one.
        return f'"{value:f}"'
    if isinstance(value, str | bool | int):
        # The escapes of JSON are among those of TOML.
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"{value!r} cannot be written as TOML")
