"""Settings as every package reads them: frozen typed models from TOML; a wrong key is named with the nearest right one.

class Uplink(Settings):
    host: str
    port: int = 8883

load(Uplink, Path("uplink.toml"))      # raises SettingsError, which lists every mistake at once
"""

from waybill.settings.bounded_toml import MAX_PUSHED_BYTES, MAX_TOML_BYTES, TOML_TOKEN, parse_toml
from waybill.settings.file_fault import file_fault
from waybill.settings.loading import (
    load,
    parse,
    problem_text,
    read_text,
    validate,
    without_consequences,
)
from waybill.settings.local_path import PathElsewhere, local_path
from waybill.settings.model import Settings, SettingsError
from waybill.settings.one_line import one_line, printable, printable_json
from waybill.settings.regular_file import NotAFile, open_file, read_file
from waybill.settings.similar_names import as_read, name_advice, near_equal
from waybill.settings.text_fault import TextFault, toml_fault
from waybill.settings.toml_lines import TomlLines, TomlPath

__all__ = [
    "MAX_PUSHED_BYTES",
    "MAX_TOML_BYTES",
    "TOML_TOKEN",
    "NotAFile",
    "PathElsewhere",
    "Settings",
    "SettingsError",
    "TextFault",
    "TomlLines",
    "TomlPath",
    "as_read",
    "file_fault",
    "load",
    "local_path",
    "name_advice",
    "near_equal",
    "one_line",
    "open_file",
    "parse",
    "parse_toml",
    "printable",
    "printable_json",
    "problem_text",
    "read_file",
    "read_text",
    "toml_fault",
    "validate",
    "without_consequences",
]
