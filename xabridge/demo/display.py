"""`Display` is a progress bar that stays at the bottom, with the events above it. Without a terminal it prints lines
only."""

from __future__ import annotations

import shutil
import time
from typing import Final

BAR: Final = 20
EVERY_S: Final = 1.0
"""How often a line tells the figures, where there is no bar."""


class Display:
    """`live`: a terminal that understands escapes; `quiet`: nothing at all."""

    def __init__(self, *, live: bool, quiet: bool) -> None:
        self._live = live
        self._quiet = quiet
        self._began = time.monotonic()
        self._drawn = False
        self._shown_at = 0.0
        self._shown = ""

    def begin(self) -> None:
        """Starts to count the time."""
        self._began = time.monotonic()

    def preparing(self, text: str) -> None:
        """Says what is being done before anything can be shown."""
        if self._live:
            self._draw(f"  {text} …")

    def show(self, part: float, counts: str) -> None:
        """How it stands: what part of it is done, and in figures."""
        done = min(int(BAR * part), BAR)
        if self._live:
            self._draw(f"  {'█' * done}{'░' * (BAR - done)}  {counts}")
            return
        now = time.monotonic()
        if counts != self._shown and now - self._shown_at >= EVERY_S:
            self._shown_at, self._shown = now, counts
            self.say(f"  {now - self._began:5.1f} s  {counts}")

    def event(self, text: str) -> None:
        """Something has happened."""
        self.say(f"  {time.monotonic() - self._began:5.1f} s  {text}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        bar, self._drawn = self._drawn, False
        print(f"\r\x1b[2K{text}" if bar else text, flush=True)
        if bar:
            self._draw(self._bar)

    def keep(self) -> None:
        """The bar stays where it is; what follows stands under it."""
        if self._drawn:
            print(flush=True)
            self._drawn = False

    def close(self) -> None:
        """The bar goes."""
        if self._drawn:
            print("\r\x1b[2K", end="", flush=True)
            self._drawn = False

    def _draw(self, bar: str) -> None:
        """One line of the terminal: what is wider would begin a new one at each refresh."""
        bar = bar[: max(shutil.get_terminal_size().columns - 1, 1)]
        self._bar = bar
        self._drawn = True
        print(f"\r\x1b[2K{bar}", end="", flush=True)
