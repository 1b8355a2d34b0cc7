"""`waybill reference`: checks, publishes and shows reference data."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from cloud_jobs.commands import load_settings
from cloud_jobs.lake.location import Location
from cloud_jobs.terminal import Column, FittedTable, cloud_errors_as_messages, screen
from geo.reference.moments import beginning
from waybill.daemon.stack_folder import stack_settings
from waybill.identity.command_session import shows_progress
from waybill.settings import printable, printable_json

if TYPE_CHECKING:
    from cloud_jobs.billing.register.effect import Effect
    from cloud_jobs.config import CloudSettings
    from cloud_jobs.lake.tables import Lake
    from cloud_jobs.reference.checks import ReferenceCheck
    from cloud_jobs.reference.files import Signing
    from geo.reference.in_force import HeldVersion, RefusedVersion
    from geo.reference.messages import ReferenceTrust


# `waybill reference check`.


@cloud_errors_as_messages("waybill reference")
def check(
    files: Annotated[list[Path], typer.Argument(help="TOML of contracts, GeoJSON of fences, or folders of them.")],
    *,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake", help="Also compare with the published versions in this lake: a folder, or s3://BUCKET/PREFIX."
        ),
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(
            "--period", metavar="DAYS", help="With --lake: the days that are rated again, 2026-03. Default: last month."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check contract files and list each fault with file and line.

    With --lake, also compare them with published versions. This also finds: a device in two accounts, an account
    without a payer, an unknown tariff or price zone, a currency change within a month. The command also lists devices
    without a payer and meters that become free. It rates last month with and without the new versions, and shows which
    sums change and why.

    Exit status: 0 if the files can be published, 1 when they have a fault, 75 when the object store does not answer.

    Example: waybill reference check contracts.toml --lake lake
    """
    from cloud_jobs.billing.billing_period import BillingPeriod
    from cloud_jobs.billing.errors import BadPeriod
    from cloud_jobs.billing.register.effect import effect_of, month_before
    from cloud_jobs.errors import ReferenceFileError
    from cloud_jobs.lake.tables import Lake
    from cloud_jobs.reference.checks import check_reference

    now = datetime.now(UTC)
    try:
        of_days = None if period is None else BillingPeriod.parse(period, "UTC")
    except BadPeriod as error:
        raise typer.BadParameter(str(error)) from None
    there = None if lake is None else Lake(Location.of(lake))
    try:
        judged = check_reference(files, there, now)
    except ReferenceFileError as error:
        _say(list(error.faults), [], Counter(), with_lake=lake is not None, as_json=as_json)
        raise typer.Exit(1) from None
    checked = judged.checked
    # without a lake what is not in the files may be published already
    faults = [*checked.faults, *(checked.lacking if there else [])]
    warnings = [*checked.notices, *([] if there else (f"not in these files: {one}" for one in checked.lacking))]
    effect = None
    if there is not None and not faults:
        days = month_before(now) if of_days is None else (of_days.first_day, of_days.last_day)
        effect = effect_of(there, judged.rows, days, now)
    _say(faults, warnings, judged.counts, with_lake=lake is not None, as_json=as_json, effect=effect)
    if faults:
        raise typer.Exit(1)


def _say(
    faults: list[str],
    warnings: list[str],
    counts: Counter[Any],
    *,
    with_lake: bool,
    as_json: bool,
    effect: Effect | None = None,
) -> None:
    from cloud_jobs.reference.files import counts_text

    if as_json:
        made = {"faults": faults, "warnings": warnings, "versions": dict(sorted(counts.items()))}
        made |= {} if effect is None else {"effect": effect.values()}
        sys.stdout.write(printable_json(made, indent=2) + "\n")
        return
    for fault in faults:
        typer.echo(printable(fault), err=True)
    for warning in warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    if faults:
        typer.echo(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}; nothing can be published", err=True)
        return
    alone = "" if with_lake else " (not compared with a lake)"
    typer.echo(f"no fault{alone}: {counts_text(counts) or 'the files hold no version'}")
    for line in () if effect is None else effect.texts():
        typer.echo(printable(line))


