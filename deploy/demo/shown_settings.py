"""The settings of what runs in the demo, where whoever looks in finds those of a local stack."""

from __future__ import annotations

from pathlib import Path

from waybill.daemon.durable_file import replace_durably

__all__ = ["show_settings"]


def show_settings(folder: Path, name: str, config: Path) -> None:
    """Puts the settings of a process in the place of the stack's example of that name, which has another port."""
    text = f"# Of the process that runs in this demo.\n{config.read_text(encoding='utf-8')}"
    # for its owner alone, as the example is: it names tokens
    replace_durably(folder / name, text.encode(), mode=0o600)
