"""Process infrastructure that every daemon and job shares."""

from runtime.durable_file import create_durably, replace_durably, sync_folder
from runtime.tls import check_key_pair, load_key_pair

__all__ = ["check_key_pair", "create_durably", "load_key_pair", "replace_durably", "sync_folder"]
