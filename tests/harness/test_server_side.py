"""Runs that watch their server: counters against answers, the fingerprint, and the run's own page."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from collectors.fingerprint import parse_stated
from harness.live_metrics import live_metrics
from harness.progress import ProgressView
from harness.worker_progress import Progress
from results.errors import UserError
from tests.harness.test_run import QUICK, agentx, hostile, only_run, simulated, summary_of
from tests.raw_server import Request, Writer, normal_answer


def test_a_run_counts_what_its_server_counts_and_no_warm_up(tmp_path: Path) -> None:
    with simulated() as url:
        done = agentx(
            "run", "--endpoint", url, *QUICK, "--scenario", "agentx", "--duration", "3s", "--concurrency", "3",
            "--drain", "20s", "--out", str(tmp_path), "--serving", "tensor_parallel=8",
        )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    directory = only_run(tmp_path)
    summary = summary_of(directory)
    compared = summary["server"]["reconciled"]
    for name in ("prompt_tokens", "cached_tokens", "generation_tokens", "requests"):
        assert compared[name]["client"] == compared[name]["server"], (name, compared)
    rows = pq.read_table(directory / "requests.parquet").to_pylist()
    warm = [row for row in rows if row["phase"] == "warmup"]
    steady = [row for row in rows if row["phase"] == "steady"]
    assert len(warm) >= 30
    assert min(row["sent_ns"] for row in warm) >= 0  # the loop's timers may be a millisecond early, a run may not
    assert all(row["output_tokens"] == 1 for row in warm)
    assert compared["requests"]["client"] == len(steady)
    assert summary["requests"]["sent"] == len(steady)
    before = summary["server"]["origin_of_warmup"]
    assert before["input_tokens"] == sum(row["input_tokens"] for row in warm)
    cache = summary["cache"]
    assert cache["device"] == pytest.approx(cache["achieved"])
    assert cache["cold"] is not None
    edges = pq.read_table(directory / "metrics.parquet").column_names
    assert "canonical" in edges
    run = json.loads((directory / "run.json").read_bytes())
    assert run["serving"]["engine"]["origin"] == "seen"
    assert run["serving"]["tensor_parallel"] == {"value": 8, "origin": "stated", "source": "--serving"}
    assert summary["not_submission"][-1].startswith("unsafe override")


def test_a_server_without_pages_leaves_reasons(tmp_path: Path) -> None:
    with simulated() as url:
        done = agentx(
            "run", "--endpoint", url, *QUICK, "--sessions", "1", "--out", str(tmp_path),
            "--metrics-url", "http://127.0.0.1:9/metrics",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    targets = summary_of(only_run(tmp_path))["server"]["targets"]
    assert [bool(target["failures"]) for target in targets] == [True, False]


def test_the_runs_own_page_follows_its_progress(tmp_path: Path) -> None:
    view = ProgressView(quiet=True, duration_s=None, planned_trees=None)
    report = Progress(ok=3, input_tokens=100, cached_tokens=90, cached_of=100, ttft_ms=[100.0, 300.0])
    with live_metrics(("127.0.0.1", 9464), view, "r1"):
        view.report(0, report.take())
        page = urllib.request.urlopen("http://127.0.0.1:9464/metrics", timeout=5).read().decode()
        with (
            pytest.raises(UserError, match=r"--prometheus-port 127\.0\.0\.1:9464"),
            live_metrics(("127.0.0.1", 9464), view, "r2"),
        ):
            pass
    assert 'agentx_requests_ok_total{run_id="r1"} 3.0' in page
    assert 'agentx_ttft_seconds{quantile="0.5",run_id="r1"} 0.2' in page
    dashboard = (Path(__file__).parents[2] / "docker/grafana/dashboards/agentx.json").read_text()
    for name in set(re.findall(r"agentx_\w+", dashboard)):
        assert re.search(rf"^{name}[{{ ]", page, re.M) or name == "agentx_requests_failed_total", name


def test_what_is_stated_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "serving.yaml"
    path.write_text("tensor_parallel: 8\nimage: vllm/vllm-openai:v0.32.0\n")
    assert parse_stated([str(path), "router=none"]) == {
        "tensor_parallel": "8",
        "image": "vllm/vllm-openai:v0.32.0",
        "router": "none",
    }
    with pytest.raises(UserError, match="no-such"):
        parse_stated(["no-such.yaml"])
    path.write_text("a: [1]\n")
    with pytest.raises(UserError, match="plain values"):
        parse_stated([str(path)])


def test_an_error_inside_the_run_comes_out_as_itself(tmp_path: Path) -> None:
    """A bad file of targets is found while the run is being set up, inside a task group."""
    (tmp_path / "targets.json").write_text("[{]")
    with simulated() as url:
        done = agentx(
            "run", "--endpoint", url, "--metrics-targets", str(tmp_path / "targets.json"), "--out", str(tmp_path)
        )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("agentx: ")]
    assert "targets.json" in line
    assert "TaskGroup" not in line


def test_p108_a_server_without_a_page_is_said_before_the_run_and_can_stop_it(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await normal_answer(request, writer)

    options = (*QUICK, "--sessions", "1", "--tokenizer", "usage", "--out", str(tmp_path))
    with hostile(script) as server:
        url = f"http://127.0.0.1:{server.port}"
        told = agentx("run", "--endpoint", url, *options)
        strict = agentx("run", "--endpoint", url, *options, "--require-metrics")
    assert "the server's side stays unknown: no metrics page" in told.stderr
    assert "--enable-metrics" in told.stderr  # the flag that one engine needs
    summary = summary_of(only_run(tmp_path))  # the run that did not start left no folder
    assert summary["server"] is None
    assert "no metrics page" in summary["reasons"]["cache.device"]
    assert strict.returncode == 3
    assert "--require-metrics: no metrics page" in strict.stderr
