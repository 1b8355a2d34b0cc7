"""The pages of a shared link: one document, its lines and their evidence, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from console.context import LOCAL, Console, Query, Viewer
from console.errors import ConsoleRefused, NotThere
from console.links import open_link
from console.page import Download, Page, address
from console.pages import documents
from console.pages.documents import Place

_log = structlog.get_logger(__name__)


def page(console: Console, query: Query) -> Page:
    """The document of a link."""
    return _shown(console, query, documents.document_page)


def line_page(console: Console, query: Query) -> Page:
    """A line of the document of a link."""
    return _shown(console, query, documents.line_page_at)


def hour_page(console: Console, query: Query) -> Page:
    """An hour of a line of the document of a link."""
    return _shown(console, query, documents.hour_page_at)


def file(console: Console, query: Query) -> Download:
    """The document of a link as a file."""
    asked, place = _opened(console, query)
    return documents.file_of(console, asked, place.number)


def _shown(console: Console, query: Query, view: Callable[[Console, Query, Place], Page]) -> Page:
    asked, place = _opened(console, query)
    return view(console, asked, place)


def _opened(console: Console, query: Query) -> tuple[Query, Place]:
    """The query as the document's payer may ask it: whoever has a link sees what that payer sees of the document."""
    token = query.path["token"]
    try:
        link = open_link(console.settings.console, token, console.now())
    except ConsoleRefused as error:
        # strangers learn nothing of the settings
        _log.warning("no shared link can be opened", error=str(error))
        raise NotThere("shared links cannot be opened now") from None
    payer = console.bills.entry(LOCAL, link.number).key.payer
    viewer = Viewer(f"link {link.id}", accounts=frozenset({payer}))
    return replace(query, viewer=viewer), Place(link.number, address("shared", token), bare=True)