MAX_LINES: Final = 100
"""The most lines of a difference that are shown without --json."""
app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Check, publish and show fences, contracts and alert rules.",
)
_TAKEN_OVER: Final = (
    "the next run of `cloud-jobs usage` copies them into the lake; closings before that use the earlier versions"
)
_AT_ONCE: Final = {
    "fence": "alert processes apply new fences and gates at once",
    "alert_rule": "`waybill alerts deliver` applies new alert rules at once",
}
"""The kinds that take effect before a job copies them into the lake."""
Config = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        default_factory=stack_settings("publisher.toml"),
        help="The settings of the jobs, a TOML file. Default: publisher.toml of the local stack.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _known_kind(kind: str | None) -> str | None:
    from geo.reference.messages import TOPICS

    # an unknown kind would show an empty list
    if kind is not None and kind not in TOPICS:
        raise typer.BadParameter(f"unknown kind {kind!r}; known are {', '.join(TOPICS)}")
    return kind


OfKind = Annotated[
    str | None, typer.Option("--kind", help="Only this kind: account, tariff, fence ...", callback=_known_kind)
]
LakeAt = Annotated[str, typer.Option("--lake", help="The lake: a folder, or s3://BUCKET/PREFIX.")]
Files = Annotated[
    list[Path],
    typer.Argument(help="GeoJSON of fences, TOML of contracts, or folders with fences.geojson and contracts."),
]

app.command()(check)


@app.command()
@cloud_errors_as_messages("waybill reference")
def put(
    files: Files,
    *,
    config: Config,
    key: Annotated[Path | None, typer.Option("--key", help="Your private key, for the signature.")] = None,
    reason: Annotated[str, typer.Option("--reason", "-m", help="Reason in one line, stored with the publication.")],
    as_json: AsJson = False,
) -> None:
    """Check files and publish all versions in them. If any has a fault, publish none.

    The checks are those of `waybill reference check`, with the lake if there is one. A reference to something that is
    not yet in the lake, such as a tariff published a moment ago, is only a warning.

    Your key signs each publication, which stores author, time and reason: see `waybill reference history`. A key that
    is not trusted, or not allowed to publish a version, is a fault.

    Jobs copy new fences, tariffs and accounts at their next run. The latest publication of a version is in force, so
    publishing a file again restores its versions.

    Exit status: 0 published; 1 the files have a fault, the key has no right, or no cluster accepts them; 78 for wrong
    settings.

    Example: waybill reference put contracts.toml --config cloud.toml --key anna.key --reason "prices of 2027"
    """
    from cloud_jobs.errors import ReferenceFileError
    from cloud_jobs.reference import files as reference_files
    from cloud_jobs.reference import files as reference_publisher
    from cloud_jobs.reference.checks import check_reference
    from geo.reference.messages import TOPICS

    settings = load_settings(config)
    # the first contracts are often published before any job has run
    lake = settings.tables if settings.tables.has("reference") else None
    judged = check_reference(files, lake, datetime.now(UTC))
    if judged.checked.faults:
        raise ReferenceFileError(judged.checked.faults)
    signing = _signing(settings, key, reason, judged)
    warnings = [*(f"not there yet: {one}" for one in judged.checked.lacking), *judged.checked.notices]
    for warning in warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    same = 0 if lake is None else _same(lake, judged)
    with shows_progress(program="waybill reference") as on_progress:
        on_progress("publishing", len(judged.versions))
        reference_publisher.check_clock([one.admin_url for one in settings.clusters], settings.access)
        reference_publisher.publish(settings.service_urls, judged.versions, settings.access, signing=signing)
    counts = judged.counts
    if as_json:
        _print_json({"published": {kind: counts[kind] for kind in TOPICS}, "warnings": warnings, "same": same})
    else:
        again = f"; {same} of them as the lake has it in force" if same else ""
        typer.echo(f"published: {reference_files.counts_text(counts) or 'nothing, the files hold no version'}{again}")
        for said in _who_goes_by(counts):
            typer.echo(said)


def _same(lake: Lake, judged: ReferenceCheck) -> int:
    """The number of versions that are already in force."""
    from cloud_jobs.reference.checks import diffs
    from cloud_jobs.reference.tables import publications_in

    return sum(one.change == "same" for one in diffs(publications_in(lake), judged.placed))


def _who_goes_by(kinds: Collection[str]) -> list[str]:
    """When published kinds take effect, one line each."""
    at_once = [said for kind, said in _AT_ONCE.items() if kind in kinds]
    return [*at_once, *([_TAKEN_OVER] if set(kinds) - {"alert_rule"} else [])]


