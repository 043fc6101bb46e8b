"""GameDay plays a game day: it breaks the site, says what the site shows, and waits until a person has repaired it.

The person types commands at its prompt. They are carried out in the site's folder, and after each one the game looks
whether all is well again. With `auto` it types the steps of the guides itself.
"""

from __future__ import annotations

import shutil
import textwrap
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from xabridge.demo.game_day.sights import NoMetrics, sights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xabridge.demo.display import Display
    from xabridge.demo.game_day.faults import Fault
    from xabridge.demo.game_day.sights import Sight
    from xabridge.demo.game_day.site import GameSite
    from xabridge.demo.shop.audit import ShopAudit

LOOK_S: Final = 0.3
SEEN_S: Final = 60.0
"""How long the site may take to show what was broken."""
WELL_S: Final = 60.0
"""How long it may take to be well again after the last step."""
SILENT_S: Final = 15.0
"""How long the alarms may take to end then."""
SETTLED_S: Final = 10.0
"""How long the game waits after a command of a person before it says what is missing still."""
WIDEST: Final = 100
OUTPUT: Final = 12
"""So many lines of a command's output are shown, the last ones."""
LONGEST: Final = 300
"""Of each line of it so many characters."""
INDENT: Final = 13
REPAIRED: Final = "repaired"
NOT_REPAIRED: Final = "not repaired"
LEFT_OUT: Final = "left out"
PROMPT: Final = "game day> "
HELP: Final = (
    "any command, for instance `xabridge broker queues`; `start`, `stop` or `restart` with broker, node-1 or node-2; "
    "`steps` for the steps of the guide; `seen` for what the site shows now; nothing, to look again; Ctrl+C ends it"
)


