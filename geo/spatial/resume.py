"""Where reading goes on after a place of a text that is not JSON: at the next object that is no part of what is broken.

One pass over brackets and strings. A quote opens a string only if what follows its end may follow a string, so that a
quote that is missing, or too many, turns no names and values inside out. Brackets that do not match are closed by the
next one that does.
"""

from __future__ import annotations

import re
from typing import Final

_MARK: Final = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\.)*+"(?=\s*(?:[,:}\]]|\Z))'  # a string
    r'|\\.'  # as in a string, so that each place is looked at once
    r'|\[[^"\\{}\[\]]*+\]'  # a list of numbers
    r'|["{}\[\]]'  # a quote that opens none, a bracket
)  # fmt: skip
_OBJECT, _ELEMENT, _MEMBER, _COORDINATES = range(4)
"""What is open: an object, or a list with the lists right in it: an element, the value of a member, coordinates."""


class Resumption:
    """Finds the place, in time linear in the text over all calls if each `begin` is at or after the last answer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._patience = len(text)  # characters that may be looked at in vain

    def after(self, begin: int, *, is_value: bool) -> int | None:
        """The first object from `begin` on, or after the value that begins there, that is no member and in no other.

        The elements of the open list are such objects, and those of a list `features`. Where a value does not end, the
        first object that lies right in its lists or coordinates is taken. None: there is none.
        """
        is_open, uncertain, offset = self._first(begin) if is_value else bytearray(), None, begin
        for mark_match in _MARK.finditer(self._text, begin + len(is_open)):
            offset = mark_match.start()
            mark = mark_match.group() if mark_match.end() == offset + 1 else ""
            if mark in ("}", "]"):
                if not _close(is_open, mark) and uncertain is not None:
                    break
                uncertain = uncertain if is_open else None
            elif mark == "[":
                self._open_list(is_open, offset)
            elif mark == "{":
                apart = self._is_apart(is_open, offset)
                if uncertain is None and (apart or self._is_uncertain(is_open, offset)):
                    uncertain = offset
                if apart or offset - (uncertain or offset) > self._patience:
                    break
                is_open.append(_OBJECT)
        if uncertain is not None:
            self._patience -= offset - uncertain  # nothing, if it is certain
        return uncertain

    def in_list(self, offset: int) -> bool:
        """Is what begins here an element of a list?"""
        before, comma = self._follows(offset)
        return comma or before == "["

    def _first(self, begin: int) -> bytearray:
        """What the value that begins here opens."""
        if self._text[begin : begin + 1] == "[":
            return bytearray([_MEMBER if self._follows(begin)[0] == ":" else _ELEMENT])
        return bytearray([_OBJECT] if self._text[begin : begin + 1] == "{" else [])

    def _open_list(self, is_open: bytearray, offset: int) -> None:
        if is_open and is_open[-1] != _OBJECT:
            is_open.append(is_open[-1])
        elif is_open or (self._follows(offset)[0] == ":" and self._name(offset) != "features"):
            is_open.append(_COORDINATES if self._name(offset) == "coordinates" else _MEMBER)

    def _is_apart(self, is_open: bytearray, offset: int) -> bool:
        """Is an object that begins here certainly no part of what is open?"""
        before, comma = self._follows(offset)
        if not is_open:
            return before != ":"
        return is_open[-1] == _OBJECT and before != ":" and (comma or before != '"')

    def _is_uncertain(self, is_open: bytearray, at: int) -> bool:
        """Is it a part only if what is open ends?"""
        return bool(is_open) and (
            is_open[-1] in (_ELEMENT, _COORDINATES) or (is_open[-1] == _OBJECT and self._follows(at)[0] == '"')
        )

    def _follows(self, offset: int) -> tuple[str, bool]:
        """The mark before what begins here, commas apart, and whether there is one; empty at the text's beginning."""
        comma = False
        before = offset - 1
        while before >= 0 and (self._text[before] == "," or self._text[before].isspace()):
            comma = comma or self._text[before] == ","
            before -= 1
        return (self._text[before] if before >= 0 else ""), comma

    def _name(self, offset: int) -> str:
        """The name of the member whose value begins here, in quotes or not, if it is a short one."""
        end = offset
        while end > 0 and (self._text[end - 1].isspace() or self._text[end - 1] in ":\"'"):
            end -= 1
        begin = end
        while begin > 0 and end - begin < 12 and self._text[begin - 1].isalpha():
            begin -= 1
        return self._text[begin:end]


def _close(is_open: bytearray, mark: str) -> bool:
    """Closes what the bracket closes, and what is open in it; False if that is more than one, or nothing is open."""
    if not is_open:
        return True
    if (mark == "}") == (is_open[-1] == _OBJECT):
        is_open.pop()
        return True
    if mark == "}":
        del is_open[max(is_open.rfind(_OBJECT), 0) :]
    else:
        # one by one, so that each is looked at once: a copy for each bracket would be quadratic
        while is_open and is_open[-1] == _OBJECT:
            is_open.pop()
        del is_open[-1:]
    return False