def _signing(settings: CloudSettings, path: Path | None, reason: str, judged: ReferenceCheck) -> Signing | None:
    """The signature of a publication, if the centre would accept it. Raises CloudError, NobodyTrusted."""
    from cloud_jobs.errors import CloudError, ReferenceFileError
    from cloud_jobs.reference.files import Signing
    from geo.reference.messages import scope_of
    from waybill.identity.errors import OperatorKeyRefused, SignatureRefused
    from waybill.identity.signatures import checked_reason, read_operator_key

    # judged here by what the centre will judge by: what it would put into quarantine is not published
    keys = settings.reference.trust().keys
    try:
        reason = checked_reason(reason)
        if path is None:
            if keys is None:
                return None
            raise CloudError("this centre accepts only signed publications: add --key FILE")
        private = read_operator_key(path)
    except (OperatorKeyRefused, ValueError) as error:
        raise CloudError(str(error)) from error
    faults, now = list[str](), datetime.now(UTC)
    for placed in () if keys is None else judged.placed:
        scope = scope_of(placed.version.kind, json.loads(placed.version.body))
        try:
            assert keys is not None
            keys.check(private.key_id, scope=scope, moment=now)
        except SignatureRefused as refused:
            faults.append(f"{placed.place}: {placed.version.kind} {placed.version.id!r}: {refused}")
    if faults:
        raise ReferenceFileError(faults)
    return Signing(private, reason)


@app.command("list")
@cloud_errors_as_messages("waybill reference")
def list_(
    *,
    lake: LakeAt,
    kind: OfKind = None,
    as_json: AsJson = False,
) -> None:
    """List all versions in the lake with their authors, and those that cannot be used.

    A version with a `problem` is not in force; the previous version stays in force. Bills of its account name the
    problem and stay provisional until a corrected version is published. Messages that are malformed or not signed with
    a trusted key are listed as `quarantined`, with position and reason.

    Exit status: 0; 1 for a lake that cannot be read; 75 when the object store does not answer.

    Example: waybill reference list --lake lake --kind account
    """
    from cloud_jobs.reference.files import usable
    from cloud_jobs.reference.tables import in_force, publications_in, quarantined_messages
    from cloud_jobs.run_result import quarantine_table
    from geo.reference.messages import TOPICS, named_message

    there = _lake(lake)
    rows = [row for row in publications_in(there) if kind in {None, row["kind"]}]
    found, published = in_force(rows, usable), {row["publication_id"]: row for row in rows}
    shown = [
        *map(_held_row, found.held),
        *(_refused_row(one, published[one.publication_id]) for one in found.refused),
    ]
    shown = sorted(shown, key=_version)
    topic = "" if kind is None else next(name for one, name in TOPICS.items() if one == kind)
    quarantined = [row for row in quarantined_messages(there) if row["topic"].endswith(topic)]
    if as_json:
        plain = [{name: _plain(value) for name, value in row.items()} for row in quarantined]
        _print_json({"versions": shown, "quarantined": plain})
        return
    console = screen()
    console.print(_list_table(shown))
    if quarantined:
        console.print(quarantine_table(map(named_message, quarantined)))


@app.command()
@cloud_errors_as_messages("waybill reference")
def diff(files: Files, *, lake: LakeAt, as_json: AsJson = False) -> None:
    """Compare files with the versions in force, line by line.

    A version is compared with the one in force that has the same start, which it would replace; otherwise with the
    previous one.

    Exit status: 0 no change; 1 changes, or the files have a fault; 75 when the object store does not answer.

    Example: waybill reference diff contracts.toml --lake lake
    """
    from cloud_jobs.reference.checks import diffs
    from cloud_jobs.reference.files import read_placed
    from cloud_jobs.reference.tables import publications_in

    placed = read_placed(files)
    found = list(diffs(publications_in(_lake(lake)), placed))
    if as_json:
        _print_json({"versions": [one._asdict() for one in found]})
    else:
        for one in found:
            since = f" from {one.effective_from}" if one.effective_from else ""
            beside = f" {one.compared_with}" if one.compared_with else ""
            typer.echo(printable(f"{one.place}: {one.kind} {one.id}{since}: {one.change}{beside}"))
            for line in one.lines[:MAX_LINES]:
                typer.echo(printable(f"    {line}"))
            if len(one.lines) > MAX_LINES:
                typer.echo(f"    and {len(one.lines) - MAX_LINES:,} more lines, which --json names")
    if any(one.change != "same" for one in found):
        raise typer.Exit(1)


