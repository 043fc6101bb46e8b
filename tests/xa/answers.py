"""What the tests of a switch share: two branches, answers that come later, and verbs that are refused."""

from __future__ import annotations

from typing import Any, Final

import pytest

from xa import Code, XaError, Xid
from xa.switch import Switch

RMID: Final = 1
X: Final = Xid(1, b"global", b"x")
Y: Final = Xid(1, b"global", b"y")


class Answer:
    """A Pending that tells what the test wants, one after the other."""

    def __init__(self, *outcomes: Code | BaseException, ready: bool = True) -> None:
        self._outcomes = list(outcomes)
        self._ready = ready

    def ready(self) -> bool:
        return self._ready

    def result(self) -> Code:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def refused(code: Code, call: str, switch: Switch[Any], *arguments: object) -> XaError:
    """What is raised, which has this code."""
    with pytest.raises(XaError) as raised:
        getattr(switch, call)(*arguments)
    assert raised.value.code is code, raised.value
    return raised.value
