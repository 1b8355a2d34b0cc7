"""The tables of the buffer.

`epochs`  one row for each life of the buffer: its ordinal, its number, and the head of those that have ended
`batches` one row for each stored batch. `batch` is NULL once it was acknowledged: the row then only remembers
          `arrivals` (10 bytes a message: id and digest), for as long as a broker may deliver those again
`boots`   wall minus monotonic time of each boot of the device, and how far the correction after a jump has come
`counters` that outlive a restart
`dead_letter_batches`  the batches that wait and are not sent, because the region refused them too often, and why
`mark`    one row: what the buffer remembers of the small file beside it (`edge_agent.store.lineage`)
`dead_letters`  messages that no record can carry: when they came, how long they were, and why
"""

from __future__ import annotations

from edge_agent.errors import StoreVersion
from edge_agent.store.connection import Connection

SCHEMA_VERSION = 4

_TABLES = (
    """CREATE TABLE IF NOT EXISTS epochs (
        ordinal INTEGER PRIMARY KEY, epoch INTEGER NOT NULL UNIQUE, device TEXT NOT NULL, head INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS batches (
        id INTEGER PRIMARY KEY, last INTEGER NOT NULL, class INTEGER NOT NULL, records INTEGER NOT NULL,
        lost INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL, wall_ms INTEGER NOT NULL, boot TEXT NOT NULL,
        sent INTEGER NOT NULL DEFAULT 0,
        arrivals BLOB, batch BLOB)""",
    """CREATE TABLE IF NOT EXISTS boots (
        boot TEXT PRIMARY KEY, offset_us INTEGER NOT NULL, delta_us INTEGER NOT NULL, at_us INTEGER NOT NULL,
        after INTEGER NOT NULL, through INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS dead_letter_batches (id INTEGER PRIMARY KEY, reason TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS mark (
        id INTEGER PRIMARY KEY, token INTEGER NOT NULL, following INTEGER NOT NULL, changed_ns INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS dead_letters (
        id INTEGER PRIMARY KEY AUTOINCREMENT, wall_ms INTEGER NOT NULL, topic TEXT NOT NULL, bytes INTEGER NOT NULL,
        payload BLOB NOT NULL, reason TEXT NOT NULL)""",
)


def create_tables(connection: Connection) -> None:
    """Makes the tables of a new file. Raises StoreVersion for a buffer of another version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    if version != 0:
        raise StoreVersion(
            f"the buffer has version {version}, and this agent reads version {SCHEMA_VERSION}:"
            " let the agent that wrote it deliver what waits, then move its files away"
        )
    connection.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        connection.execute(table)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
