"""The words in which something stored is refused because another version of xabridge has made it.

Whatever is stored has the version of its format in a place that does not move: the header of a segment, a row, a field
of a message. Who opens it looks there before it reads, writes or creates anything else, and refuses every version that
it does not know. Something of ours without a version was made by xabridge 0.1.0, where not all formats had one.
"""

from __future__ import annotations


def lacks_version(error: object) -> bool:
    """Whether this is what a database says of a column `version` that a table of it does not have."""
    said = str(error).lower()
    return "version" in said and ("column" in said or "identifier" in said)


def version_refusal(what: object, found: int | None, known: int) -> str | None:
    """Why `what`, of format version `found`, is not opened by a program that knows version `known`; None where it may
    be opened. None as `found`: it has no version."""
    if found == known:
        return None
    if found is None or found < known:
        return f"{what}: made by xabridge 0.1.0, which is not read any more: finish its work with that version"
    return (
        f"{what}: made by a newer version: its format has version {found}, and this program knows {known}. "
        "Open it with that version"
    )
