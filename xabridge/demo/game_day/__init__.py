"""The game day: a site that is broken on purpose, for people who want to know what they would see, and do, before the
night comes in which they have to.

`GameDay` plays it, over the processes of a `GameSite`. `FAULTS` says what is broken, one after the other, and which
steps of the guides repair it. `Sight` is what the running site shows of it.
"""

from xabridge.demo.game_day.faults import FAULTS, Fault
from xabridge.demo.game_day.game_day import GameDay
from xabridge.demo.game_day.sights import Sight, sights_of
from xabridge.demo.game_day.site import GameSite

__all__ = ["FAULTS", "Fault", "GameDay", "GameSite", "Sight", "sights_of"]
