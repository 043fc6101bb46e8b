"""This test checks that the site builds without a warning, has its search and its reference, and loads nothing from
other servers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import site
from tests.docs.guide import ROOT

NPM = shutil.which("npm")
REFERENCE = ("xabridge", "xabridge.outbox", "xabridge.pipeline", "rm_amqp", "rm_openwire", "rm_db", "rm_delta", "xa")
FETCHED = all((ROOT / "theme" / "scripts" / script.name).exists() for script in site.SCRIPTS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(NPM is None and not FETCHED, reason="npm is not installed, which fetches the site's two scripts")
def test_the_site_is_whole() -> None:
    done = subprocess.run([sys.executable, "-m", "bench.site"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    searched = {
        entry["location"].split("#")[0] for entry in json.loads((site.SITE / "search.json").read_text())["items"]
    }
    assert {"start.html", "recover.html", "glossary.html", "reference/xabridge.html"} <= searched
    unparsed = [page.name for page in site.SITE.rglob("*.html") if "```" in page.read_text(encoding="utf-8")]
    assert unparsed == []
    assert [name for package in REFERENCE for name in undocumented(package)] == []


def undocumented(package: str) -> list[str]:
    """The public names that the package's page does not have: but for other people's, and those of submodules too."""
    page = (site.SITE / "reference" / f"{package.rsplit('.', maxsplit=1)[-1]}.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'id="[\w.]*\.(\w+)"', page))
    module = import_module(package)
    return [
        name
        for name in module.__all__
        if name not in shown
        and find_spec(f"{package}.{name}") is None
        and getattr(getattr(module, name), "__module__", package).split(".")[0] != "proton"
    ]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://unpkg.com/x"></script>', 1),
        ('<link rel="stylesheet" href="https://fonts.example/css">', 1),
        ('<img alt="" src="//elsewhere.example/a.png">', 1),
        ('<script src="../scripts/x.js"></script><a href="https://example.org/">a link that is followed</a>', 0),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(html: str, found: int, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert len(site.loaded_from_elsewhere(tmp_path)) == found
