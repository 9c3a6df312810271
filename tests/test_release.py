"""`make release`: what it refuses, and what it states about the packages."""

import gzip
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1_800_000_000


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load()
PACKAGES = dict(release._locked((ROOT / "requirements.lock").read_text()))


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", *identity, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean one, whose changelog has version 1.2.3."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init")
    (folder / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.3\n\n- All.\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "All")
    return folder


def test_the_image_is_loaded_under_the_name_that_compose_files_and_quadlets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, saved = tmp_path / "docker", tmp_path / "erosion-1.2.3-image.tar"
    docker.write_text(f'#!/bin/sh\n[ "$1" != save ] || echo "$@" > {saved}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(release, "ROOT", tmp_path / "without wheels")
    release._image(tmp_path, tmp_path, "1.2.3", "commit")
    with gzip.open(f"{saved}.gz", "rt") as file:
        _, _, *names = file.read().split()
    assert names == ["erosion:1.2.3", "erosion:latest"]
    for quadlet in (ROOT / "deploy" / "quadlet").iterdir():
        assert f"Image=localhost/{names[-1]}" in quadlet.read_text().splitlines()


def test_a_clean_tag_is_a_version(checkout: Path) -> None:
    git(checkout, "tag", "nightly")
    git(checkout, "tag", "v1.2.3")
    assert release.checked_version(checkout) == "1.2.3"


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ([], "no tag"),
        (["1.2.3"], "1.2.3"),
        (["v1.2.3-dirty"], "v1.2.3-dirty"),
        (["v1.2.3", "v1.2.4"], "v1.2.4"),
        (["v1.2.4rc1"], "## 1.2.4rc1"),
    ],
)
def test_another_tag_is_refused(checkout: Path, tags: list[str], said: str) -> None:
    for tag in tags:
        git(checkout, "tag", tag)
    with pytest.raises(release.Refused, match=said):
        release.checked_version(checkout)


def test_a_changed_checkout_is_refused(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    (checkout / "stray.py").write_text("")
    with pytest.raises(release.Refused, match=r"stray\.py"):
        release.checked_version(checkout)


def test_the_bill_of_materials_has_every_locked_package_with_its_licence() -> None:
    bill = release.sbom("1.2.3", "0" * 40, SECONDS, PACKAGES)
    parts = {part["name"]: part for part in bill["components"]}
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert len(parts) == sum("==" in line and line[0].isalnum() for line in lines) + 1  # torch
    assert parts["numpy"]["purl"] == f"pkg:pypi/numpy@{PACKAGES['numpy'][0]}"
    assert all(
        len(hashed["content"]) == 64
        for part in parts.values()
        for place in part["externalReferences"]
        for hashed in place["hashes"]
    )
    unlicensed = [name for name, part in parts.items() if not part["licenses"]]
    assert len(unlicensed) < 3, unlicensed  # those for other machines
    assert bill["dependencies"][0]["dependsOn"] == [part["bom-ref"] for part in parts.values()]
    texts = "".join(release._licence_texts(PACKAGES))
    assert all(f"\n{name} {version}: " in texts for name, (version, _) in PACKAGES.items())


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A folder with a file, its hashes and their signature."""
    key, folder = tmp_path / "release.key", tmp_path / "release"
    folder.mkdir()
    for name in ("a.txt", "requirements.lock"):
        (folder / name).write_text("a\n")
    (folder / "provenance.json").write_text(json.dumps(release.provenance(folder, "1.2.3", "0")))
    names = sorted(path.name for path in folder.iterdir())
    sums = "".join(f"{release._sha256(folder / name)}  {name}\n" for name in names)
    (folder / "SHA256SUMS").write_text(sums)
    sign: list[str | Path] = ["pkeyutl", "-sign", "-rawin", "-inkey", key, "-in"]
    commands: tuple[list[str | Path], ...] = (
        ["genpkey", "-algorithm", "ed25519", "-out", key],
        [*sign, folder / "SHA256SUMS", "-out", folder / "SHA256SUMS.sig"],
        ["pkey", "-in", key, "-pubout", "-out", tmp_path / "maintainer.pub"],
    )
    for words in commands:
        subprocess.run(["openssl", *words], check=True, timeout=PATIENCE, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("file", "said"),
    [("a.txt", "sha256sum"), ("SHA256SUMS", "openssl"), ("SHA256SUMS.sig", "openssl")],
)
def test_one_changed_byte_is_noticed(signed: Path, file: str, said: str) -> None:
    content = bytearray((signed / file).read_bytes())
    content[0] ^= 1
    (signed / file).write_bytes(content)
    with pytest.raises(release.Refused, match=said):
        release.verify(signed, signed.parent / "maintainer.pub")


def test_a_file_that_the_list_does_not_name_is_noticed(signed: Path) -> None:
    (signed / "b.txt").write_text("")
    with pytest.raises(release.Refused, match=r"b\.txt"):
        release.verify(signed, signed.parent / "maintainer.pub")


def test_the_commands_of_the_page_check_a_release(signed: Path) -> None:
    page = (ROOT / "docs" / "releasing.md").read_text()
    commands = page.partition("```sh\n")[2].splitlines()[:2]
    shutil.copy(signed.parent / "maintainer.pub", signed)
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=signed, capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == 0, command
