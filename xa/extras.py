"""Extras: what xabridge can use beside what it needs, and the command that installs one.

raise ConfigurationError(f"metrics need the extra otel: {install_command('otel')}")
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(*extras: str) -> str:
    """The command that adds `extras` to the xabridge that runs here. It names the distribution if an index had it;
    otherwise the folder, the wheel or the repository that it was installed from, because no index may have it."""
    wanted = f"[{','.join(extras)}]"
    try:
        noted = distribution("xabridge").read_text("direct_url.json")  # by PEP 610: not from an index
    except PackageNotFoundError:
        noted = None
    if noted is None:
        return f"pip install 'xabridge{wanted}'"

    origin = json.loads(noted)
    url = urlsplit(origin["url"])
    if url.scheme == "file":
        place = unquote(url.path)
        if not Path(place).exists():
            return f"pip install '.{wanted}' in a clone of xabridge"
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{place}{wanted}'"
    version_control = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    return f"pip install 'xabridge{wanted} @ {version_control}{origin['url']}'"
