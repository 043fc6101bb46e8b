"""The contract suite: one set of tests that every resource manager is run through, yours as well.

To run it over a resource manager, write a `Harness` and a test module like this one:

    from xabridge.testing.contract import *

    class MyHarness(Harness): ...

    @pytest.fixture
    def harness(tmp_path: Path) -> MyHarness:
        return MyHarness(tmp_path)

`import *` brings the test classes, which pytest finds in your module, and `Harness` and `Capabilities`. A harness makes
clients of one resource, does small pieces of work through them, and can disturb them; a fixture with `params` runs the
suite over several variants. What a resource manager can't do is said in the harness's `capabilities`: the suite then
tests that it is refused in the right way. For one that decides, write a `DeciderHarness` and import `TestDeciding` from
`xabridge.testing.contract.deciding` instead.

The page docs/resource-managers.md has an example from beginning to end.
"""

import pytest

# The classes are no test modules of their own, and still their asserts are to explain themselves. This has to come
# before they are imported.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "association",
            "asynchrony",
            "capacity",
            "client",
            "completion",
            "deciding",
            "failures",
            "heuristics",
            "holdings",
            "opening",
            "outcome_notes",
            "recovery",
            "refusals",
            "registration",
            "threads",
        )
    )
)

from .harness import Capabilities, DeciderHarness, Harness  # noqa: E402 — see above
from .resource_manager import (  # noqa: E402
    TestAssociation,
    TestAsynchrony,
    TestCapacity,
    TestCompletion,
    TestFailures,
    TestHeuristics,
    TestHoldings,
    TestOpening,
    TestOutcomeNotes,
    TestRecovery,
    TestRefusals,
    TestRegistration,
    TestThreads,
)

__all__ = [
    "Capabilities",
    "DeciderHarness",
    "Harness",
    "TestAssociation",
    "TestAsynchrony",
    "TestCapacity",
    "TestCompletion",
    "TestFailures",
    "TestHeuristics",
    "TestHoldings",
    "TestOpening",
    "TestOutcomeNotes",
    "TestRecovery",
    "TestRefusals",
    "TestRegistration",
    "TestThreads",
]
