"""`xabridge health` says of each condition that a broker has found what it means and what to do first."""

from __future__ import annotations

import pytest

from xa.telemetry.endpoint import JSON, Answer, EndpointThread
from xabridge.cli import main


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ("{}", ""),
        (
            '{"no-consumers": 12}',
            (
                "no-consumers: a queue has messages that could be received, and no consumer; "
                "first: xabridge broker queues\n"
            ),
        ),
        ('{"of a newer version": 1}', ""),
        ("[]", ""),
        ("7", ""),
    ],
)
def test_conditions_are_explained(conditions: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def ready() -> Answer:
        return Answer(200, f'{{"ready": true, "conditions": {conditions}}}'.encode(), JSON)

    with EndpointThread({"/ready": ready}, "127.0.0.1", 0) as server:
        assert main(["health", f"http://127.0.0.1:{server.port}/ready"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('{"ready": true')
    assert err == said
