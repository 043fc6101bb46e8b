"""`xabridge pipeline`: what a pipeline is doing, what takes it to a cluster, and a demo of one. docs/pipeline.md is its
manual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xabridge.demo.pipeline import demo
from xabridge.pipeline import package_command, status_command

if TYPE_CHECKING:
    import argparse

SUMMARY: Final = "show what a pipeline on Spark is doing, pack it for a cluster, or run a demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    for name, part in (("status", status_command), ("package", package_command), ("demo", demo)):
        added = parts.add_parser(name, help=part.SUMMARY, description=part.SUMMARY)
        part.add_arguments(added)
        added.set_defaults(part_run=part.run)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.part_run(arguments))