@app.command()
@cloud_errors_as_messages("waybill reference")
def history(
    thing: Annotated[str, typer.Argument(metavar="ID", help="The id of a fence, a tariff, an account ...")],
    *,
    lake: LakeAt,
    kind: OfKind = None,
    operators: Annotated[
        Path | None, typer.Option("--operators", help="Check each signature with these trusted keys.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show all publications of an id: time, author, reason, signature and result.

    With --operators, each signature is checked again. Refused messages of the id are also shown.

    Exit status: 0; 1 if the id was never published, or the lake cannot be read; 75 when the object store does not
    answer; 78 for keys that cannot be read.

    Example: waybill reference history acme --lake lake --operators operators.toml
    """
    from cloud_jobs.reference.checks import history as history_of
    from cloud_jobs.reference.tables import publications_in

    there = _lake(lake)
    rows = [row for row in publications_in(there) if row["id"] == thing and kind in {None, row["kind"]}]
    quarantined = [row for row in there.rows("reference_quarantine").to_pylist() if _names(row["key"] or "", thing)]
    found = history_of(rows, quarantined, _trust(operators))
    if as_json:
        _print_json({"publications": [one._asdict() for one in found]})
    elif found:
        table = FittedTable(
            *map(Column, ("published", "by")),
            Column.text("why"),
            *map(Column, ("signature", "state", "kind", "effective from")),
            Column("publication"),
            Column.text("problem"),
        )
        for one in found:
            words = (one.published_at, one.published_by, one.reason, one.signature, one.state, one.kind)
            table.add(*words, one.effective_from, one.publication_id, one.problem)
        screen().print(table)
    if not found:
        typer.echo(f"waybill reference: nothing of the id {thing!r} was published", err=True)
        raise typer.Exit(1)


def _names(key: str, thing: str) -> bool:
    """Whether a message's key stands for an id."""
    return key == thing or key.startswith(f"{thing}@")


def _trust(operators: Path | None) -> ReferenceTrust:
    from cloud_jobs.config import ReferenceSettings
    from geo.reference.messages import ANYBODY

    return ANYBODY if operators is None else ReferenceSettings(operators=operators).trust()


def _lake(lake: str) -> Lake:
    from cloud_jobs.lake.tables import Lake

    return Lake(Location.of(lake))


def _held_row(held: HeldVersion[Any]) -> dict[str, str]:
    row = held.row
    return _provenance(row) | {
        "kind": row["kind"],
        "id": row["id"],
        "effective_from": beginning(row["kind"], row["body"]),
        "published_at": _plain(row["published_at"]),
        "publication_id": row["publication_id"],
        "problem": "",
    }


def _refused_row(refused: RefusedVersion, row: dict[str, Any]) -> dict[str, str]:
    return _provenance(row) | {
        "kind": refused.kind,
        "id": refused.id,
        "effective_from": refused.effective_from,
        "published_at": refused.published_at,
        "publication_id": refused.publication_id,
        "problem": f"{refused.place}: {refused.reason}",
    }


def _provenance(row: dict[str, Any]) -> dict[str, str]:
    return {name: row[name] or "" for name in ("published_by", "signer", "reason")}


def _version(row: dict[str, str]) -> tuple[str, ...]:
    return row["kind"], row["id"], row["effective_from"], row["publication_id"]


def _plain(value: Any) -> Any:
    from geo.reference.moments import stamp

    return stamp(value) if isinstance(value, datetime) else value


def _list_table(rows: Iterable[dict[str, str]]) -> FittedTable:
    table = FittedTable(
        *map(Column, ("kind", "id", "effective from", "published at", "by")),
        Column.text("why"),
        Column("publication"),
        Column.text("problem"),
    )
    for row in rows:
        names = ("kind", "id", "effective_from", "published_at", "published_by", "reason", "publication_id", "problem")
        table.add(*(Text(row[name]) for name in names))
    return table


def _print_json(content: object) -> None:
    sys.stdout.write(printable_json(content, indent=2) + "\n")
