"""Process infrastructure that every daemon and job shares."""

from runtime.durable_file import replace_durably

__all__ = ["replace_durably"]
