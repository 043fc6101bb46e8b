"""These tests infer schemas from bodies: each body of the sample is read by the schema, as what it says."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xabridge.pipeline.json_inference import inferred_ddl, read_body
from xabridge.pipeline.spark.json_bodies import json_reader


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "-5", "null"], "bigint"),
        (["1", "9223372036854775808"], "decimal(38,0)"),
        (["1", "1.5"], "double"),
        (["1e3"], "double"),
        (["9" * 5000, "1e99999999999999999999"], "double"),
        (["true", "false"], "boolean"),
        (['"2026-11-21T23:12:07Z"', '"2026-11-21T23:12:07.5+01:00"'], "timestamp"),
        (['"2026-11-21T23:12:07"'], "timestamp_ntz"),
        (['"2026-11-21T23:12:07"', '"2026-11-21T23:12:07Z"'], "string"),
        (['"2026-11-21"'], "date"),
        (['"2026-13-21"'], "string"),
        (['"20261121"'], "string"),
        (['"a"', '"1"'], "string"),
        (["null"], "string"),
        (["[]"], "array<string>"),
        (["[1]", "[null, 2.5]"], "array<double>"),
        (['{"b": 1}', '{"a b": "x"}'], "struct<b: bigint, `a b`: string>"),
        (["{}"], "map<string,string>"),
        (['[{"n": 1}, {"at": "2026-11-21"}]'], "array<struct<n: bigint, at: date>>"),
    ],
)
def test_a_type(values: list[str], type_: str) -> None:
    assert inferred_ddl([read_body(f'{{"v": {value}}}') for value in values]) == f"v {type_}"


@pytest.mark.parametrize(
    ("bodies", "told"),
    [
        (['{"v": 1}', '{"v": "1"}'], "v is a number and text, which no type of Spark holds"),
        (['{"v": {"w": [1, {}]}}'], r"v\.w\[\] is a number and an object"),
        (['{"\\ud800": 1}'], r"'\\ud800' is no name: it has half of a surrogate pair"),
        (['{"v": true}', '{"v": 0}'], "v is a number and true or false"),
        (['{"v": 1}', '{"V": 1}'], "v and V are one column to Spark"),
        (["{}"], "the bodies have no fields"),
    ],
)
def test_what_has_no_type(bodies: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        inferred_ddl([read_body(body) for body in bodies])


@pytest.mark.parametrize("body", ["1", "[]", '{"a": NaN}', "{", "\ud800", b"\xff"])
def test_a_body_that_is_no_object(body: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_body(body)


SIMPLE = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
    st.text(st.characters(codec="utf-8"), max_size=5), st.dates().map(str),
    st.datetimes().map(lambda at: at.isoformat()),
)  # fmt: skip
ARROW: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@settings(max_examples=30)
@given(values=st.lists(SIMPLE, min_size=1, max_size=4))
def test_the_sample_is_read_by_its_schema(values: list[Any]) -> None:
    bodies = [json.dumps({"v": value}) for value in values]
    try:
        ddl = inferred_ddl([read_body(body) for body in bodies])
    except ValueError:
        return
    read = json_reader(pa.struct([("v", ARROW[ddl.removeprefix("v ")])]))
    for body in bodies:
        read(body)
