"""A bill as a page that prints: plain HTML, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from cloud_jobs.billing.document import Document

OUTSIDE = "outside all zones"


def to_html(document: Document) -> str:
    """The page of a bill's document. Every text in it is escaped."""
    return _template().render(invoice=document, outside=OUTSIDE)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("cloud_jobs.billing"),
        autoescape=select_autoescape(default=True),
        # a name that the document lacks is an error, not a blank on an invoice
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("invoice.html.j2")
