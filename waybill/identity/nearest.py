"""Which name may be meant by one that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean", "nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that is like it but for a slip of the pen, upper and lower case or two letters; "": there is none."""
    folded = {one.casefold(): one for one in known}
    swapped = [one for one in folded if sorted(one) == sorted(name.casefold())]
    near = [one for one in (name.casefold(),) if one in folded] or swapped
    near = near or get_close_matches(name.casefold(), folded, 1)
    return folded[near[0]] if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME? `, or nothing where no name is like it."""
    near = nearest(name, known)
    return f"did you mean {near}? " if near else ""
