"""Which column, field or value of a map a name stands for."""

import pandas as pd
import pytest
from pyspark.sql.types import DoubleType, IntegerType, MapType, StringType, StructField, StructType

from sparkdl.data.raw_columns import find_column, frame_column, listed, with_neighbours
from sparkdl.errors import DataError

NUMBER = DoubleType()
INNER = StructType([StructField("x", NUMBER), StructField("a.b", IntegerType())])
SCHEMA = StructType(
    [
        StructField("address", StructType([StructField("lat", NUMBER), StructField("geo", INNER)])),
        StructField("address.lat", IntegerType()),
        StructField("colours", MapType(StringType(), NUMBER)),
        StructField("places", MapType(StringType(), INNER)),
        StructField("by.number", MapType(IntegerType(), NUMBER)),
    ]
)


@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("address.lat", ("address.lat",), IntegerType()),
        ("address.geo.x", ("address", "geo", "x"), NUMBER),
        ("address.geo.a.b", ("address", "geo", "a.b"), IntegerType()),
        ("address.geo", ("address", "geo"), INNER),
        ("colours.light.red", ("colours", "light.red"), NUMBER),
        ("places.home.x", ("places", "home", "x"), NUMBER),
    ],
)
def test_a_name_with_dots_is_a_column_of_that_name_or_leads_to_a_field_or_a_key(name, path, kind) -> None:
    found = find_column(SCHEMA, name)
    assert found and (found.path, found.kind) == (path, kind)


@pytest.mark.parametrize("name", ["address.lon", "address.geo.y", "address.", ".address", "by.number.1", "lat"])
def test_a_name_that_leads_nowhere_is_not_found(name) -> None:
    assert find_column(SCHEMA, name) is None


def test_a_name_that_two_columns_have_is_an_error_only_where_it_is_asked_for() -> None:
    twins = StructType([*SCHEMA.fields, StructField("id", NUMBER), StructField("id", NUMBER)])
    assert find_column(twins, "address.geo.x")
    with pytest.raises(DataError, match="2 columns of the name 'id', as after a join; rename or drop all but one"):
        find_column(twins, "id")


def test_an_error_names_the_neighbours_among_columns_and_fields_and_lists_no_more_than_one_can_read() -> None:
    assert with_neighbours(["address.geo.xx", "z"], SCHEMA) == "'address.geo.xx' (did you mean 'address.geo.x'?), 'z'"
    assert listed([f"x{number}" for number in range(3000)]).endswith("x49, ... (3,000 in all)")


def test_rows_of_pandas_have_fields_in_dictionaries_or_flattened_and_some_have_none() -> None:
    nested = pd.DataFrame({"address": [{"geo": {"x": 1.0}}, {"geo": None}, None, {}]})
    path = ("address", "geo", "x")
    found = frame_column(nested, "address.geo.x", path)
    assert found is not None and [value if value == value else None for value in found] == [1.0, None, None, None]
    flat = pd.DataFrame({"address.geo.x": [2.0], "address": [None]})
    assert list(frame_column(flat, "address.geo.x", path)) == [2.0]  # type: ignore[arg-type]
    assert frame_column(flat, "colours.red", ("colours", "red")) is None
    assert frame_column(flat, "age", ()) is None
