"""The command `xabridge`. Subcommands are found as entry points, so that none needs an import from here."""

from xabridge.cli.main import main

__all__ = ["main"]
