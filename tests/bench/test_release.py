"""These tests cover the dry run of a release: what it builds is complete, and it refuses what must not be released."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from bench import release

CHANGELOG = "# Changelog\n\n## [{newest}]\n\n- Something.\n"


@pytest.mark.slow
@pytest.mark.long  # the wheel: tests/test_wheel.py; what is refused: the tests below
def test_the_project_can_be_built_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--no-install", "--out", str(tmp_path / "dist")]) == 0
    assert f"the tag would be v{release.project_version()}" in capsys.readouterr().out


def test_the_changelog_has_to_begin_with_this_version() -> None:
    release.check_changelog(CHANGELOG.format(newest="Unreleased"), "1.2.3", tagged=False)
    release.check_changelog(CHANGELOG.format(newest="1.2.3"), "1.2.3", tagged=False)
    release.check_changelog(CHANGELOG.format(newest="1.2.3] - 2026-11-22"), "1.2.3", tagged=True)
    for newest, tagged in (("Unreleased", True), ("1.2.2", True), ("1.2.2", False)):
        with pytest.raises(release.Defect, match=r"should begin with .*1\.2\.3"):
            release.check_changelog(CHANGELOG.format(newest=newest), "1.2.3", tagged=tagged)


def test_a_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "xabridge-1.2.3-py3-none-any.whl"
    metadata = "Metadata-Version: 2.4\nName: xabridge\nVersion: {version}\n\nA description.\n"
    for version, refusal in (("1.2.4", "names version 1.2.4"), ("1.2.3", "lacks")):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("xabridge-1.2.3.dist-info/METADATA", metadata.format(version=version))
        with pytest.raises(release.Defect, match=refusal):
            release.check_wheel(wheel, "1.2.3")
