"""The scraper and the runner against a real HTTP server: what a bad page costs, and that the rest stands."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import cycle, pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from collectors import scrape
from collectors.scrape import Scraper
from collectors.server import ServerMetrics
from collectors.targets import Target
from results.metrics_table import write_metrics
from results.reconcile import total
from tests.collectors.pages import Answer, MetricsServer, vllm

T0 = monotonic_ns()


def clock() -> int:
    return monotonic_ns() - T0


def runner(tmp_path: Path, *targets: Target, interval_s: float = 0.02, **options: Any) -> ServerMetrics:
    journal = tmp_path / "journal"
    journal.mkdir(exist_ok=True)
    return ServerMetrics(list(targets), journal, clock=clock, interval_s=interval_s, **options)


async def pages_served(server: MetricsServer, count: int) -> None:
    """Wait until the server was asked so often; the test's time limit ends a wait in vain."""
    while len(server.requests) < count:
        await asyncio.sleep(0.005)


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    assert write_metrics(tmp_path, "r1") is not None
    table: list[dict[str, Any]] = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    return table


def run(case: Coroutine[Any, Any, None]) -> None:
    asyncio.run(case)


def test_baselines_are_requested_after_they_are_asked_for(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(100))) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            await asyncio.sleep(0.05)
            for prompt in (100, 130, 190):
                server.page = Answer(vllm(prompt), delay_s=0.01)
                asked = monotonic_ns()
                baseline = await metrics.edge(f"at_{prompt}")
                assert server.requests[-1][0] >= asked
                assert baseline.t_ns <= baseline.marks[server.url].t_ns <= baseline.ended_ns
            summary = await metrics.stop()
            assert total(metrics.increases("at_100", "at_130"), "prompt_tokens") == 30
            assert total(metrics.increases("at_100", "at_190"), "prompt_tokens") == 90
            assert [i["to"] for i in summary["intervals"]] == ["at_130", "at_190"]
            assert summary["targets"][0]["scrapes"] == 4

    run(case())


def test_a_slow_page_never_overlaps_itself_and_skipped_ticks_are_counted(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(1), delay_s=0.11)) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=0.02)
            began = clock()
            await metrics.start()
            await pages_served(server, 3)
            await metrics.edge("end")
            summary = await metrics.stop()
            ticks = (clock() - began) / 0.02e9
            target = summary["targets"][0]
            assert target["skipped_ticks"] + target["scrapes"] <= ticks + 2
            assert server.in_flight_peak == 1
            assert target["skipped_ticks"] >= 8
            assert target["scrapes"] <= 6
            assert target["scrape_s"]["max"] >= 0.11

    run(case())


def test_a_page_without_end_is_given_up_and_said(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(1), delay_s=30)) as server:
            metrics = runner(tmp_path, Target(server.url), timeout_s=0.05)
            await metrics.start()
            baseline = await metrics.edge("start")
            assert baseline.marks[server.url].failure == "no answer in time"
            summary = await metrics.stop()
            assert summary["targets"][0]["failures"] == {"no answer in time": summary["targets"][0]["scrapes"]}
            assert "never scraped" in summary["notes"][0]
            assert not metrics.increases("start", "start")

    run(case())


def test_a_server_that_restarts_mid_run_loses_nothing_it_said(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(1000, 500))) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=0.01)
            await metrics.start()
            await metrics.edge("run_start")
            server.page = Answer(vllm(1400, 700))
            await metrics.edge("before")
            await server.down()
            await metrics.edge("meanwhile")
            server.page = Answer(vllm(1500, 40, start=2e9))  # larger than before: only the start time tells
            await server.up()
            await metrics.edge("run_end")
            summary = await metrics.stop()
            target = summary["targets"][0]
            assert target["restarts"] == 1
            assert target["vanished"] == 1
            assert target["failures"]["no connection"] > 0
            increases = metrics.increases("run_start", "run_end")
            assert total(increases, "prompt_tokens") == 400 + 1500
            assert total(increases, "prefix_cache_hits", tier="device") == 200 + 40
            assert {i.resets for i in increases} == {1}
            assert {i.resets for i in metrics.increases("run_start", "before")} == {0}
        ups = [row["value"] for row in rows(tmp_path) if row["name"] == "up"]
        assert ups == [1, 0, 1]  # only changes are stored

    run(case())


