"""The commands and settings of docs/connect.md."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "connect.md"
_BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

SETTINGS = "\n".join(text for language, text in _BLOCKS if language == "toml")
"""All settings of the page, as one agent.toml."""
COMMANDS = [
    (command, output)
    for language, text in _BLOCKS
    if not language
    for command, output in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
]
"""Each command with what the page shows below it."""
TRIES = re.findall(r"^waybill try (.*?) +#", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
"""The options of each `waybill try` of the page."""