class Played:
    """One fault as it was played: `outcome` is REPAIRED, NOT_REPAIRED, or LEFT_OUT with the reason."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.outcome = NOT_REPAIRED
        self.seen: list[Sight] = []
        self.seconds = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self.outcome == REPAIRED or self.outcome.startswith(LEFT_OUT)

    def figures(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "fault": self.fault.name,
            "outcome": self.outcome,
            "seen": [{"condition": sight.condition.name, "text": sight.text} for sight in self.seen],
            "steps": list(self.fault.steps),
            "seconds": round(self.seconds, 2),
        }


class GameDay:
    """One game, of so many orders per fault."""

    def __init__(
        self, site: GameSite, display: Display, orders: int, *, auto: bool, ask: Callable[[str], str] = input
    ) -> None:
        self._site = site
        self._display = display
        self._orders = orders
        self._auto = auto
        self._ask = ask
        self.played: list[Played] = []

    def play(self, faults: Sequence[Fault]) -> dict[str, Any]:
        """Plays one fault after the other, and counts; the figures of the end. `exact`: everything is repaired, and
        nothing was lost, doubled or split."""
        self._display.keep()
        self._say("folder", str(self._site.folder))
        self._say("console", "xabridge console --config node-1.toml &")
        self._say("", f"sign in as operator, with the password {self._site.operator_password}")
        for number, fault in enumerate(faults, start=1):
            self._display.say(f"\n{number} of {len(faults)}: {fault.title}")
            played = Played(fault)
            self.played.append(played)
            began = time.monotonic()
            try:
                self._play(played)
            except KeyboardInterrupt:
                self._display.say(f"\ninterrupted in {number} of {len(faults)}: {fault.title}; all processes are ended")
                raise
            played.seconds = time.monotonic() - began
            self._display.say(f"  {played.outcome} after {played.seconds:.0f} s")
            if played.outcome == NOT_REPAIRED:
                break

        proof = self._site.prove()
        self._tell(proof)
        repaired = len(self.played) == len(faults) and all(played.is_over for played in self.played)
        return {
            **proof.figures(),
            "exact": proof.exact and repaired,
            "faults": [played.figures() for played in self.played],
        }

    def _tell(self, proof: ShopAudit) -> None:
        say = self._display.say
        outcomes = Counter(played.outcome.partition(":")[0] for played in self.played)
        say("\nthe count:")
        say("  " + ", ".join(f"{count} of {len(self.played)} {outcome}" for outcome, count in outcomes.items()))
        if proof.exact:
            say(f"  {proof.orders:,} orders = {proof.rows:,} rows = {proof.invoices:,} invoices, checksums equal:")
            say("  nothing lost, doubled or split, nothing in doubt")
        else:
            say(f"  NOT EXACT: {proof.orders:,} orders, {proof.rows:,} rows, {proof.invoices:,} invoices;")
            say(
                f"  {proof.waiting} waiting, {proof.lost} lost, {proof.duplicated} duplicated, {proof.split} split, "
                f"{proof.in_doubt} in doubt"
            )

    def _play(self, played: Played) -> None:
        fault, site = played.fault, self._site
        if fault.name == "full-disk" and site.disk_trouble:
            played.outcome = f"{LEFT_OUT}: no small disk can be mounted here ({site.disk_trouble})"
            return

        self._say("done", fault.breaks(site, self._orders))
        self._say("stands for", fault.stands_for)
        self._show(played)
        if self._auto:
            self._repair(played)
        else:
            self._wait(played)
        self._until(lambda: not self._sights(), SILENT_S)

    # --- what is seen ---------------------------------------------------------------------------------------

    def _show(self, played: Played) -> None:
        fault, began = played.fault, time.monotonic()
        wanted = set(fault.conditions)
        self._until(lambda: bool(wanted & {sight.condition for sight in self._sights()}), SEEN_S)
        played.seen = self._sights()

        self._display.say(f"  seen after {time.monotonic() - began:.0f} s:")
        if not played.seen:
            self._say("no alarm", f"for {SEEN_S:.0f} s, or no metrics: pip install 'xabridge[metrics]'")
        for sight in played.seen:
            condition = sight.condition
            self._say("alarm", f"{condition.alert} ({condition.level}): {sight.text}")
            self._say("console", f'the overview, "{condition.question}"')
            self._say("guide", condition.anchor)
        self._carry_out(fault.look)

    def _sights(self) -> list[Sight]:
        with suppress(NoMetrics):
            return sights_of(self._site.addresses)
        return []

    # --- the repair -----------------------------------------------------------------------------------------

    def _repair(self, played: Played) -> None:
        for step in played.fault.steps:
            self._carry_out(step)
        if left := self._is_well(WELL_S):
            self._say("left", left)
        else:
            played.outcome = REPAIRED

    def _wait(self, played: Played) -> None:
        self._say("now", HELP)
        patience_s = 0.0
        while left := self._is_well(patience_s):
            self._say("left", left)
            patience_s = SETTLED_S

            typed = self._ask(PROMPT).strip()
            if typed == "steps":
                for step in played.fault.steps:
                    self._display.say(f"    {step}")
            elif typed == "seen":
                self._show(played)
            elif typed:
                _, said = self._site.carry_out(typed, captured=False)
                if said:
                    self._display.say(f"    {said}")
        played.outcome = REPAIRED

    def _is_well(self, patience_s: float) -> str:
        """Waits until all is well again; what is missing still."""
        self._until(lambda: not self._site.missing(), patience_s)
        return self._site.missing()

    @staticmethod
    def _until(holds: Callable[[], bool], patience_s: float) -> None:
        """Waits until it holds, for so long at most."""
        deadline = time.monotonic() + patience_s
        while not holds() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    # --- words ----------------------------------------------------------------------------------------------

    def _carry_out(self, command: str) -> None:
        self._display.say(f"  $ {command}")
        code, said = self._site.carry_out(command, captured=True)
        for line in said.splitlines()[-OUTPUT:]:
            shown = f"{line[:LONGEST]} …" if len(line) > LONGEST else line
            for part in textwrap.wrap(shown, self._width - 4, subsequent_indent="  ", drop_whitespace=False):
                self._display.say(f"    {part}")
        if code:
            self._display.say(f"    (exit code {code})")

    @property
    def _width(self) -> int:
        return min(shutil.get_terminal_size().columns, WIDEST) - 1

    def _say(self, about: str, text: str) -> None:
        begin = f"  {about}".ljust(INDENT)
        for line in textwrap.wrap(
            text, self._width, initial_indent=begin, subsequent_indent=" " * INDENT, break_on_hyphens=False
        ):
            self._display.say(line)
