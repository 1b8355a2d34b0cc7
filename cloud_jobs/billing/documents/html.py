"""A document as a page that prints: plain HTML, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from cloud_jobs.billing.documents import presentation
from cloud_jobs.billing.documents.canonical import Document


def document_to_html(document: Document) -> str:
    """The page. Every text in it is escaped, and keeps its reading direction to itself."""
    return _template().render(document=document, show=presentation)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cloud_jobs.billing.documents"),
        autoescape=select_autoescape(default=True),
        # a name that the document lacks is an error, not a blank on an invoice
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("document.html.j2")
