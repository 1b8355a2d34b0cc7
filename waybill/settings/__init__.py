"""Settings of every package: frozen typed models from TOML; an unknown key is reported with the nearest known one.

class Uplink(Settings):
    host: str
    port: int = 8883

load(Uplink, Path("uplink.toml"))      # raises SettingsError, which lists every mistake at once
"""

from waybill.settings.files import (
    MAX_PUSHED_BYTES,
    MAX_TOML_BYTES,
    NotAFile,
    PathElsewhere,
    file_fault,
    local_path,
    open_file,
    parse_toml,
    read_file,
)
from waybill.settings.loading import (
    SIMILAR,
    Settings,
    SettingsError,
    load,
    model_at,
    parse,
    parse_tables,
    problem_text,
    read_text,
    validate,
    without_consequences,
)
from waybill.settings.text import (
    TextFault,
    TomlLines,
    TomlPath,
    as_read,
    name_advice,
    near_equal,
    nearest,
    one_line,
    printable,
    printable_json,
    toml_fault,
)

__all__ = [
    "MAX_PUSHED_BYTES",
    "MAX_TOML_BYTES",
    "SIMILAR",
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
    "model_at",
    "name_advice",
    "near_equal",
    "nearest",
    "one_line",
    "open_file",
    "parse",
    "parse_tables",
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
