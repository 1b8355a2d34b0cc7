"""Builds the console's scripts before a wheel is packed; a wheel without them is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleBuildHook(BuildHookInterface):  # type: ignore[misc]
    """The hook of `[tool.hatch.build.targets.wheel.hooks.custom]`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs Vite where npm is installed; raises RuntimeError if there is no build then."""
        if version == "editable":
            return
        web = Path(self.root) / "console" / "web"
        manifest = web.parent / "static" / ".vite" / "manifest.json"
        if not manifest.is_file() and shutil.which("npm"):
            for words in (("ci",), ("run", "build")):
                subprocess.run(["npm", *words, "--silent"], cwd=web, check=True)
        if not manifest.is_file():
            raise RuntimeError("the console's scripts are missing: install Node 20.19 or newer, and run make setup")
        build_data["artifacts"].append("/console/static/")
