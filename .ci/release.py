"""Makes a release from a clean tag, and verifies it (`make release`).

    release.py make FOLDER     from the tag at HEAD; RELEASE_KEY names the key that signs
    release.py verify FOLDER   PUBLIC_KEY: what a person at a hospital can check by hand, and more

docs/releasing.md says what the files are for, and how to check them without this program.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("common", "client", "server", ".")
TAG = re.compile(r"v(\d+\.\d+\.\d+((a|b|rc)\d+)?)")
SUMS, SIGNATURE, PUBLIC = "SHA256SUMS", "SHA256SUMS.sig", "release.pub"
LOCKED = re.compile(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:\S+(?: \\)?\n)+)", re.MULTILINE)
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)


class Refused(Exception):  # noqa: N818 - a person mends it
    """Why there is no release, and the remedy."""


def run(*command: str | Path, where: Path = ROOT, **environment: str) -> str:
    """Return what a command prints. Raises Refused with its own words."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=where,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))} ended with {done.returncode}.\n{done.stdout}")
    return done.stdout.strip()


def checked_version(root: Path) -> str:
    """Return the version of the one tag at HEAD of a clean checkout. Raises Refused."""
    if changes := run("git", "status", "--porcelain", where=root):
        raise Refused(f"The checkout has changes; commit or remove them, then tag:\n{changes}")
    tags = run("git", "tag", "--points-at", "HEAD", where=root).split()
    found = [match[1] for tag in tags if (match := TAG.fullmatch(tag))]
    if len(found) != 1:
        raise Refused(
            f"The commit has {', '.join(tags) or 'no tag'}; it needs one such as v1.2.3 or"
            " v1.2.3rc1: git tag --annotate v1.2.3, or git tag --delete what is too much."
        )
    if f"\n## {found[0]}\n" not in (root / "CHANGELOG.md").read_text():
        raise Refused(f"CHANGELOG.md has no section `## {found[0]}`: write it, commit, tag again.")
    return found[0]


def make(folder: Path) -> None:
    """Put every file of the release into a new folder, and verify them. Raises Refused."""
    version = checked_version(ROOT)
    key = os.environ.get("RELEASE_KEY", "")
    if key != "none" and not Path(key).is_file():
        raise Refused(
            "RELEASE_KEY names no file. Make a key once, and keep it off this machine:\n"
            "  openssl genpkey -algorithm ed25519 -aes256 -out release.key\n"
            "RELEASE_KEY=none: something else signs SHA256SUMS (the hosted workflow does)."
        )
    if folder.exists():
        raise Refused(f"{folder} exists already; remove it.")
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch) / "source", Path(scratch) / "made"
        made.mkdir()
        # A clone holds what the tag holds: no build folder, no ignored file.
        run(
            "git", "clone", "--quiet", "--depth=1", f"--branch=v{version}", f"file://{ROOT}", source
        )
        commit, seconds = run("git", "log", "-1", "--format=%H %ct", where=source).split()
        os.environ["SOURCE_DATE_EPOCH"] = seconds  # the same files again from the same tag
        os.umask(0o022)
        for part in DISTRIBUTIONS:
            run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--no-build-isolation",
                "--python", sys.executable, "--out-dir", made, where=source / part)  # fmt: skip
        (made / ".gitignore").unlink(missing_ok=True)
        _bundle(source, made, version)
        _image(source, made, version, commit)
        shutil.copy(source / "requirements.lock", made)
        packages = dict(_locked((source / "requirements.lock").read_text()))
        _write(made / f"erosion-{version}.cdx.json", sbom(version, commit, int(seconds), packages))
        (made / "THIRD-PARTY-LICENCES.txt").write_text("".join(_licence_texts(packages)))
        _write(made / "provenance.json", provenance(made, version, commit))
        names = sorted(path.name for path in made.iterdir())
        (made / SUMS).write_text("".join(f"{_sha256(made / n)}  {n}\n" for n in names))
        if key != "none":
            run("openssl", "pkeyutl", "-sign", "-rawin", "-inkey", Path(key).resolve(),
                "-in", SUMS, "-out", SIGNATURE, where=made)  # fmt: skip
            run("openssl", "pkey", "-in", Path(key).resolve(), "-pubout", "-out", made / PUBLIC)
        verify(made, None if key == "none" else made / PUBLIC)
        shutil.copytree(made, folder)
    print(f"\nThe release of {version} is in {folder}:")
    for path in sorted(folder.iterdir()):
        print(f"  {path.stat().st_size:>13,}  {path.name}")


def _bundle(source: Path, made: Path, version: str) -> None:
    name = f"erosion-{version}-bundle"
    folder = made.parent / name
    run(source / "docker/bundle/make", Path(sys.executable).with_name("pip"), folder, made)
    run("tar", "--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner",
        f"--mtime=@{os.environ['SOURCE_DATE_EPOCH']}", f"--file={made / name}.tar",
        f"--directory={made.parent}", name)  # fmt: skip
    shutil.rmtree(folder)


def _image(source: Path, made: Path, version: str, commit: str) -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True).returncode
    ):
        print("No Docker engine: this release has no image.")
        return
    for wheel in (ROOT / "docker/wheelhouse").glob("*.whl"):
        shutil.copy(wheel, source / "docker/wheelhouse")
    names = f"erosion:{version}", "erosion:latest"  # the second is what the compose files run
    given = [
        name for name in ("TORCH_INDEX", "PIP_INDEX_URL", "SOURCE", "BASE") if name in os.environ
    ]
    arguments = [*given, f"VERSION={version}", f"REVISION={commit}"]
    run("docker", "build", "--file=docker/Dockerfile", *(f"--tag={name}" for name in names),
        *(f"--build-arg={argument}" for argument in arguments), ".", where=source)  # fmt: skip
    archive = made / f"erosion-{version}-image.tar"
    run("docker", "save", f"--output={archive}", *names)
    run("gzip", "--no-name", archive)


