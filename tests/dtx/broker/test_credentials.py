"""These tests cover the file of users: how it is made, read and refused, and how little an error reveals about the
users in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dtx.amqp.sasl.scram import Verifier
from dtx.broker.access.credentials import Credentials, CredentialsError, set_password

if TYPE_CHECKING:
    from pathlib import Path

LINE = str(Verifier.of("pencil", bytes(16), 4096))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_passwords_are_set_and_changed(file: Path) -> None:
    set_password(file, "alice", "one", iterations=4096)
    set_password(file, "bob of the north", "two", iterations=4096)
    set_password(file, "alice", "three", iterations=4096)
    users = Credentials.load(file)
    assert users.users == ["alice", "bob of the north"]
    alice, bob = users.verifier("alice"), users.verifier("bob of the north")
    assert alice is not None
    assert bob is not None
    assert alice.accepts("three")
    assert not alice.accepts("one")
    assert bob.accepts("two")
    assert users.verifier("Alice") is None


def test_the_file_holds_no_password_and_is_its_owners(file: Path) -> None:
    set_password(file, "alice", "open sesame", iterations=4096)
    assert "sesame" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir()] == ["users"]


def test_names_that_are_not_there_look_as_if_they_were(file: Path) -> None:
    """Also where the file was written by hand."""
    set_password(file, "alice", "one", iterations=5000)
    users, again = Credentials.load(file), Credentials.load(file)
    decoy = users.decoy("mallory")
    assert decoy == again.decoy("mallory") != users.decoy("marlon")
    known = users.verifier("alice")
    assert known is not None
    assert (decoy.iterations, len(decoy.salt)) == (known.iterations, len(known.salt))
    set_password(file, "bob", "two", iterations=5000)
    assert Credentials.load(file).decoy("mallory") == decoy, "who comes and goes changes nothing for those not there"
    file.write_text(f"# users of the broker\n\n{LINE} alice\n{LINE} bob smith\n")
    users = Credentials.load(file)
    assert users.users == ["alice", "bob smith"]
    assert users.decoy("x") == Credentials.load(file).decoy("x")


def test_a_wrong_line_is_named(file: Path) -> None:
    with pytest.raises(CredentialsError, match="No such file"):
        Credentials.load(file)
    for text, says in (
        (f"{LINE} alice\nnonsense bob\n", "line 2: not a verifier"),
        (f"{LINE} alice\n{LINE} alice\n", "line 2: the name 'alice'"),
        (f"{LINE} anonymous\n", "line 1: the name 'anonymous' is reserved"),
        (f"{LINE} *\n", "reserved"),
        (f"{LINE}\n", "line 1: a name or password is empty"),
        ("decoy !\n", "line 1"),
    ):
        file.write_text(text)
        with pytest.raises(CredentialsError, match=says):
            Credentials.load(file)


def test_impossible_names_and_passwords_are_refused(file: Path) -> None:
    for user, password in (("anonymous", "x"), ("*", "x"), ("a\nb", "x"), (" a", "x"), ("", "x"), ("a", "")):
        with pytest.raises(CredentialsError):
            set_password(file, user, password)
    assert not file.exists()
