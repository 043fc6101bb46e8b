"""The contract suite: one set of tests that every resource manager is run through.

To run it over a resource manager, write a `Harness` (see `harness.py`) and a test module with

    from tests.contract.resource_manager import *

    @pytest.fixture
    def harness() -> Iterator[Harness]:
        yield MyHarness(...)

and, for a deciding one, the same with `DeciderHarness` and `from tests.contract.deciding import TestDeciding`. A
fixture with `params` runs it over several variants. What the resource manager can't do is said in the harness's
`capabilities`; it is then tested to be refused in the right way. `test_reference.py` is the example to copy.
"""

import pytest

# The classes are no test modules of their own, and still their asserts are to explain themselves.
pytest.register_assert_rewrite(
    *(
        f"tests.contract.{module}"
        for module in (
            "association",
            "asynchrony",
            "client",
            "completion",
            "deciding",
            "failures",
            "heuristics",
            "opening",
            "recovery",
            "refusals",
            "registration",
            "threads",
        )
    )
)
