"""Kinds of settings, what a table of a file has of them, and where each value is from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

import pytest

from xa.configuration import (
    FILE,
    FLAG,
    HOST_AND_PORT,
    TEXT,
    ConfigurationError,
    Kind,
    Section,
    check,
    choice,
    declared,
    read_file,
    seconds,
    setting,
    texts,
    values_of,
    whole,
)


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        (TEXT, ["", "a"], [1, None, ["a"]]),
        (FLAG, [True, False], [0, 1, "true"]),
        (HOST_AND_PORT, ["h:1", "[::1]:0", "5672"], ["h", "h:65536", ":1", "h:²", "h:" + "9" * 5000, 5672]),
        (whole(), [0, 1 << 70], [-1, 1.0, True, "1"]),
        (whole(1, 3), [1, 3], [0, 4]),
        (seconds(), [0.1, 5], [0, -1, float("nan"), float("inf"), TIMEOUT_MAX, True, "5"]),
        (seconds(1), [1, 1.5], [0.9]),
        (seconds(0, below=10), [0, 9.9], [10]),
        (choice("a", "b"), ["a", "b"], ["c", [], True]),
        (texts("names"), [[], ["a"]], ["a", ["a", 1], {}]),
        (FILE, ["a"], [1]),
    ],
)
def test_kinds(kind: Kind, fits: list[Any], does_not: list[Any]) -> None:
    for value in fits:
        kind.read(value)
    for value in does_not:
        with pytest.raises(ValueError):
            kind.read(value)


@dataclass(frozen=True, slots=True)
class Shop:
    """Settings of a shop."""

    name: str = field(metadata=declared(TEXT, "its name"))
    url: str = setting("", TEXT, "where it is", secret=True)
    clerks: int = setting(2, whole(1), "who works there")
    ready: bool = setting(False, FLAG, "whether it is open")


def test_a_table_is_read_and_what_it_leaves_out_is_the_default() -> None:
    assert Section({"name": "a", "clerks": 3}).read(Shop) == Shop("a", "", 3)
    base = Shop("b", "u", 5, ready=True)
    assert Section({"clerks": 3}).read(Shop, base) == Shop("b", "u", 3, ready=True)
    with pytest.raises(ConfigurationError, match=r"^f: shop\.name: missing; expected text$"):
        Section({}, "shop", "f").read(Shop)
    with pytest.raises(ValueError, match=r"^clerks: expected a whole number, 1 or more, not 0$"):
        check(Shop("a", clerks=0))


def test_variables_are_put_in_wherever_a_text_is() -> None:
    given = {"name": "${A}", "url": "x://u:${A}@h"}
    assert Section(given, environment={"A": "p@"}).read(Shop) == Shop("p@", "x://u:p%40@h")
    assert Section(given).read(Shop) == Shop("${A}", "x://u:${A}@h")
    assert str(Section({"name": "n", "ready": "${A}"}, later=True).read(Shop).ready) == "${A}"


def test_a_secret_setting_is_in_no_repr_and_in_no_message() -> None:
    assert "s3cret" not in repr(Shop("a", "s3cret"))
    for value in (["s3cret"], {"s3cret": 1}):
        with pytest.raises(ConfigurationError) as refused:
            Section({"name": "a", "url": value}).read(Shop)
        assert "s3cret" not in str(refused.value)
    long = "x" * 1000
    with pytest.raises(ConfigurationError) as refused:
        Section({"name": "a", "clerks": long}).read(Shop)
    assert len(str(refused.value)) < 200


def test_entries_are_tables_or_the_short_form_of_one() -> None:
    section = Section({"a": "x", "b": {"url": "y"}}, "shops")
    assert {name: entry.content for name, entry in section.tables("url")} == {"a": {"url": "x"}, "b": {"url": "y"}}
    with pytest.raises(ConfigurationError, match=r"^shops\.a: expected a table"):
        list(section.tables())


def test_each_value_has_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[shop]\nname = "a"\nclerks = 1\nready = true\n', encoding="utf-8")
    section = read_file(path).table("shop", {"clerks": 7, "url": "x://u:s3cret@h", "ready": None})
    assert list(values_of(section.read(Shop), section.origins())) == [
        ("name", "a", str(path)),
        ("url", "x://u:…@h", "--url"),
        ("clerks", "7", "--clerks"),
        ("ready", "true", str(path)),
    ]
    section = read_file(path).table("shop", {"clerks": 0})
    with pytest.raises(ConfigurationError, match=r"^--clerks: expected a whole number, 1 or more, not 0$"):
        section.read(Shop)
