"""`waybill bill`: close a period, issue, adjust and void its invoices, show them, and pass them to accounting."""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Group, RenderableType
from rich.text import Text

from cloud_jobs.billing.billing_period import BillingPeriod, days_text
from cloud_jobs.billing.contracts.fields import Id, Language
from cloud_jobs.billing.documents import (
    PLAIN,
    Document,
    DocumentContent,
    DocumentError,
    Form,
    Look,
    document_table,
    files_of,
    write_documents,
)
from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.documents_of import issued_document, look_of, outstanding
from cloud_jobs.billing.register.errors import AlreadyIssued, NothingClosed, NothingToAdjust, NothingToIssue
from cloud_jobs.billing.register.journal import DatevBatch, DatevSettings, csv_lines, postings_of
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.operations import Clerk, PostingResult, adjust_period, issue_period, void_invoice
from cloud_jobs.billing.register.payments import balance_of, balances, import_payments
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.billing.register.terminal import (
    balance_values,
    changes_table,
    changes_values,
    closing_values,
    closings_table,
    document_values,
    documents_table,
    preview_values,
    previews_table,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.snapshots import read_snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake, checked_time
from cloud_jobs.reference.tables import reference_taken_at
from cloud_jobs.terminal import cloud_errors_as_messages, screen
from geo.reference.moments import stamp
from waybill.daemon.durable_file import writing_durably
from waybill.settings import file_fault, load, open_file, printable_json


def write_issued(
    register: Register, documents: Iterable[IssuedDocument], folder: Path, forms: Collection[Form]
) -> Iterator[str]:
    """Writes documents into a folder, one after the other; yields a message for each that could not be written.

    Those documents are issued all the same. Raises RegisterDamaged, LakeError, StoreUnavailable.
    """
    for one in documents:
        made = issued_document(register, one.number)
        try:
            files = files_of(made, forms, _look(partial(look_of, register.lake), made, forms))
            write_documents(folder, {name: one for name, one in files.items() if not (folder / name).exists()})
        except DocumentError as error:
            # a command that writes it later
            words = ["waybill", "bill", "show", one.number, "--lake", str(register.lake.location)]
            words += ["--out", str(folder)]
            words += [word for form in forms for word in ("--form", form.value)]
            yield f"{one.number} is issued, but not written: {error}; `{shlex.join(words)}` writes it"


NOT_ALL: Final = 3
"""Exit status if only a part could be done."""
EXIT_STATUSES: Final = (
    "Exit status: 0 done; 1 an error, nothing was written; 2 wrong options; 3 done except for the named items; 74"
    " written, but a power cut can undo it; 75 the store does not answer."
)
"""The epilog of each command's help."""
app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help=f"Close periods; issue, adjust, void and show invoices. {EXIT_STATUSES}",
)

_ID: Final = TypeAdapter(Id)


def payer_id(text: str) -> str:
    """Raises BadParameter for a text that is no account id."""
    try:
        return _ID.validate_python(text)
    except ValidationError as error:
        raise typer.BadParameter(f"{text[:100]!r} is not an account id: small letters, digits, . _ -") from error


def period_text(text: str) -> str:
    """Raises BadParameter for a text that is no period."""
    try:
        days_of(text)
    except BadPeriod as error:
        raise typer.BadParameter(str(error)) from error
    return text


