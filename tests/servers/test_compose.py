"""The commands of the compose file's Dynamo profile, run as they stand outside containers."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest
import yaml

from tests.docker.test_docker import DOCKER, ROOT, interpolate
from tests.servers.environments import dynamo_environment, tiny_tokenizer
from tests.servers.servers import free_port, process


@pytest.mark.dynamo
def test_the_dynamo_profile_ends_in_a_run_directory(tmp_path: Path) -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    port = str(free_port())
    here = {"/model": str(tiny_tokenizer()), "python": str(dynamo_environment() / "bin" / "python"), "8000": port}
    (tmp_path / "store").mkdir()
    frontend = services["dynamo"]
    environment = frontend["environment"] | {"DYN_FILE_KV": str(tmp_path / "store")}
    with ExitStack() as stack:
        for name in ("dynamo", "dynamo-engine-1", "dynamo-engine-2"):
            command = [here.get(word, word) for word in services[name]["command"]]
            stack.enter_context(process(command, tmp_path / f"{name}.log", environment))
        check = [here.get(word, word).replace("8000", port) for word in frontend["healthcheck"]["test"][1:]]
        deadline = monotonic() + 60
        while subprocess.run(check, capture_output=True, check=False).returncode:
            assert monotonic() < deadline, (tmp_path / "dynamo.log").read_text()[-2000:]
            sleep(0.5)
        values = {"AGENTX_DURATION": "5s", "AGENTX_CONCURRENCY": "2", "AGENTX_TIME_SCALE": "0"}
        words = [interpolate(word, **values) for word in services["run-dynamo"]["command"]]
        done = subprocess.run(
            [sys.executable, str(ROOT / "agentx.py"), *(w.replace("dynamo:8000", f"127.0.0.1:{port}") for w in words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = (tmp_path / "docker" / "runs").iterdir()
    assert f"run directory: docker/runs/{directory.name}" in done.stdout
