"""What can be judged of settings of which other parts are wrong: rules between keys whose own values are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from waybill.settings.model import Settings

__all__ = ["faults_between"]


def faults_between(model: type[BaseModel], given: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """What the rules of a model say of those of its keys that are right by themselves, each with its place.

    Pydantic asks no rule as long as one key is wrong, so a mistake showed only when others were corrected.
    """
    if not isinstance(given, Mapping):
        return
    for name, field in model.model_fields.items():
        if name in given and (inner := _settings_in(field.annotation)) is not None:
            yield from faults_between(inner, given[name], (*where, name))
    part = _part_of(model, given)
    if part is None:
        return
    for rule in model.__pydantic_decorators__.model_validators.values():
        if rule.info.mode == "after":
            try:
                rule.func(part)
            except ValueError as error:
                yield ".".join(where), str(error)
            except Exception:  # noqa: BLE001, S112 - it asks for a key that is wrong or missing
                continue


def _part_of(model: type[BaseModel], given: Mapping[str, Any]) -> BaseModel | None:
    """A model of the keys that are right, without any that is wrong or missing; None: all are right, and it is judged
    as a whole."""
    right, wrong = dict[str, Any](), set[str]()
    for name, field in model.model_fields.items():
        if name not in given:
            wrong |= {name} if field.is_required() else set()
            continue
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]
            right[name] = adapter.validate_python(given[name])
        except ValidationError:
            wrong.add(name)
    if not wrong and given.keys() <= model.model_fields.keys():
        return None
    part = model.model_construct(**right)
    for name in wrong:
        # what stands there by default was not said, and a rule would judge it
        part.__dict__.pop(name, None)
    return part


def _settings_in(annotation: Any) -> type[Settings] | None:
    """The table that a key has, if it is one table."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Settings) else None
    tables = [one for part in get_args(annotation) if (one := _settings_in(part)) is not None]
    is_optional = {*get_args(annotation)} <= {type(None), *tables}
    return tables[0] if len(tables) == 1 and is_optional else None