def test_c38_a_target_that_comes_up_late_is_picked_up(tmp_path: Path) -> None:
    async def case() -> None:
        server = MetricsServer(Answer(vllm(7)))
        async with server:
            pass  # now the port is known and free
        metrics = runner(tmp_path, Target(server.url), interval_s=0.01)
        await metrics.start()
        await metrics.edge("early")
        async with server:
            await metrics.edge("start")
            server.page = Answer(vllm(9))
            await metrics.edge("end")
            summary = await metrics.stop()
        assert summary["targets"][0]["failures"]["no connection"] > 0
        assert total(metrics.increases("start", "end"), "prompt_tokens") == 2

    run(case())


def test_a_target_that_vanishes_costs_the_others_nothing(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(1))) as stays, MetricsServer(Answer(vllm(1))) as goes:
            metrics = runner(tmp_path, Target(stays.url), Target(goes.url), interval_s=0.01)
            await metrics.start()
            await metrics.edge("a")
            await goes.down()
            stays.page = Answer(vllm(6))
            await metrics.edge("b")
            summary = await metrics.stop()
            assert total(metrics.increases("a", "b"), "prompt_tokens") == 5
            assert metrics.baselines["b"].marks[goes.url].failure == "no connection"
            assert [t["vanished"] for t in summary["targets"]] == [0, 1]
            await goes.up()

    run(case())


def test_p104_two_replicas_are_added_and_their_usage_is_not(tmp_path: Path) -> None:
    async def case() -> None:
        async with (
            MetricsServer(Answer(vllm(100, 80, running=3, usage=0.2))) as one,
            MetricsServer(Answer(vllm(10, 0, running=5, usage=0.6))) as two,
        ):
            metrics = runner(tmp_path, Target(one.url), Target(two.url), interval_s=60)
            await metrics.start()
            await metrics.edge("a")
            one.page, two.page = (
                Answer(vllm(200, 170, running=3, usage=0.2)),
                Answer(vllm(40, 0, running=5, usage=0.6)),
            )
            await metrics.edge("b")
            summary = await metrics.stop()
            increases = metrics.increases("a", "b")
            assert total(increases, "prompt_tokens") == 130
            assert {i.target for i in increases} == {one.url, two.url}
            gauges = summary["gauges"]["worker"]
            assert gauges["requests_running"]["mean"] == 8
            assert gauges['kv_usage{tier="device"}']["mean"] == pytest.approx(0.4, abs=0.15)
            assert gauges['kv_usage{tier="device"}']["max"] == 0.6
            # C37: 90 of 130 tokens, not the mean of 90 % and 0 %
            assert summary["intervals"][0]["hit_rate"]["device"] == pytest.approx(90 / 130)
            assert metrics.evidence().replicas == 2

    run(case())


def test_two_replicas_behind_one_address_are_both_counted_and_said(tmp_path: Path) -> None:
    async def case() -> None:
        counts = {1.1e9: 1_000.0, 1.2e9: 50.0}
        turn = cycle(counts)

        def balanced(path: str) -> Answer:
            start = next(turn)
            return Answer(vllm(counts[start], start=start))

        async with MetricsServer(balanced) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=0.01)
            await metrics.start()
            await pages_served(server, 4)
            await metrics.edge("a")
            counts[1.1e9] += 7
            counts[1.2e9] += 30
            await metrics.edge("b")
            summary = await metrics.stop()
            assert total(metrics.increases("a", "b"), "prompt_tokens") == 37
            assert summary["targets"][0]["restarts"] == 0
            assert summary["targets"][0]["servers"] == 2
            assert "2 servers answer in turn" in summary["notes"][0]
            assert metrics.evidence().replicas == 2

    run(case())


def test_p104_several_models_on_a_page_are_said(tmp_path: Path) -> None:
    async def case() -> None:
        page = vllm(5) + 'vllm:prompt_tokens_total{engine="0",model_name="other"} 9\n'
        async with MetricsServer(Answer(page)) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            await metrics.edge("a")
            summary = await metrics.stop()
            assert "2 models together: m, other" in summary["notes"][0]

    run(case())


def test_replicas_that_nothing_tells_apart_are_not_counted_and_said(tmp_path: Path) -> None:
    async def case() -> None:
        turn = cycle([1_000, 50])
        async with MetricsServer(
            lambda _: Answer(f"# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total {next(turn)}\n")
        ) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=0.005)
            await metrics.start()
            await metrics.edge("a")
            await pages_served(server, 14)
            await metrics.edge("b")
            summary = await metrics.stop()
            assert total(metrics.increases("a", "b"), "prompt_tokens") is None
            assert "its counters are not used" in summary["notes"][0]

    run(case())


