"""What can go wrong when the truth is computed."""


class TruthError(Exception):
    """A file of the scenario or the journal that cannot be understood; the message names file and line."""
