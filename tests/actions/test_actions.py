"""The action and the workflows: linted, and their shell steps executed as they stand, as a runner would."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli import COMMANDS
from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving
from tests.harness.sweep.fast_server import QUICK

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
TOOLS = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def steps(*where: str) -> dict[str, dict[str, Any]]:
    """Shell steps by name: of the action, or of a job of sweep.yml."""
    if where:
        found = load(ROOT / ".github" / "workflows" / "sweep.yml")["jobs"][where[0]]["steps"]
    else:
        found = load(ROOT / "action.yml")["runs"]["steps"]
    return {step["name"]: step for step in found if "run" in step}


@dataclass
class Runner:
    """A workspace, and the files by which steps talk to a runner."""

    workspace: Path
    temporary: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, step: dict[str, Any], **values: str) -> subprocess.CompletedProcess[str]:
        """Execute a step with GitHub's shell; `values` are what its expressions stand for (dots as `__`)."""
        known = {name.replace("__", ".").replace("_", "-"): value for name, value in values.items()}

        def value(found: re.Match[str]) -> str:
            return known[found[1].replace("_", "-")]

        own = {name: EXPRESSION.sub(value, str(text)) for name, text in step.get("env", {}).items()}
        assert not EXPRESSION.search(step["run"]), "an expression in a script is an injection"
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.workspace,
            env={
                "PATH": TOOLS,
                "HOME": str(self.temporary),
                "RUNNER_TEMP": str(self.temporary),
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_OUTPUT": str(self.temporary / "output"),
                "GITHUB_STEP_SUMMARY": str(self.temporary / "summary"),
                "GITHUB_RUN_ID": "4711",
                # The dependencies are here already: what the step installs is the package itself, built here.
                "PYTHONPATH": site.getsitepackages()[0],
                "PIP_NO_DEPS": "1",
                "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one as the value of the option
                **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))},
                **self.environment,
                **own,
            },
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def output(self) -> dict[str, str]:
        lines = (self.temporary / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def summary(self) -> str:
        return (self.temporary / "summary").read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runner's temporary folder after the Install step."""
    runner = Runner(tmp_path_factory.mktemp("workspace"), tmp_path_factory.mktemp("temporary"))
    done = runner.run(steps()["Install"], inputs__requirement="", inputs__upload="")
    assert done.returncode == 0, done.stderr
    return runner.temporary


@pytest.fixture
def runner(installed: Path, tmp_path: Path) -> Iterator[Runner]:
    """A fresh workspace with a sweep file over an endpoint that answers at once."""
    for name in ("output", "summary"):
        (installed / name).unlink(missing_ok=True)
    with serving(MockConfig(dataclasses.replace(FAST, **QUICK), "quick")) as port:
        (tmp_path / "sweep.yaml").write_text(
            "name: s\npoints: [1, 2]\n"
            "run: {sessions: 1, drain: 5s, time_scale: 0, max_context: 10k, workers: 1}\n"
            "configurations:\n- name: a\n  serving: {model: quick, engine: simulated, accelerators: 0}\n"
            f"  endpoint: http://127.0.0.1:{port}\n"
        )
        yield Runner(tmp_path, installed)


def test_the_action_s_steps_run_a_sweep_and_summarise_it(runner: Runner) -> None:
    inputs = {"inputs__sweep": "sweep.yaml", "inputs__only": "a/closed-loop/c1", "inputs__out": "results"}
    inputs["inputs__upload"] = str(runner.workspace / "bucket")
    action = steps()
    done = runner.run(action["Sweep"], **inputs)
    assert done.returncode == 0, done.stderr
    assert runner.output() == {"exit-code": "0"}
    assert runner.run(action["Summary"], **inputs).returncode == 0
    assert "| 1 | valid |" in runner.summary()
    assert (runner.workspace / "results/s/state.jsonl").is_file()
    kept, copied = (
        {path.name for path in (runner.workspace / at / "s/runs").iterdir()} for at in ("results", "bucket")
    )
    assert kept == copied
    gate = runner.run(
        action["Gate"], inputs__baseline="none", inputs__fail_if="ttft_p90 worse 5%", inputs__out="results"
    )
    assert gate.returncode == 0
    assert "no baseline at none" in runner.summary()
    assert runner.run(action["Result"], steps__sweep__outputs__exit_code="0").returncode == 0


def test_a_sweep_that_can_t_run_fails_the_action_at_its_end(runner: Runner) -> None:
    (runner.workspace / "sweep.yaml").write_text("nome: s\n")
    inputs = {"inputs__sweep": "sweep.yaml", "inputs__only": "", "inputs__out": "results", "inputs__upload": ""}
    done = runner.run(steps()["Sweep"], **inputs)
    assert done.returncode == 0
    assert "sweep.yaml:1: unknown key 'nome'" in done.stderr
    code = runner.output()["exit-code"]
    assert code == "2"
    assert runner.run(steps()["Result"], steps__sweep__outputs__exit_code=code).returncode == 2


def test_the_workflow_s_steps_plan_measure_collect_and_push(runner: Runner, tmp_path: Path) -> None:
    plan, point, collect, publish = (steps(job) for job in ("plan", "point", "collect", "publish"))
    sweep = {"inputs__sweep": "sweep.yaml"}
    done = runner.run(plan["Matrix"], **sweep)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(runner.output()["matrix"])["include"]
    assert [job["only"] for job in jobs] == ["a/closed-loop/c1", "a/closed-loop/c2"]

    store = {"inputs__upload": f"file://{tmp_path}/bucket"}
    store |= {"secrets__aws_access_key_id": "KEYID", "secrets__aws_secret_access_key": "CANARY"}
    for job in jobs:  # each on a runner of its own; its artifact is downloaded to parts/<name>
        done = runner.run(point["Point"], **sweep, **store, matrix__only=job["only"], secrets__api_key="")
        assert done.returncode == 0, done.stderr
        shutil.move(tmp_path / "runs", tmp_path / "parts" / f"agentx-{job['artifact']}")

    assert runner.run(collect["Put the parts together"]).returncode == 0
    assert len(list((tmp_path / "runs/s/runs").iterdir())) == 2
    assert len(list((tmp_path / "bucket/s/runs").iterdir())) == 2
    assert runner.run(collect["Summary"], **sweep).returncode == 0
    assert "xychart-beta" in runner.summary()
    assert runner.summary().count("| valid |") == 2

    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "repository")], check=True)
    runner.environment = {"GITHUB_SERVER_URL": f"file://{tmp_path}", "GITHUB_REPOSITORY": "repository"}
    branch = {"inputs__results_branch": "results", "github__token": "CANARY"}
    limit = {"inputs__fail_if": "ttft_p90 worse 500%"}
    assert "no branch results yet" in runner.run(collect["Baseline"], **branch).stdout
    gate = runner.run(collect["Gate"], **limit)
    assert gate.returncode == 0, gate.stderr
    assert "no baseline for s" in runner.summary()
    for run_id in ("1", "2"):
        runner.environment["GITHUB_RUN_ID"] = run_id
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        pushed = runner.run(publish["Push"], **branch, **{"needs__point__result == 'success'": "true"})
        assert pushed.returncode == 0, pushed.stderr
        assert "CANARY" not in pushed.stdout + pushed.stderr
    shown = subprocess.run(
        ["git", "-C", str(tmp_path / "repository"), "ls-tree", "-r", "--name-only", "results"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert sum(name.endswith("/summary.json") for name in shown) == 6
    assert any(name.startswith("s/latest/runs/") for name in shown)
    assert any("-2/state.jsonl" in name for name in shown)

    assert runner.run(collect["Baseline"], **branch).returncode == 0
    assert (tmp_path / "baseline/s/latest/runs").is_dir()
    if "compare" in COMMANDS:
        assert runner.run(collect["Gate"], **limit).returncode == 0


def test_one_artifact_alone_is_put_in_place_too(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "parts/s/runs/x").mkdir(parents=True)
    (tmp_path / "parts/s/state.jsonl").write_text("{}\n")
    assert runner.run(steps("collect")["Put the parts together"]).returncode == 0
    assert (tmp_path / "runs/s/state.jsonl").read_text() == "{}\n"
    assert (tmp_path / "runs/s/runs/x").is_dir()


def test_every_step_that_installs_is_the_same() -> None:
    texts = {steps(job)["Install"]["run"].replace(" --clear", "") for job in ("plan", "point", "collect")}
    assert len(texts) == 1


def test_actions_of_others_are_pinned_by_commit() -> None:
    for path in (*WORKFLOWS, ROOT / "action.yml"):
        for used in re.findall(r"^\s*-? *uses: (.+)$", path.read_text(), re.M):
            assert used.startswith("$/") or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", used), (path, used)


def test_no_job_may_do_more_than_it_says() -> None:
    for path in WORKFLOWS:
        workflow = load(path)
        assert workflow["permissions"] == {}
        for name, job in workflow["jobs"].items():
            assert "permissions" in job, name
    jobs = load(ROOT / ".github/workflows/sweep.yml")["jobs"]
    assert [name for name, job in jobs.items() if "write" in job["permissions"].values()] == ["publish"]


@pytest.mark.parametrize(
    ("tool", "words"),
    [("actionlint", [str(p) for p in WORKFLOWS]), ("zizmor", ["--offline", "--quiet", "--no-progress", str(ROOT)])],
)
def test_linters_have_no_objection(tool: str, words: list[str]) -> None:
    program = shutil.which(tool, path=TOOLS)
    if program is None:
        pytest.skip(f"{tool} is not installed (the dev dependency group has it)")
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PATH": TOOLS}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_nightly_sweep_is_one_that_can_run() -> None:
    with_ = load(ROOT / ".github/workflows/nightly.yml")["jobs"]["mock"]["with"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "agentx.py"), "sweep", str(ROOT / with_["sweep"]), "--matrix-json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["include"]) == 6
