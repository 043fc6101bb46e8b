"""mypy knows what is decoded: it refuses the table of a composite that does not fit its dataclass, an attribute that is
used as what it is not, and a value that is none of AMQP. `make types` looks at that: where mypy refuses one of the
`mistakes` no more, it says that its "type: ignore" is not used."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dtx.amqp.composites import BOOLEAN, FIELDS, STRING, UINT, Catalog, standard
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Symbol, Uint


@dataclass
class Detached:
    name: str
    handle: int | None
    closed: bool = False


NAMED = FIELDS.mandatory("name", STRING)
DETACHED = standard(Detached, "detached", 1, NAMED.optional("handle", UINT).default("closed", BOOLEAN, absent=False))


def test_a_table_has_a_field_for_each_attribute() -> None:
    """mypy does not ask for the attributes that have a default."""
    assert len(DETACHED.fields) == 3
    with pytest.raises(ValueError, match="shorter"):
        standard(Detached, "detached", 1, NAMED.optional("handle", UINT))


def mistakes() -> None:
    """Nobody calls it."""
    other_type = FIELDS.mandatory("name", UINT).optional("handle", UINT).default("closed", BOOLEAN, absent=False)
    standard(Detached, "detached", 1, other_type)  # type: ignore[arg-type]
    may_be_null = FIELDS.optional("name", STRING).optional("handle", UINT).default("closed", BOOLEAN, absent=False)
    standard(Detached, "detached", 1, may_be_null)  # type: ignore[arg-type]
    other_order = NAMED.default("closed", BOOLEAN, absent=False).optional("handle", UINT)
    standard(Detached, "detached", 1, other_order)  # type: ignore[arg-type]
    too_many = NAMED.optional("handle", UINT).default("closed", BOOLEAN, absent=False).optional("error", STRING)
    standard(Detached, "detached", 1, too_many)  # type: ignore[arg-type]
    wrong_default = NAMED.optional("handle", UINT).default("closed", BOOLEAN, absent="no")
    standard(Detached, "detached", 1, wrong_default)  # type: ignore[arg-type]
    name: int = Catalog(DETACHED).decode(b"").name  # type: ignore[assignment]
    encode([(name, False), {Symbol("a"): Uint(1)}])  # type: ignore[list-item]
    encode(decode(b"")[0])  # type: ignore[index]
