"""These tests check that the disk in memory forgets what was not forced; otherwise the tests that use it could not
fail.
"""

from __future__ import annotations

import random

from tests.tm.log.disk import Disk


def after_crashes(disk: Disk, name: str) -> set[bytes | None]:
    crashed = [disk.crashed(random.Random(seed)) for seed in range(300)]
    return {after.read(name) if name in after.names() else None for after in crashed}


def test_what_was_not_forced_may_be_there_or_not() -> None:
    disk = Disk()
    file = disk.create("f")
    file.write(0, b"a" * 1024)
    assert None in after_crashes(disk, "f")
    disk.force_names()
    seen = after_crashes(disk, "f")
    assert {b"", b"a" * 1024, b"a" * 512, bytes(512) + b"a" * 512} <= seen
    file.force()
    assert after_crashes(disk, "f") == {b"a" * 1024}
    file.write(0, b"b" * 1024)
    assert {b"a" * 512 + b"b" * 512, b"b" * 512 + b"a" * 512} <= after_crashes(disk, "f")


def test_names_that_were_not_forced_may_be_the_old_ones() -> None:
    disk = Disk()
    disk.create("f").write_forced(0, b"f")
    disk.force_names()
    disk.rename("f", "g")
    assert after_crashes(disk, "f") == {b"f", None}
    assert after_crashes(disk, "g") == {b"f", None}
    disk.force_names()
    assert after_crashes(disk, "g") == {b"f"}