def test_p106_not_finite_is_null_with_a_count(tmp_path: Path) -> None:
    async def case() -> None:
        fine = "".join(f"# TYPE g{i} gauge\ng{i} {i}\n" for i in range(50))
        async with MetricsServer(Answer(fine + "# TYPE n gauge\nn NaN\n# TYPE m gauge\nm +Inf\n")) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            await metrics.edge("only")
            summary = await metrics.stop()
        assert summary["targets"][0]["nonfinite"] == 4  # two pages
        assert "raw series only" in summary["notes"][0]
        stored = {row["name"]: row["value"] for row in rows(tmp_path) if row["edge"] == "only"}
        assert stored["n"] is None
        assert stored["m"] is None
        assert [stored[f"g{i}"] for i in range(50)] == list(range(50))

    run(case())


def test_a_page_of_20_mb_is_read_while_the_loop_goes_on(tmp_path: Path) -> None:
    async def case() -> None:
        line = 'vllm:request_success_total{finished_reason="stop",request_id="%0160d"} 1\n'
        body = (vllm(3) + "".join(line % i for i in range(90_000))).encode()
        assert len(body) > 20_000_000
        async with MetricsServer(Answer(body)) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            waits = [clock()]
            snapshot = asyncio.ensure_future(metrics.edge("a"))
            while not snapshot.done():
                await asyncio.sleep(0.005)
                waits.append(clock())
            summary = await metrics.stop()
        target = summary["targets"][0]
        assert not target["failures"]
        assert target["page_bytes_max"] == len(body)
        assert target["dropped_series"] == 70_000
        assert target["scrape_s"]["max"] < 8
        assert max(b - a for a, b in pairwise(waits)) < 1e9
        assert sum(s.value for s in metrics.samples() if s.name == "prompt_tokens") == 3

    run(case())


def test_a_page_above_the_limit_is_refused_while_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MAX_PAGE_BYTES", 2**20)

    async def case() -> None:
        async with MetricsServer(Answer(b"a 1\n" * 600_000)) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            baseline = await metrics.edge("a")
            await metrics.stop()
            assert baseline.marks[server.url].failure == "a page of more than 1 MiB"

    run(case())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer("", "404 Not Found"), "HTTP 404"),
        (Answer("", "401 Unauthorized"), "credentials"),
        (Answer("", "500 Internal Server Error"), "HTTP 500"),
        (Answer("<html>", content_type="text/html"), "HTML"),
        (Answer("[]", content_type="application/json"), "JSON"),
        (Answer("", "302 Found", headers={"location": "http://elsewhere:1/metrics"}), "redirected to elsewhere"),
        (Answer("", "302 Found", headers={"location": "/metrics"}), "circle"),
        (Answer("", "302 Found", headers={"location": "http://["}), "redirected to"),
    ],
)
def test_p108_a_page_that_is_off_is_said_with_the_reason(tmp_path: Path, answer: Answer, says: str) -> None:
    async def case() -> None:
        async with MetricsServer(answer) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            baseline = await metrics.edge("a")
            summary = await metrics.stop()
            assert says in (baseline.marks[server.url].failure or "")
            assert says in summary["notes"][0]
            assert summary["gauges"] == {}

    run(case())


def test_p108_an_empty_page_fills_at_the_first_request(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer("")) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            await metrics.edge("a")
            server.page = Answer(vllm(50))
            await metrics.edge("b")
            summary = await metrics.stop()
            assert summary["targets"][0]["empty_pages"] == 2
            assert total(metrics.increases("a", "b"), "prompt_tokens") == 50

    run(case())


def test_redirects_on_the_same_server_are_followed(tmp_path: Path) -> None:
    async def case() -> None:
        moved = Answer("", "307 Temporary Redirect", headers={"location": "/metrics/"})
        server = MetricsServer(lambda path: Answer(vllm(4)) if path == "/metrics/" else moved)
        async with server:
            metrics = runner(tmp_path, Target(server.url), interval_s=60)
            await metrics.start()
            await metrics.edge("a")
            await metrics.stop()
            assert [path for _, path in server.requests] == ["/metrics", "/metrics/", "/metrics/"]

    run(case())


def test_redirects_to_another_host_are_refused(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer()) as server:
            elsewhere = server.url.replace("127.0.0.1", "localhost")
            server.page = Answer("", "302 Found", headers={"location": elsewhere})
            metrics = runner(tmp_path, Target(server.url, trusted=True), interval_s=60, headers={"x-key": "secret"})
            await metrics.start()
            baseline = await metrics.edge("a")
            summary = await metrics.stop()
            assert "redirected to localhost" in (baseline.marks[server.url].failure or "")
            assert len(server.requests) == summary["targets"][0]["scrapes"]

    run(case())


