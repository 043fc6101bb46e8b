"""These tests compare the state table of a resource with a second, independent copy of it."""

from __future__ import annotations

from itertools import product

from tm.resources.states import RESOURCE, ResourceState, ResourceVerb
from xa.machine import advance

S, V = ResourceState, ResourceVerb


def after(state: ResourceState, verb: ResourceVerb) -> ResourceState:
    if verb is V.CLOSE or state is S.CLOSED:
        return S.CLOSED
    return S.OPEN if verb is V.OPENED else S.DOWN


def test_every_state_and_verb() -> None:
    for state, verb in product(S, V):
        assert RESOURCE.refusal(state, verb) is None
        assert advance(RESOURCE, state, verb) is after(state, verb), (state, verb)
    assert RESOURCE.initial is S.NEW
