"""Builds the documentation's site: `python -m bench.site` builds it into `site/` (`make site`).

The site works without a network, because it loads nothing from elsewhere. Two scripts that its theme would load from a
public server are therefore part of it: Mermaid, which draws the state machines, and the shim that lets the search work
on pages opened from a folder. npm fetches them once, in exactly the versions that this module names.

1. Fetch the scripts into `theme/scripts/`, where they are missing.
2. Build, and fail on any warning: a link, an anchor or a public name that does not exist.
3. Fail where a page loads something from another server.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[1]
SITE: Final = ROOT / "site"
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc="(?:https?:)?//[^"]*|<link\b[^>]*\bhref="https?://[^"]*"""
)


@dataclass(frozen=True, slots=True)
class Script:
    """A file of an npm package, with the package's SHA-512 as npm writes it."""

    name: str
    package: str
    member: str
    integrity: str


SCRIPTS: Final = (
    Script(
        name="mermaid.min.js",
        package="mermaid@12.3.0",
        member="package/dist/mermaid.min.js",
        integrity="4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw==",
    ),
    Script(
        name="iframe-worker.js",
        package="iframe-worker@1.0.4",
        member="package/shim/index.js",
        integrity="roeaaI+Lg1LJNfgpCjoRe/+WzEjy9+Z08LoEvu85MCPbBjwm+qXz8Ag5U05lHa6V1CysZyGzE0SOkAtSUA5q7Q==",
    ),
)


def fetch(script: Script, folder: Path) -> None:
    """Puts the script into `folder`, unless it is there."""
    if (folder / script.name).exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"npm is not installed: it fetches {script.package} for the site")

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [npm, "pack", "--silent", "--pack-destination", scratch, script.package]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 — the packages above
        (archive,) = Path(scratch).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != script.integrity:
            sys.exit(f"{script.package} has the SHA-512 {digest}, and should have {script.integrity}")

        with tarfile.open(archive) as members:
            content = members.extractfile(script.member)
            if content is None:
                sys.exit(f"{script.package} has no {script.member}")
            unpacked = Path(scratch, script.name)
            unpacked.write_bytes(content.read())
        unpacked.replace(folder / script.name)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """What the pages load from other servers, each with its page. Links that a reader may follow don't count."""
    return [
        f"{page.relative_to(site)}: {found}"
        for page in sorted(site.rglob("*.html"))
        for found in _LOADED.findall(page.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in found
    ]


def main(arguments: Sequence[str] = ()) -> int:
    """Builds the site; what `arguments` says goes to zensical."""
    for script in SCRIPTS:
        fetch(script, ROOT / "theme" / "scripts")

    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", *arguments]
    done = subprocess.run(build, cwd=ROOT, check=False)  # noqa: S603 — our own command
    if done.returncode != 0:
        return done.returncode

    elsewhere = loaded_from_elsewhere(SITE)
    for line in elsewhere:
        print(f"loaded from another server: {line}", file=sys.stderr)
    if not elsewhere:
        print(f"the site is in {SITE}; open index.html, or serve the folder")
    return 1 if elsewhere else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
