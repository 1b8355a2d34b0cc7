"""Settings as every room reads them: frozen typed models from TOML; a wrong key is named with the nearest right one.

class Uplink(Settings):
    host: str
    port: int = 8883

load(Uplink, Path("uplink.toml"))      # raises SettingsError, which lists every mistake at once
"""

from settings.loading import load, parse
from settings.model import Settings, SettingsError

__all__ = ["Settings", "SettingsError", "load", "parse"]