LakeOption = Annotated[
    str,
    typer.Option("--lake", help="A folder, or s3://BUCKET/PREFIX with the AWS variables of the environment."),
]
PeriodOption = Annotated[
    str,
    typer.Option(
        "--period",
        parser=period_text,
        metavar="DAYS",
        help="2026, 2026-03, 2026-03-05 or 2026-03-05/2026-03-19: local days in the payer's time zone.",
    ),
]
PayersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--payer", parser=payer_id, metavar="ID", help="Only this payer; may be repeated. Default: all payers."
    ),
]
SnapshotOption = Annotated[str | None, typer.Option("--snapshot", help="Use this snapshot instead of a new one.")]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Your name, stored with the document. Default: the login name.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write all documents of the period into this folder; existing files stay.")
]
FormOption = Annotated[
    list[Form] | None, typer.Option("--form", help="The format to write; may be repeated. Default: JSON.")
]


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def close(
    *,
    lake: LakeOption,
    period: PeriodOption,
    payer: PayersOption = None,
    snapshot: SnapshotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute what each payer owes for a period, and whether it is final. No invoice is created.

    Exit status 3: some closings are not final.

    Example: waybill bill close --lake lake --period 2026-03
    """
    # imported here, because only `close` needs rating
    from cloud_jobs.billing.register.close import close_period, unbilled_text
    from cloud_jobs.billing.register.closer import ClosingRun

    tables = _lake(lake)
    tables.check("records")
    # creates the register's tables in an older lake
    tables.create()
    now = checked_time(tables)
    taken = take_snapshot(tables, now) if snapshot is None else read_snapshot(tables, snapshot)
    run = ClosingRun(name=token_hex(8), snapshot=taken.number, snapshot_id=taken.id, now=now)
    unbilled = list[TenantDevice]()
    closings = close_period(tables, taken, days_of(period), payer, run=run, unbilled=unbilled.extend)
    _print(as_json, [closing_values(one) for one in closings], closings_table(closings))
    if snapshot is None and not as_json and (taken_over := reference_taken_at(tables)):
        # later publications are not in the snapshot
        typer.echo(f"contracts as of {stamp(taken_over)}, when `cloud-jobs usage` copied them")
    if unbilled:
        typer.echo(f"bill: {unbilled_text(unbilled)}", err=True)
    if advice := advice_while_running(closings, now, "--lake", lake, "--period", period):
        typer.echo(f"bill: {advice}", err=True)
    if any(one.outcome is not ClosingState.FINAL for one in closings):
        raise typer.Exit(NOT_ALL)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def preview(
    *,
    lake: LakeOption,
    period: Annotated[
        str | None,
        typer.Option(
            "--period", parser=period_text, metavar="DAYS", help="As for `close`. Default: the current month."
        ),
    ] = None,
    payer: PayersOption = None,
    form: Annotated[
        list[Form] | None, typer.Option("--form", help="Its format; with --out it may be repeated. Default: a table.")
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a file for each payer and format to this folder. Default: JSON.")
    ] = None,
) -> None:
    """Show what a period costs as of now: provisional, marked as a preview, without a number, and never stored.

    Exit status 3: a payer is blocked, so it has no preview.

    Example: waybill bill preview --lake lake --payer acme
    """
    # imported here, because only `close` and `preview` need rating
    from cloud_jobs.billing.register.close import unbilled_text
    from cloud_jobs.billing.register.preview import preview_period, running_days

    if booked := {Form.UBL, Form.CII}.intersection(form or []):
        raise typer.BadParameter(
            f"a preview is not an invoice, so it has no {min(booked).upper()}; use json, csv or pdf"
        )
    _check_folder(form or [], out)
    tables = _lake(lake)
    tables.check("records")
    now = checked_time(tables).replace(microsecond=0)
    days = running_days(now.date()) if period is None else days_of(period)
    found = preview_period(tables, days, payer, now)
    documents = [one.document for one in found.payers if one.document is not None]
    if as_json and out is None:
        _print(True, preview_values(found), Group())
    else:
        _show(documents, form or [], out, lambda: previews_table(found), partial(look_of, tables))
    for one in found.payers:
        if one.document is None:
            typer.echo(f"bill: {one.closing.key.payer} is blocked: {'; '.join(one.closing.reasons)}", err=True)
    if taken_over := reference_taken_at(tables):
        typer.echo(f"contracts as of {stamp(taken_over)}, when `cloud-jobs usage` copied them", err=True)
    if found.unbilled:
        typer.echo(f"bill: {unbilled_text(found.unbilled)}", err=True)
    if len(documents) < len(found.payers):
        raise typer.Exit(NOT_ALL)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def issue(
    *,
    lake: LakeOption,
    period: PeriodOption,
    payer: PayersOption = None,
    by: ByOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
    form: FormOption = None,
) -> None:
    """Issue and number the invoices of a closed period, each once. Exit status 3: the named invoices were not issued.

    Example: waybill bill issue --lake lake --period 2026-03 --out invoices --form pdf --form ubl
    """
    _post(issue_period, lake, period, payer, by=by, out=out, form=form, as_json=as_json)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def adjust(
    *,
    lake: LakeOption,
    period: PeriodOption,
    payer: PayersOption = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason shown on the note. Default: the snapshot of the closing.")
    ] = "",
    by: ByOption = None,
    as_json: JsonOption = False,
    out: OutOption = None,
    form: FormOption = None,
) -> None:
    """Post the changes of a newer closing as credit and debit notes. Exit status 3: some notes were not posted.

    Example: waybill bill adjust --lake lake --period 2026-03 --reason "the vehicle was without network until 4 April"
    """
    _post(adjust_period, lake, period, payer, by=by, reason=reason, out=out, form=form, as_json=as_json)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def void(
    number: Annotated[str, typer.Argument(help="The number of the invoice.")],
    *,
    lake: LakeOption,
    reason: Annotated[str, typer.Option("--reason", help="Reason shown on the note.")],
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel an invoice and its notes with one note. The period can then be issued again.

    Example: waybill bill void WB-EU-00000001 --lake lake --reason "wrong buyer"
    """
    register = Register(_lake(lake))
    clerk = _clerk(register.lake, by)
    made = void_invoice(register, number, reason, clerk=clerk)
    _print(as_json, [document_values(made)], documents_table([made]))


@app.command("closings", epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def list_closings(
    *, lake: LakeOption, period: PeriodOption, payer: PayersOption = None, as_json: JsonOption = False
) -> None:
    """Show the valid (newest) closing of each payer for exactly these days, with its snapshot.

    Example: waybill bill closings --lake lake --period 2026-03
    """
    days = days_of(period)
    newest = {one.key.payer: one for one in Register(_lake(lake)).closings(*days, payer)}
    if not newest:
        raise NothingClosed(days_text(*days))
    found = [*newest.values()]
    _print(as_json, [closing_values(one) for one in found], closings_table(found, with_snapshots=True))


@app.command("list", epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def list_documents(
    *,
    lake: LakeOption,
    period: Annotated[
        str | None,
        typer.Option(
            "--period",
            parser=period_text,
            metavar="DAYS",
            help="Only documents whose period overlaps these days. Default: all.",
        ),
    ] = None,
    payer: PayersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List issued documents.

    Example: waybill bill list --lake lake --period 2026-03
    """
    first, last = (None, None) if period is None else days_of(period)
    register = Register(_lake(lake))
    found = register.documents(payer, first_day=first, last_day=last)
    balance = balances(register, found, datetime.now(UTC))
    values = [document_values(one) | balance_values(balance[one.number]) for one in found]
    _print(as_json, values, documents_table(found, balance))


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def show(
    number: Annotated[str, typer.Argument(help="The number of the invoice or note.")],
    *,
    lake: LakeOption,
    form: Annotated[
        list[Form] | None, typer.Option("--form", help="Its format; with --out it may be repeated. Default: a table.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --form json.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the document to this folder in these formats. Default: JSON."),
    ] = None,
    language: Annotated[
        Language | None,
        typer.Option("--language", help="Of the PDF and the table. Default: the payer's; table: English."),
    ] = None,
) -> None:
    """Show a document, rebuilt from the register and verified against its stored digest.

    The PDF of an invoice or note has its CII inside (Factur-X, ZUGFeRD), and the language of the payer.

    Example: waybill bill show WB-EU-00000001 --lake lake --form pdf --form ubl --out invoices
    """
    forms = [*(form or []), *([Form.JSON] if as_json else [])]
    _check_folder(forms, out)
    tables = _lake(lake)
    register = Register(tables)
    made = issued_document(register, number)
    looks = partial(look_of, tables, language=language)

    def table() -> RenderableType:
        shown = document_table(made, look_of(tables, made, language or "en"))
        return Group(shown, Text(f"Payment: {balance_of(register, number, datetime.now(UTC)).text}"))

    _show([made], forms, out, table, looks)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def journal(
    *,
    lake: LakeOption,
    period: Annotated[
        str,
        typer.Option("--period", parser=period_text, metavar="DAYS", help="The days of issue, as for `close`."),
    ],
    payer: PayersOption = None,
    datev: Annotated[
        Path | None,
        typer.Option("--datev", help="Accounts of a seller (TOML); writes a posting batch for DATEV instead of a CSV."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write. Default: standard output.")] = None,
) -> None:
    """Write the documents that were issued on these days for accounting.

    Exit status 3: documents in another currency than the batch are left out.

    Example: waybill bill journal --lake lake --period 2026-03 --datev datev.toml --out EXTF_2026-03.csv
    """
    days, register = days_of(period), Register(_lake(lake))
    batch = None if datev is None else DatevBatch(load(DatevSettings, datev), *days)
    seller = None if batch is None else batch.settings.legal_entity
    heads = (row["head"] for row in register.heads(*days, payer) if seller in (None, row["legal_entity"]))
    if (first := next(heads, None)) is None:
        typer.echo(f"bill: no document was issued from {days[0]} to {days[1]}; a journal is by days of issue", err=True)
    postings = chain.from_iterable(map(postings_of, chain(filter(None, [first]), heads)))
    lines = csv_lines(postings) if batch is None else batch.lines(postings, datetime.now(UTC))
    pieces = (line.encode("utf-8" if batch is None else "cp1252", "replace") for line in lines)
    if out is None:
        _write(pieces)
    else:
        with writing_durably(out) as file:
            file.writelines(pieces)
    if batch is not None and batch.left_out:
        typer.echo(
            f"bill: {batch.left_out:,} postings in other currencies than {batch.settings.currency} are left out",
            err=True,
        )
        raise typer.Exit(NOT_ALL)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def paid(
    file: Annotated[Path, typer.Argument(help="CSV: document,date,amount,currency and, if you like, reference.")],
    *,
    lake: LakeOption,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import payments from the accounting system; a row that was imported before changes nothing.

    Exit status 3: the named rows were refused, all others are imported.

    Example: waybill bill paid payments.csv --lake lake
    """
    register = Register(_lake(lake))
    clerk = _clerk(register.lake, by)
    # creates the register's tables in an older lake
    register.lake.create()
    try:
        with open_file(file) as binary, TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
            found = import_payments(register, text, by=clerk.by, now=clerk.now)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {file_fault(error)}") from error
    if as_json:
        refused = [one._asdict() for one in found.refused]
        _print(True, {"imported": found.imported, "known": found.known, "refused": refused}, Group())
    else:
        typer.echo(
            f"{found.imported:,} payments imported, {found.known:,} known already, {len(found.refused):,} refused"
        )
        for one in found.refused:
            typer.echo(f"bill: {file}:{one.line}: {one.reason}", err=True)
    if found.refused:
        raise typer.Exit(NOT_ALL)


@app.command(epilog=EXIT_STATUSES)
@cloud_errors_as_messages("bill")
def diff(
    *,
    lake: LakeOption,
    period: PeriodOption,
    payer: Annotated[str, typer.Option("--payer", parser=payer_id, metavar="ID", help="The payer's id.")],
    as_json: JsonOption = False,
) -> None:
    """Show what `adjust` would post.

    Example: waybill bill diff --lake lake --period 2026-03 --payer acme
    """
    register = Register(_lake(lake))
    found = outstanding(register, days_of(period), payer)
    _print(as_json, changes_values(*found), changes_table(*found))


def advice_while_running(closings: Iterable[Closing], now: datetime, *options: str) -> str:
    """The command that shows the cost of a period that is not over; "" if all are."""
    if all(one.period_end <= now for one in closings):
        return ""
    words = shlex.join(["waybill", "bill", "preview", *options])
    return f"the period is not over; `{words}` shows what it costs so far"


def _lake(text: str) -> Lake:
    return Lake(Location.of(text))


def days_of(text: str) -> Days:
    """First and last day of a period; the time zone is the payer's."""
    period = BillingPeriod.parse(text, "UTC")
    return period.first_day, period.last_day


def _clerk(lake: Lake, by: str | None, reason: str = "") -> Clerk:
    if by is None:
        try:
            by = getpass.getuser()
        except (KeyError, OSError) as error:
            # containers often have no user name
            raise typer.BadParameter("this user has no login name; add --by") from error
    return Clerk(by=by, now=checked_time(lake), attempt=token_hex(8), reason=reason)


def _post(
    operation: Callable[..., PostingResult],
    lake: str,
    period: str,
    payers: list[str] | None,
    *,
    by: str | None,
    reason: str = "",
    out: Path | None,
    form: list[Form] | None,
    as_json: bool,
) -> None:
    """Posts, then prints the documents and the refusals. What was already done is no failure."""
    register, days = Register(_lake(lake)), days_of(period)
    if out is None and form:
        raise typer.BadParameter("formats need a folder: add --out")
    done = operation(register, days, payers, clerk=_clerk(register.lake, by, reason))
    # a repeated command succeeds
    refused = [one for one in done.refused if not isinstance(one, AlreadyIssued | NothingToAdjust | NothingToIssue)]
    values = {
        "documents": [document_values(one) for one in done.documents],
        "refused": [{"payer": one.payer, "kind": type(one).__name__, "reason": str(one)} for one in done.refused],
    }
    # printed first, because documents are issued even if files cannot be written
    if as_json or done.documents:
        _print(as_json, values, documents_table(done.documents))
    if not as_json:
        for one in done.refused:
            typer.echo(f"bill: {one}", err=True)
    unwritten = list[str]()
    if out is not None:
        # includes documents of an earlier command that died before it wrote them
        found = register.documents(payers, first_day=days[0], last_day=days[1])
        of_days = [one for one in found if (one.key.first_day, one.key.last_day) == days]
        unwritten += write_issued(register, of_days, out, form or [Form.JSON])
    for lost in unwritten:
        typer.echo(f"bill: {lost}", err=True)
    if refused or unwritten:
        raise typer.Exit(NOT_ALL)


def _check_folder(forms: Sequence[Form], out: Path | None) -> None:
    if out is None and len(forms) > 1:
        raise typer.BadParameter("several formats need a folder: add --out")


def _show(
    documents: Sequence[Document],
    forms: Sequence[Form],
    out: Path | None,
    table: Callable[[], RenderableType],
    looks: Callable[[Document], Look],
) -> None:
    """Writes documents to a folder, one in a format to standard output, or prints the table."""
    if out is not None:
        files: dict[str, DocumentContent] = {}
        for one in documents:
            files |= files_of(one, forms or [Form.JSON], _look(looks, one, forms))
        write_documents(out, files)
        for name in files:
            typer.echo(str(out / name))
    elif not forms:
        screen().print(table())
    elif len(documents) > 1:
        raise typer.BadParameter("several payers need a folder: add --out, or choose one with --payer")
    else:
        for one in documents:
            _write(DocumentContent(one, forms[0], _look(looks, one, forms)))


def _look(looks: Callable[[Document], Look], document: Document, forms: Collection[Form]) -> Look:
    """Reads names and logo only for a form that shows them."""
    return looks(document) if Form.PDF in forms else PLAIN


def _print(as_json: bool, values: Any, table: RenderableType) -> None:
    if as_json:
        _write([printable_json(values, indent=2, sort_keys=True).encode(), b"\n"])
    else:
        screen().print(table)


def _write(content: Iterable[bytes]) -> None:
    for piece in content:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