def test_credentials_go_to_trusted_targets_only(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm())) as ours, MetricsServer(Answer(vllm())) as theirs:
            targets = (Target(ours.url, trusted=True), Target(theirs.url))
            metrics = runner(tmp_path, *targets, interval_s=60, headers={"authorization": "Bearer secret"})
            await metrics.start()
            await metrics.edge("a")
            await metrics.stop()
            assert all(h["authorization"] == "Bearer secret" for h in ours.headers)
            assert not any("authorization" in h for h in theirs.headers)

    run(case())


def test_p111_a_frontend_alone_is_said_and_roles_are_kept(tmp_path: Path) -> None:
    async def case() -> None:
        frontend = "# TYPE dynamo_frontend_inflight_requests gauge\ndynamo_frontend_inflight_requests 2\n"
        only_http = '# TYPE http_requests_total counter\nhttp_requests_total{path="/"} 4\n'
        async with (
            MetricsServer(Answer(frontend)) as one,
            MetricsServer(Answer(only_http)) as router,
            MetricsServer(Answer(vllm(5))) as worker,
        ):
            for targets, says in (
                ([Target(one.url)], "a frontend's page only"),
                ([Target(router.url)], "no engine's page"),
                ([Target(one.url), Target(worker.url, role="prefill")], None),
            ):
                metrics = runner(tmp_path, *targets, interval_s=60)
                await metrics.start()
                await metrics.edge("a")
                summary = await metrics.stop()
                assert any(says in note for note in summary["notes"]) if says else not summary["notes"]
            assert [(t["role"], t["role_stated"]) for t in summary["targets"]] == [
                ("frontend", False),
                ("prefill", True),
            ]
            assert summary["gauges"].keys() == {"frontend", "prefill"}

    run(case())


def test_c36_series_that_appear_later_reach_the_table(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(
            Answer("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n")
        ) as server:
            metrics = runner(tmp_path, Target(server.url, labels={"rack": "r"}), interval_s=60)
            await metrics.start()
            await metrics.edge("warmup_start")
            server.page = Answer(vllm(5, running=2))
            await metrics.edge("steady_start")
            await metrics.edge("steady_end")
            await metrics.stop()
        table = rows(tmp_path)
        late = [r for r in table if r["name"] == "vllm:prompt_tokens_total"]
        assert [(r["edge"], r["phase"], r["value"]) for r in late] == [
            ("steady_start", "steady", 5),
            ("steady_end", None, 5),
        ]
        assert late[0]["canonical"] == "prompt_tokens"
        assert late[0]["kind"] == "counter"
        assert dict(late[0]["labels"]) == {"engine": "0", "model_name": "m", "rack": "r"}
        assert {r["run_id"] for r in table} == {"r1"}

    run(case())


def test_only_changes_are_stored_between_baselines(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(5))) as server:
            metrics = runner(tmp_path, Target(server.url), interval_s=0.005)
            await metrics.start()
            await pages_served(server, 4)
            server.page = Answer(vllm(6))
            await pages_served(server, 9)
            scrapes = (await metrics.stop())["targets"][0]["scrapes"]
            assert scrapes > 5
        table = rows(tmp_path)
        assert [r["value"] for r in table if r["name"] == "vllm:prompt_tokens_total"] == [5, 6]
        assert [r["value"] for r in table if r["name"] == "vllm:num_requests_running"] == [0]

    run(case())


def test_the_scraper_ends_with_the_block_even_when_the_run_fails() -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm())) as server, httpx.AsyncClient() as client:
            with pytest.raises(RuntimeError, match="the run"):
                async with Scraper([Target(server.url)], clock=clock, client=client, interval_s=0.01):
                    raise RuntimeError("the run")
            asked = len(server.requests)
            await asyncio.sleep(0.05)
            assert len(server.requests) == asked
            assert not client.is_closed

    run(case())


def test_stopping_does_not_wait_for_a_page_on_its_way(tmp_path: Path) -> None:
    async def case() -> None:
        async with MetricsServer(Answer(vllm(), delay_s=20)) as server:
            metrics = runner(tmp_path, Target(server.url))
            await metrics.start()
            while not server.in_flight:
                await asyncio.sleep(0.005)
            async with asyncio.timeout(1):
                await metrics.stop()

    run(case())
