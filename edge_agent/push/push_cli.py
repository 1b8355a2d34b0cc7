"""waybill push: operators' keys, and settings for devices that are signed by them."""

import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from edge_agent.push.pushed import PushRefused, check_pushable
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.process import errors_as_messages
from waybill.identity.errors import IdentityError, NameRefused, SignatureRefused
from waybill.identity.names import device_name
from waybill.identity.operator_keys import ANY, KINDS
from waybill.identity.signatures import (
    NewOperator,
    OperatorKey,
    read_operator_key,
    read_operators,
    read_signed_push,
    sign_push,
    trust_operator,
    trusted_key,
    verify_push,
    write_operator,
)
from waybill.settings import MAX_PUSHED_BYTES, name_advice, one_line, open_file, printable

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Operators' keys, and signed settings for devices.",
)
Files = Annotated[list[Path], typer.Argument(help="Files TENANT/DEVICE.toml, as in the gateway's push folder.")]
Operators = Annotated[Path, typer.Option(help="The file of trusted public keys.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Name of the key's owner, such as anna.")],
    *,
    operators: Operators = Path("operators.toml"),
    tenants: Annotated[
        list[str], typer.Option("--tenant", help="Tenant that it may sign for, * for all; may be repeated.")
    ],
    kinds: Annotated[
        list[str],
        typer.Option(
            "--kind", help="What it may sign: settings, account, device, fence ..., * for all; may be repeated."
        ),
    ],
    accounts: Annotated[
        list[str], typer.Option("--account", help="May publish this account, or accounts with this prefix: acme-*.")
    ] = [],  # noqa: B006  # typer reads it, and nobody changes it
    days: Annotated[float, typer.Option(min=0.01, max=36_500, help="Validity of the key in days.")] = 365.0,
    as_json: AsJson = False,
) -> None:
    """Create a key pair. Keep NAME.key private; the public key is added to the file of trusted keys.

    Distribute that file to the centre, the gateways and the devices. Several keys can be trusted at the same time.

    Exit status: 0; 1 if NAME.key exists already; 78 if the file of trusted keys cannot be used.

    Example: waybill push key anna --tenant acme --kind settings
    """
    with errors_as_messages("waybill push", IdentityError, ValueError):
        for kind in kinds:
            _check_kind(kind)
        # First: an untrusted key file would block the next key of this name.
        if operators.exists():
            read_operators(operators)
        made, now = OperatorKey.generate(), datetime.now(UTC).replace(microsecond=0)
        try:
            trusted = trusted_key(
                made,
                name,
                tenants=tuple(tenants),
                kinds=tuple(kinds),
                accounts=tuple(accounts),
                valid_until=now + timedelta(days=days),
            )
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ValueError(
                f"--{str(fault['loc'][0]).removesuffix('s')} {fault['input']!r:.80}: {fault['msg']}"
            ) from error
        file = Path(f"{name}.key")
        write_operator(file, NewOperator(made, trusted))
        trust_operator(operators, NewOperator(made, trusted))
        if as_json:
            _print_json({"key_id": made.key_id, "file": str(file), "operators": str(operators)})
        else:
            typer.echo(f"{file}: the private key {made.key_id}; it is trusted in {operators}")


def _check_kind(kind: str) -> None:
    # A file of keys takes any, for a later version has more: a key that is made here is for today.
    if kind not in {ANY, *KINDS}:
        what = f"there are {', '.join(KINDS)}, {ANY}{name_advice(kind, KINDS)}"
        raise NameRefused(f"--kind {one_line(kind)!r:.80} is not a kind of signed data: {what}")


@app.command()
def sign(
    files: Files,
    *,
    key_file: Annotated[Path, typer.Option("--key", help="Your private key.")],
    as_json: AsJson = False,
) -> None:
    """Sign settings files in place: the first line then names device, signer and version.

    Settings that every device would refuse are not signed. The version is the time in milliseconds since 1970, and
    higher than the file's former version, because devices refuse older versions.

    Exit status: 0; 1 if a file or the key cannot be used; then nothing is signed.

    Example: waybill push sign pushes/acme/bus-17.toml --key anna.key
    """
    with errors_as_messages("waybill push", IdentityError, ValueError):
        private = read_operator_key(key_file)
        signed = [(file, _device_of(file), *_signed(file, private)) for file in files]
        # Only after all files could be signed, so an error changes none of them.
        for file, _, _, text in signed:
            replace_durably(file, text)
    if as_json:
        _print_json([{"file": str(file), "device": device, "version": made} for file, device, made, _ in signed])
        return
    for file, device, made, _ in signed:
        typer.echo(printable(f"{file}: version {made} for {device}"))


@app.command()
def check(files: Files, *, operators: Operators, as_json: AsJson = False) -> None:
    """Show who signed each file, or why devices would refuse it.

    Exit status: 0 if trusted keys with the right to do so signed all files; 1 if not; 78 if the file of trusted keys
    cannot be used.

    Example: waybill push check pushes/*/*.toml --operators operators.toml
    """
    rows = list[dict[str, object]]()
    with errors_as_messages("waybill push", IdentityError, ValueError):
        keys, now = read_operators(operators), datetime.now(UTC)
        for file in files:
            row: dict[str, object] = {"file": str(file)}
            row |= dict.fromkeys(("version", "signed_by", "refused"))
            rows.append(row)
            try:
                push = read_signed_push(_read(file))
                row["version"] = push.version
                row["signed_by"] = verify_push(keys, push, _device_of(file), now).name
                row["refused"] = _fault(push.settings) or None
            except SignatureRefused as refused:
                row["refused"] = str(refused)
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            said = str(row["refused"] or f"version {row['version']} by {row['signed_by']}")
            typer.echo(printable(f"{row['file']}: {said}"))
    if any(row["refused"] for row in rows):
        raise typer.Exit(1)


def _signed(file: Path, private: OperatorKey) -> tuple[int, bytes]:
    text, former = _read(file), 0
    # A file that was never signed has no former version.
    with suppress(SignatureRefused):
        push = read_signed_push(text)
        text, former = push.settings, push.version
    if fault := _fault(text):
        raise ValueError(f"{file}: {fault}")
    version = max(time.time_ns() // 1_000_000, former + 1)
    signed = sign_push(private, _device_of(file), version, text)
    if len(signed) > MAX_PUSHED_BYTES:
        raise ValueError(f"{file}: more than {MAX_PUSHED_BYTES} bytes with its signature, more than a device accepts")
    return version, signed


def _fault(settings: bytes) -> str:
    """Why every device would refuse these settings, or ""."""
    try:
        check_pushable(settings.decode("utf-8-sig"))
    except (UnicodeDecodeError, PushRefused) as refused:
        return str(refused)
    return ""


def _read(file: Path) -> bytes:
    with open_file(file) as opened:
        # one byte above the limit shows that the file is too large
        text = opened.read(MAX_PUSHED_BYTES + 1)
    if len(text) > MAX_PUSHED_BYTES:
        raise ValueError(f"{file}: more than {MAX_PUSHED_BYTES} bytes, more than a device accepts")
    return text


def _device_of(file: Path) -> str:
    return device_name(file.absolute().parent.name, file.stem)


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")
