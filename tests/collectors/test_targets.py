from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from collectors.targets import Discovered, candidates, discover, explicit, find_targets, read_targets
from results.errors import UserError
from tests.collectors.pages import Answer, MetricsServer, vllm


async def found_by(pages: dict[str, Answer], path: str = "/v1") -> tuple[Discovered, MetricsServer]:
    server = MetricsServer(lambda asked: pages.get(asked, Answer("no", "404 Not Found")))
    async with server, httpx.AsyncClient() as client:
        found = await discover(f"http://127.0.0.1:{server.port}{path}", client, headers={"authorization": "Bearer k"})
    return found, server


@pytest.mark.parametrize(
    ("endpoint", "first"),
    [
        ("http://h:8000", "http://h:8000/metrics"),
        ("http://h:8000/v1", "http://h:8000/metrics"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/metrics"),
        ("https://h/team/v1/", "https://h/team/metrics"),
        ("h:8000", "http://h:8000/metrics"),
    ],
)
def test_the_page_is_looked_for_beside_v1(endpoint: str, first: str) -> None:
    assert candidates(endpoint)[0] == first


async def _metrics() -> None:
    found, server = await found_by({"/metrics": Answer(vllm(5))})
    assert [t.url for t in found.targets] == [server.url]
    assert found.targets[0].trusted
    assert server.headers[0]["authorization"] == "Bearer k"


async def _trtllm() -> None:
    json_page = Answer("[]", content_type="application/json")
    found, _ = await found_by({"/metrics": json_page, "/prometheus/metrics": Answer("trtllm_x 1\n")})
    assert found.targets[0].url.endswith("/prometheus/metrics")
    assert "JSON" in found.notes[0]


async def _empty() -> None:
    found, _ = await found_by({"/metrics": Answer("")})
    assert len(found.targets) == 1
    assert "first request" in found.notes[-1]


async def _off() -> None:
    found, _ = await found_by({})
    assert not found.targets
    assert "404" in found.notes[0]
    assert "--enable-metrics" in found.notes[-1]
    assert "return_perf_metrics" in found.notes[-1]


async def _html() -> None:
    found, _ = await found_by({"/metrics": Answer("<html></html>", content_type="text/html")})
    assert not found.targets
    assert "HTML" in found.notes[0]


async def _locked() -> None:
    found, _ = await found_by({"/metrics": Answer("", "401 Unauthorized")})
    assert "credentials" in found.notes[0]


async def _nobody() -> None:
    async with httpx.AsyncClient() as client:
        found = await discover("http://127.0.0.1:9/v1", client)
    assert not found.targets
    assert "no connection" in found.notes[0]


@pytest.mark.parametrize("case", [_metrics, _trtllm, _empty, _off, _html, _locked, _nobody])
def test_p108_discovery_says_what_it_found_and_why_not(case: object) -> None:
    asyncio.run(case())  # type: ignore[operator]


async def _given() -> None:
    async with MetricsServer(Answer(vllm(5))) as server, httpx.AsyncClient() as client:
        endpoint = f"http://127.0.0.1:{server.port}/v1"
        found = await find_targets(endpoint, client, urls=["prefill=http://p:1/metrics", f"worker={server.url}"])
        assert [(t.url, t.role) for t in found.targets] == [("http://p:1/metrics", "prefill"), (server.url, "worker")]
        found = await find_targets(endpoint, client, urls=["http://p:1/metrics"])
        assert [t.url for t in found.targets] == ["http://p:1/metrics", server.url]
        found = await find_targets("http://127.0.0.1:9", client, urls=["http://p:1/metrics"])
        assert (len(found.targets), found.notes) == (1, [])


def test_what_is_given_comes_first_and_once() -> None:
    asyncio.run(_given())


def test_explicit_targets_may_state_a_role_and_only_the_endpoints_origin_is_trusted() -> None:
    urls = ["http://h:8000/metrics", "prefill=http://p:9000/metrics?a=b"]
    one, two = explicit(urls, endpoint_url="http://h:8000/v1")
    assert (one.url, one.role, one.trusted) == (urls[0], None, True)
    assert (two.url, two.role, two.trusted) == ("http://p:9000/metrics?a=b", "prefill", False)
    assert explicit(["http://h/metrics"], endpoint_url="http://h:80")[0].trusted


@pytest.mark.parametrize("bad", ["h:8000/metrics", "ftp://h/metrics", "http://h:port/", "http://"])
def test_an_explicit_target_that_is_no_url_is_named(bad: str) -> None:
    with pytest.raises(UserError, match="--metrics-url"):
        explicit([bad])


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_file_of_targets_in_prometheus_format(tmp_path: Path, suffix: str) -> None:
    groups = [
        {"targets": ["a:1", "http://b:2/x"], "labels": {"role": "decode", "rack": "r1", "__metrics_path__": "/m"}},
        {"targets": ["c:3"]},
    ]
    path = tmp_path / f"targets.{suffix}"
    path.write_text(json.dumps(groups))  # JSON is YAML too
    found = read_targets(path)
    assert [t.url for t in found] == ["http://a:1/m", "http://b:2/x", "http://c:3/metrics"]
    assert found[0].role == "decode"
    assert found[0].labels == {"role": "decode", "rack": "r1"}
    assert found[2].role is None
    assert not any(t.trusted for t in found)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.json", "{", "t.json"),
        ("t.json", "{}", "not a list"),
        ("t.json", '[{"labels": {}}]', "entry 0"),
        ("t.json", '[{"targets": ["a:1"]}, {"targets": ["a:1"], "labels": {"role": "boss"}}]', "entry 1: role 'boss'"),
        ("t.json", '[{"targets": ["a:port"]}]', "entry 0"),
        ("t.yaml", "a: [", "t.yaml"),
        ("none.json", "", "none.json"),
    ],
)
def test_a_bad_file_of_targets_is_named_with_its_entry(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match="--metrics-targets") as error:
        read_targets(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
