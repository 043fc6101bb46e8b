"""`each` makes an exhaustive test one item of pytest, which loops over its cases.

It is written like `pytest.mark.parametrize`, and stacks like it:

    @each("code", sorted(Code))
    def test_what_a_rollback_hears(code: Code) -> None: ...

Every case is tried, even if an earlier one fails, and the error of each failed case has a note that names the case. Use
it for tests of pure code with hundreds of cases, where pytest's work on an item takes longer than the case. A test that
needs a fixture of its own for each case (a folder, a server) stays with `parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Calls the test with each of the cases: values of the parameters `names`, tuples where there are several."""
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    every = [(case,) if len(parameters) == 1 else tuple(case) for case in cases]
    if not every:
        raise ValueError(f"there are no cases for {names}")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        inner: tuple[Callable[..., None], list[Mapping[str, Any]]] = getattr(test, "each", (test, [{}]))
        called, before = inner
        both = [{**dict(zip(parameters, case, strict=True)), **rest} for case in every for rest in before]

        @functools.wraps(called)
        def looped(**fixtures: Any) -> None:
            _try_all(called, both, fixtures)

        signature = inspect.signature(called)
        left = [one for name, one in signature.parameters.items() if name not in both[0]]
        looped.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        looped.each = (called, both)  # type: ignore[attr-defined]
        return looped

    return decorate


def _try_all(test: Callable[..., None], cases: Sequence[Mapping[str, Any]], fixtures: Mapping[str, Any]) -> None:
    failures: list[Exception] = []
    for case in cases:
        try:
            test(**fixtures, **case)
        except Exception as error:  # noqa: BLE001 — whatever it is, the case failed
            error.add_note(f"case: {', '.join(f'{name}={value!r}' for name, value in case.items())}")
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)
