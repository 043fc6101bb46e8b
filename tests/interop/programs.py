"""Programs in other languages that use clients which nobody here wrote: how they are run.

Each is given a port, the name of a scenario and options in JSON, and ends with its result as one line of JSON. Where
something was not as it should be, it says so on stderr, and its exit code is not 0.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

NOT_ALLOWED: Final = {"amqp:unauthorized-access"}


def run(command: list[str], port: int, scenario: str, *, folder: Path | None = None, **options: Any) -> Any:
    """The result of a scenario."""
    arguments = [*command, str(port), scenario, json.dumps(options)]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return json.loads(done.stdout)
