"""Texts that a derived table was computed with, kept beside the tables and stated by their numbers.

A table states integers alone. So its commit states the number of a text, which follows from what the text is, and the
text's file is written before the commit: what is stated is always known, or was never committed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from uuid import uuid4

from pyarrow.fs import FileType

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.tables import Lake


def text_number(content: bytes) -> int:
    """The number of a text: of another one it is another one."""
    # a signed 64-bit integer that is not negative
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTexts:
    """The texts of one kind: in which folder of the lake, in which folder therein, with which ending; `what`: in words,
    for an error, which `else_` ends with what can be done."""

    folder: str
    within: str
    ending: str
    what: str
    else_: str

    def path(self, number: int) -> str:
        """Where the text of a number is in the folder."""
        return f"{self.within}/{number:016x}.{self.ending}"

    def note(self, lake: Lake, content: bytes) -> int:
        """Writes a text that is not there yet, and returns its number. Raises OSError, LakeError."""
        files, number = lake.files(self.folder), text_number(content)
        if self.read(lake, number) is None:
            files.create_dir(self.within, recursive=True)
            beside = f"{self.within}/{uuid4().hex}.part"
            with files.open_output_stream(beside) as file:
                file.write(content)
            files.move(beside, self.path(number))
        return number

    def read(self, lake: Lake, number: int) -> bytes | None:
        """The text of a number; None: it is not kept, or its file holds something else.

        Raises StoreUnavailable, LakeError: a file that is there and gives no answer says nothing of what it holds.
        """
        try:
            with lake.location.errors_named(), lake.files(self.folder).open_input_file(self.path(number)) as file:
                content = bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            place = f"{lake.path(self.folder)}/{self.path(number)}"
            raise LakeError(
                f"the {self.what} cannot be read: {place}: {error_text(error)}; if it stays so, {self.else_}"
            ) from error
        return content if text_number(content) == number else None

    def is_kept(self, lake: Lake, number: int) -> bool:
        """Whether the file of a number is there."""
        with lake.location.errors_named():
            return lake.files(self.folder).get_file_info(self.path(number)).type is not FileType.NotFound
