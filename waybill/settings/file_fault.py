"""What is wrong with a file that somebody named, in words that say what to look at."""

from __future__ import annotations

__all__ = ["file_fault"]


def file_fault(error: OSError | ValueError) -> str:
    """Why it cannot be used, without its name. ValueError: it was read, and does not hold what it should."""
    match error:
        case FileNotFoundError():
            return "there is no such file or folder"
        case IsADirectoryError():
            return "it is a folder: name a file in it"
        case NotADirectoryError():
            return "what stands before its last part is no folder"
        case PermissionError():
            return "this user has no right to it"
        case OSError(strerror=str() as problem) if problem:
            return problem
        case _:
            return str(error)
