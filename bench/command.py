"""`python -m bench NAME --json` runs one benchmark, or all, and prints its figures.

Progress and explanations go to stderr. With --json the last line of stdout is one JSON object; a dot in the
name of a figure means nesting. Every object has the facts of the machine under `machine`.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from bench.machine import machine_facts
from xa.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHMARKS: Final[dict[str, str]] = {
    "broker": "bench.broker",
    "calls": "bench.calls",
    "crash": "bench.crash.benchmark",
    "db": "bench.databases",
    "e2e": "bench.e2e",
    "fairness": "bench.fairness",
    "log": "bench.log",
    "peers": "bench.peers.benchmark",
    "pipeline": "bench.pipelines.benchmark",
    "recovery": "bench.recovery",
    "start": "bench.startup",
    "tm": "bench.transactions",
    "xa": "bench.contract",
}
"""Name → the module that has it."""


EXIT_USAGE: Final = 2
EXIT_MISSING: Final = 1


class Benchmark(Protocol):
    """A benchmark module."""

    SUMMARY: str

    def measure(self, *, quick: bool) -> dict[str, Any]:
        """The figures, as nested dictionaries; with `quick` as few repetitions as still mean something."""
        ...


class Seeded(Protocol):
    """A benchmark whose rounds come from a seed."""

    def measure(self, *, quick: bool, rounds: int | None, seed: int | None, part: str | None) -> dict[str, Any]:
        """The figures, of so many rounds, as the seed says, of one part; None: as the benchmark thinks fit."""
        ...


OPTIONAL: Final = frozenset({"peers"})
"""They need programs beyond those of `make setup`: `all` leaves them out where these are missing."""
SEEDED: Final = frozenset({"crash"})
PARTS: Final = ("orders", "bank", "consumers")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; the exit code."""
    return run(make_parser().parse_args(argv))


def make_parser() -> argparse.ArgumentParser:
    """The arguments of `python -m bench`."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Runs a benchmark, or all of them.")
    names = sorted(BENCHMARKS)
    parser.add_argument("name", choices=[*names, "all"], help="which benchmark")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it works, not to quote")
    parser.add_argument("--rounds", type=count, metavar="N", help="crash: how many storms (default 40, with --quick 3)")
    parser.add_argument("--seed", type=int, metavar="N", help="crash: which storms (default 1)")
    parser.add_argument(
        "--part", choices=PARTS, help="crash: one node that handles orders, the bank of several nodes, or consumers"
    )
    parser.add_argument("--out", type=Path, help="also write NAME.json into this folder")
    return parser


def count(text: str) -> int:
    """A number that is not negative."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmarks that the arguments name; the exit code."""
    names = sorted(BENCHMARKS) if arguments.name == "all" else [arguments.name]
    given = (arguments.rounds, arguments.seed, arguments.part)
    if not SEEDED.issuperset(names) and any(value is not None for value in given):
        print(f"python -m bench: --rounds, --seed and --part are for {', '.join(sorted(SEEDED))}", file=sys.stderr)
        return EXIT_USAGE

    results = {}
    for name in names:
        try:
            figures = measured(name, arguments)
        except ModuleNotFoundError as error:
            extras = ("demo", "pipeline") if name == "pipeline" else ("demo",)
            why = f"{error.name} is not installed: {install_command(*extras)}" if error.name else str(error)
            print(f"python -m bench {name}: {why}", file=sys.stderr)
            if name in OPTIONAL and len(names) > 1:
                continue
            return EXIT_MISSING
        results[name] = {"benchmark": name, "machine": machine_facts(), **figures}
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{name}.json").write_text(json.dumps(results[name], indent=1) + "\n")

    if arguments.json:
        print(json.dumps(results[names[0]] if len(names) == 1 else results))
    else:
        for name, found in results.items():
            for key, value in flat(found):
                print(f"{name:10} {key:32} {value}")
    return 0


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one benchmark."""
    benchmark = cast("Benchmark", import_module(BENCHMARKS[name]))
    print(f"{name}: {benchmark.SUMMARY}", file=sys.stderr)
    if name not in SEEDED:
        return benchmark.measure(quick=arguments.quick)
    return cast("Seeded", benchmark).measure(
        quick=arguments.quick, rounds=arguments.rounds, seed=arguments.seed, part=arguments.part
    )


def flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """The figures with dotted names."""
    pairs: list[tuple[str, Any]] = []
    for key, value in figures.items():
        if isinstance(value, dict):
            pairs += flat(value, f"{prefix}{key}.")
        else:
            pairs.append((prefix + key, value))
    return pairs
