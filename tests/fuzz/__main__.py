"""Searches with atheris, guided by coverage, for octets at which a decoder raises what it does not declare.

`python -m tests.fuzz [--seconds 600] [NAME …]` gives each decoder of `tests.fuzz.decoders` its share of the time, in a
process of its own; `make fuzz` runs all of them. What is found on the way is kept in `.fuzz/NAME/`. An input that fails
is written there as `crash-…`: repair the defect, and add the input to the decoder's samples.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

FOUND: Final = Path(".fuzz")
PACKAGES: Final = ["dtx", "rm_amqp", "rm_db", "rm_delta", "rm_openwire", "tm", "xa", "xabridge"]


def main() -> int:
    """How many decoders failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="altogether")
    parser.add_argument("--one", action="store_true", help="search in this process")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.one:
        _search(arguments.names[0], arguments.seconds)
    from tests.fuzz.decoders import DECODERS  # noqa: PLC0415 — a search imports it with instruments

    names = arguments.names or list(DECODERS)
    share = str(max(1, arguments.seconds // len(names)))
    failed = []
    for name in names:
        sys.stderr.write(f"--- {name}: {share} s\n")
        if subprocess.run(
            [sys.executable, "-m", "tests.fuzz", "--one", "--seconds", share, name], check=False
        ).returncode:
            failed.append(name)
    sys.stderr.write(f"failed: {', '.join(failed) or 'none'} of {len(names)}\n")
    return len(failed)


def _search(name: str, seconds: int) -> None:
    """Never returns: libFuzzer ends the process."""
    atheris: Any = import_module("atheris")  # an option
    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.decoders import DECODERS  # noqa: PLC0415 — as above

    decoder = DECODERS[name]
    folder = FOUND / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(decoder.samples):
        (folder / f"sample-{number}").write_bytes(sample)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=0"]

    def try_on(octets: bytes) -> None:
        decoder.try_on(octets)

    atheris.Setup([sys.argv[0], *options, str(folder)], try_on)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
