"""Pages and data contracts say what the schemas say, and a contract follows the standard."""

import json
from importlib.resources import files as files_of

import open_data_contract_standard
import pytest
from jsonschema import Draft201909Validator
from open_data_contract_standard.model import OpenDataContractStandard

from cloud_jobs.lake.descriptions import DESCRIPTIONS, SHARED, column_text
from cloud_jobs.lake.schemas import TABLES
from tests.structure.data_pages import COMMAND, CONTRACTS, contract, files


def test_the_files_are_those_of_the_code() -> None:
    for path, text in files().items():
        assert path.is_file(), f"run `{COMMAND}`"
        assert path.read_text(encoding="utf-8") == text, f"{path.name} differs: run `{COMMAND}`"
    assert {*CONTRACTS.iterdir()} <= files().keys()


@pytest.mark.parametrize("table", TABLES)
def test_each_column_is_explained_in_few_words_and_no_other(table: str) -> None:
    names = TABLES[table].schema.names
    for name in names:
        text = column_text(table, name)
        assert text.endswith("."), (name, text)
        assert len(text.split()) <= 25, (name, text)
    assert DESCRIPTIONS[table].columns.keys() <= {*names}
    assert {*DESCRIPTIONS[table].key} <= {*names}


def test_no_shared_text_is_without_a_table() -> None:
    used = {name for table, layout in TABLES.items() for name in layout.schema.names}
    assert SHARED.keys() <= used


@pytest.mark.parametrize("table", [name for name, described in DESCRIPTIONS.items() if described.is_published])
def test_a_contract_follows_the_published_schema_of_the_standard(table: str) -> None:
    schema = json.loads((files_of(open_data_contract_standard) / "schema.json").read_text(encoding="utf-8"))
    given = OpenDataContractStandard.from_file(str(CONTRACTS / f"{table}.odcs.yaml"))
    assert given == contract(table)
    Draft201909Validator(schema).validate(given.model_dump(by_alias=True, exclude_none=True))