def _locked(lock: str) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Yield each package with its version and hashes; torch's depend on its index."""
    name, torch = lock.split()[1].split("==")
    yield name, (torch, [])
    for name, version, hashes in LOCKED.findall(lock):
        yield name, (version, re.findall("sha256:([0-9a-f]{64})", hashes))


def sbom(
    version: str, commit: str, seconds: int, packages: Mapping[str, tuple[str, list[str]]]
) -> dict[str, Any]:
    """Return the bill of materials, in CycloneDX 1.6: ours and every locked package."""
    ours = {"type": "application", "name": "erosion", "version": version, "bom-ref": "erosion"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, commit)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
            "component": {**ours, "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{found}",
                "name": name,
                "version": found,
                "purl": f"pkg:pypi/{name}@{found}",
                "licenses": _licence(name),
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": f"https://pypi.org/simple/{name}/",
                        "hashes": [{"alg": "SHA-256", "content": content}],
                    }
                    for content in hashes
                ],
            }
            for name, (found, hashes) in packages.items()
        ],
        "dependencies": [
            {"ref": "erosion", "dependsOn": [f"pkg:pypi/{n}@{v}" for n, (v, _) in packages.items()]}
        ],
    }


def _licence(name: str) -> list[dict[str, Any]]:
    """Return what the installed package says; nothing where it is for another kind of machine."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = about.get_all("Classifier") or []
    said = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ")]
    said = said or [line for line in (about.get("License") or "").splitlines()[:1] if line]
    return [{"license": {"name": text}} for text in said]


def _licence_texts(packages: Mapping[str, tuple[str, list[str]]]) -> Iterator[str]:
    for name, (version, _) in packages.items():
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            files = []
        said = [each.get("expression") or each["license"]["name"] for each in _licence(name)]
        yield f"{'=' * 100}\n{name} {version}: {', '.join(said) or 'see the package'}\n"
        for file in files:
            if LICENCE_FILE.match(file.name) and file.suffix not in (".py", ".pyc", ".pyi"):
                text = Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")
                yield f"{'-' * 100}\n{file}\n\n{text.rstrip()}\n"


def provenance(made: Path, version: str, commit: str) -> dict[str, Any]:
    """Return an in-toto statement with SLSA's predicate: which commit these files are made from."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": path.name, "digest": {"sha256": _sha256(path)}}
            for path in sorted(made.iterdir())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:erosion:make-release:1",
                "externalParameters": {"tag": f"v{version}"},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    {
                        "name": "requirements.lock",
                        "digest": {"sha256": _sha256(made / "requirements.lock")},
                    },
                ],
            },
            "runDetails": {
                "builder": {"id": os.environ.get("BUILDER_ID", "urn:erosion:maintainer")},
                "metadata": {
                    "invocationId": os.environ.get("BUILD_ID", f"urn:uuid:{uuid.uuid4()}")
                },
            },
        },
    }


def verify(folder: Path, public_key: Path | None) -> None:
    """Check signature, hashes, versions, and that the bundle installs. Raises Refused."""
    if public_key is not None:
        run("openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", public_key.resolve(),
            "-in", SUMS, "-sigfile", SIGNATURE, where=folder)  # fmt: skip
    print(run("sha256sum", "--check", "--strict", SUMS, where=folder))
    listed = {line.split("  ", 1)[1] for line in (folder / SUMS).read_text().splitlines()}
    if others := {path.name for path in folder.iterdir()} - listed - {SUMS, SIGNATURE, PUBLIC}:
        raise Refused(f"{folder} holds files that {SUMS} does not list: {', '.join(others)}.")
    (version,) = {
        _version(folder / n) for n in listed if n.endswith((".whl", ".tar.gz")) and "image" not in n
    }
    for subject in json.loads((folder / "provenance.json").read_text())["subject"]:
        if _sha256(folder / subject["name"]) != subject["digest"]["sha256"]:
            raise Refused(f"provenance.json is of another {subject['name']}.")
    with tempfile.TemporaryDirectory() as scratch:
        run(
            "tar",
            "--extract",
            f"--file={folder.resolve()}/erosion-{version}-bundle.tar",
            where=Path(scratch),
        )
        run(f"erosion-{version}-bundle/install", sys.executable, "installed", where=Path(scratch))
        said = run("installed/bin/erosion", "--version", where=Path(scratch))
    if said != f"erosion {version}":
        raise Refused(f"What the bundle installs says {said}, and not {version}.")
    print(f"erosion {version}: signature, hashes and versions are right, and the bundle installs.")


def _version(path: Path) -> str:
    """Return the version that a wheel or a source distribution states."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            content = wheel.read(name)
    else:
        with tarfile.open(path) as archive:
            file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
            content = b"" if file is None else file.read()
    return str(message_from_bytes(content)["Version"])


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["make", target]:
                make(Path(target))
            case ["verify", target, public]:
                verify(Path(target), Path(public))
            case _:
                raise Refused(str(__doc__))
    except (Refused, OSError) as problem:
        sys.exit(str(problem))
