"""The chart renders what Kubernetes accepts and confines it; so do the quadlets for Podman."""

import importlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from erosion_common.program.command_line import parser
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link.link import make_link
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "erosion"
VALUES: dict[str, dict[str, Any]] = {
    "site": {
        "role": "site",
        "image": {"name": "registry.example.org/erosion:1"},
        "secret": "north",
        "site": {"coordinator": {"cidr": "198.51.100.7/32"}, "data": "patients"},
        "egress": [{"ports": [{"port": 5432}]}],
    },
    "coordinator": {
        "role": "coordinator",
        "image": {"name": "registry.example.org/erosion:1"},
        "secret": "federation",
        "coordinator": {"sites": ["192.0.2.0/24"]},
    },
}
# Helm itself, or its engine as a Python package (helm-python-sdk).
HAS_HELM = shutil.which("helm") is not None
needs_helm = pytest.mark.skipif(
    not HAS_HELM and importlib.util.find_spec("helm_python") is None, reason="needs Helm"
)


class HelmFailedError(Exception):
    """What Helm said."""


def by_helm(what: str, values: dict[str, Any], tmp_path: Path) -> str:
    """What `helm template` or `helm lint` prints."""
    if not HAS_HELM:
        helm = importlib.import_module("helm_python")
        try:
            if what == "lint":
                errors: list[str] = helm.lint(CHART, values, strict=True)["errors"]
                return "\n".join(errors)
            with helm.Chart.load(CHART) as chart:
                return "\n---\n".join(chart.render(values, name="north").values())
        except helm.HelmError as problem:
            raise HelmFailedError(str(problem)) from None
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    name = ["north"] if what == "template" else ["--strict"]
    command = ["helm", what, *name, str(CHART), "--values", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if run.returncode:
        raise HelmFailedError(run.stdout + run.stderr)
    return run.stdout


def objects(role: str, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """What the chart makes, by kind."""
    text = by_helm("template", VALUES[role], tmp_path)
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


@needs_helm
@pytest.mark.parametrize("role", VALUES)
def test_the_chart_is_accepted_and_confined(role: str, tmp_path: Path) -> None:
    by_helm("lint", VALUES[role], tmp_path)
    made = objects(role, tmp_path)
    if importlib.util.find_spec("kubernetes_validate"):
        kubernetes_validate = importlib.import_module("kubernetes_validate")
        for version in ("1.31", "1.37"):
            for each in made.values():
                kubernetes_validate.validate(each, version, strict=True)
    assert set(made) == {"StatefulSet", "NetworkPolicy", *(["Service"] * (role != "site"))}
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["initContainers"], *pod["containers"]):
        inside = container["securityContext"]
        assert inside["readOnlyRootFilesystem"] is True
        assert inside["allowPrivilegeEscalation"] is False
        assert inside["capabilities"] == {"drop": ["ALL"]}
    (main,) = pod["containers"]
    for words in (main["args"], *(main[p]["exec"]["command"][1:] for p in PROBES)):
        assert callable(parser().parse_args(words).handler)
    if role == "coordinator":
        (port,) = main["ports"]
        assert parser().parse_args(main["args"]).address == f"0.0.0.0:{port['containerPort']}"


PROBES = ("startupProbe", "livenessProbe")


@needs_helm
def test_nothing_may_connect_to_a_site(tmp_path: Path) -> None:
    made = objects("site", tmp_path)
    policy = made["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == []
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 9092, 5432]
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    assert "ports" not in pod["containers"][0]
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert {place for place, each in mounts.items() if not each.get("readOnly")} == {
        *("/tmp", "/site/records", "/site/state")
    }


@needs_helm
@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({}, "role"),
        ({"role": "site"}, "image.name"),
        ({"role": "site", "image": {"name": "x"}}, "secret"),
        ({**VALUES["site"], "site": {}}, "site.coordinator.cidr"),
        ({**VALUES["coordinator"], "coordinator": {"files": ["ca.key", "a", "b", "c"]}}, "files"),
        ({"rol": "site"}, "rol"),
        ({**VALUES["site"], "site": {"coordinator": {"cidre": "198.51.100.7/32"}}}, "cidre"),
        ({**VALUES["site"], "site": {"coordinator": {"cidr": "198.51.100.7"}}}, "cidr"),
        ({**VALUES["site"], "egress": [{"port": 5432}]}, "egress"),
        ({**VALUES["site"], "resources": {"limit": {"memory": "4Gi"}}}, "limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_is_missing_or_wrong_is_named(
    values: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(HelmFailedError, match=key):
        by_helm("template", values, tmp_path)


@needs_helm
@pytest.mark.parametrize("role", VALUES)
def test_the_keys_in_the_pod_are_as_the_program_wants_them(role: str, tmp_path: Path) -> None:
    """Kubernetes shows a Secret's files to the group, as links."""
    pod = objects(role, tmp_path)["StatefulSet"]["spec"]["template"]["spec"]
    federation = make_federation(tmp_path / "federation", "north")
    kit = federation.path if role == "coordinator" else unpack_kit(federation, "north", tmp_path)
    items = next(each for each in pod["volumes"] if each["name"] == "secret")["secret"].get("items")
    names = [each["key"] for each in items] if items else [path.name for path in kit.iterdir()]
    for folder in ("secret", "hidden", "keys", "keep"):
        (tmp_path / folder).mkdir()
    for name in names:
        shutil.copy(kit / name, tmp_path / "hidden")
        (tmp_path / "hidden" / name).chmod(0o440)
        (tmp_path / "secret" / name).symlink_to(tmp_path / "hidden" / name)
    (script,) = pod["initContainers"][0]["args"]
    here = re.sub(r"/(secret|keys|keep)\b", rf"{tmp_path}/\1", script)
    assert f"{tmp_path}/secret" in here
    for _ in range(2):  # a container may be started again in the same pod
        subprocess.run(["/bin/sh", "-euc", here], check=True, timeout=PATIENCE)
    if role == "site":
        assert (tmp_path / "keys" / "node.key").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "keep" / "records").stat().st_mode & 0o777 == 0o700
    else:
        assert not (tmp_path / "keys" / "ca.key").exists()
        assert (tmp_path / "keys" / "roster.toml").is_symlink()
        make_link(("north",), "127.0.0.1:0", FederationFolder(tmp_path / "keys")).stop()


QUADLETS = sorted((ROOT / "deploy" / "quadlet").iterdir())
# From podman-systemd.unit(5) of Podman 4.6.
KEYS = {
    *("ContainerName", "Image", "Exec", "WorkingDir", "UserNS", "ReadOnly", "Tmpfs", "PodmanArgs"),
    *("DropCapability", "NoNewPrivileges", "Environment", "Volume", "PublishPort", "HealthCmd"),
    *("HealthInterval", "HealthTimeout", "HealthStartPeriod", "HealthRetries"),
}


@pytest.mark.parametrize("file", QUADLETS, ids=lambda path: path.stem)
def test_a_quadlet_is_confined_and_runs_what_there_is(file: Path) -> None:
    (container,) = re.findall(r"\[Container\]\n(.*?)\n\n", file.read_text(), flags=re.DOTALL)
    lines = [line.split("=", 1) for line in container.splitlines() if line[0] != "#"]
    assert {key for key, _ in lines} <= KEYS
    values = dict(lines)
    assert values["ReadOnly"] == values["NoNewPrivileges"] == "true"
    assert values["DropCapability"] == "all"
    assert "--ulimit=core=0" in values["PodmanArgs"]
    for words in (values["Exec"], values["HealthCmd"].removeprefix("erosion ")):
        assert callable(parser().parse_args(shlex.split(words)).handler)
    role = "server" if "coordinator" in file.stem else "client"
    unit = (ROOT / "docker" / "systemd" / f"erosion-{role}.service").read_text()
    settled = re.findall(r"^\w+ExitStatus=.*$", unit, flags=re.MULTILINE)
    assert len(settled) == 2
    assert set(settled) <= {*file.read_text().splitlines()}
