from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from collectors import exposition
from collectors.exposition import NotMetricsError, Page, PageParser

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def parse(text: str, content_type: str = "") -> Page:
    return PageParser().parse(text.encode(), content_type)


def values(page: Page) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, s.labels): float(v) for s, v in zip(page.series, page.values, strict=True)}


def test_recorded_pages_equal_the_library(shared: Path) -> None:
    pages = sorted((shared / "data" / "metrics").glob("*.txt"))
    assert pages
    for path in pages:
        text = path.read_text()
        page = parse(text)
        families = list(text_string_to_metric_families(text))
        theirs = {(s.name, tuple(sorted(s.labels.items()))): float(s.value) for f in families for s in f.samples}
        ours = values(page)
        # The library adds _total to counters that lack it; we keep the page's own names.
        theirs = {k if k in ours else (k[0].removesuffix("_total"), k[1]): v for k, v in theirs.items()}
        assert ours.keys() == theirs.keys(), path.name
        assert all(v == ours[k] or not math.isfinite(v) for k, v in theirs.items()), path.name
        assert page.bad_lines == page.dropped == page.duplicates == 0
        assert page.nonfinite == sum(not math.isfinite(v) for v in theirs.values())


def test_both_formats_of_the_library_read_the_same() -> None:
    generate_openmetrics: Any = openmetrics.generate_latest  # without types in the library
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ["path"], registry=registry).labels('a"b\\c\n}').inc(3, exemplar={"id": "x # {"})
    Counter("bare", "Bare.", registry=registry).inc(4, exemplar={"id": "y"})
    Gauge("depth", "Depth.", registry=registry).set(-1.5)
    histogram = Histogram("wait_seconds", "Wait.", buckets=(0.1, 1.0), registry=registry)
    histogram.observe(0.5, exemplar={"trace": 'q"}'})
    plain, open_ = (
        parse(generate_latest(registry).decode()),
        parse(generate_openmetrics(registry).decode(), OPENMETRICS),
    )
    assert plain.bad_lines == open_.bad_lines == 0
    assert values(plain) == values(open_)
    key = ("requests_total", (("path", 'a"b\\c\n}'),))
    assert values(plain)[key] == values(open_)[key] == 3
    kinds = {s.name: s.kind for s in open_.series}
    assert kinds["requests_total"] == "counter"
    assert kinds["wait_seconds_bucket"] == kinds["wait_seconds_sum"] == "histogram"
    assert kinds["requests_created"] == "created"
    assert not open_.truncated
    assert parse("# TYPE a gauge\na 1\n", OPENMETRICS).truncated


def test_colons_written_as_underscores_keep_their_kind() -> None:
    """What real SGLang answers when asked for OpenMetrics: the TYPE lines keep the colon, the samples do not."""
    page = parse(
        "# TYPE sglang:num_running_reqs gauge\nsglang_num_running_reqs 3\n"
        "# TYPE sglang:prompt_tokens counter\nsglang_prompt_tokens_total 5\n# EOF\n",
        OPENMETRICS + "; escaping=underscores",
    )
    assert [series.kind for series in page.series] == ["gauge", "counter"]


def test_a_histogram_named_like_a_counter_is_none(shared: Path) -> None:
    page = parse((shared / "data" / "metrics" / "vllm-0.32.0.txt").read_text())
    kinds = {s.kind for s in page.series if s.name.startswith("vllm:iteration_tokens_total")}
    assert kinds == {"histogram", "created"}


def test_p106_one_nan_or_inf_costs_itself_only() -> None:
    lines = [f'm{{i="{i}"}} {i}' for i in range(50)]
    page = parse("\n".join([*lines, "bad_gauge NaN", "worse_gauge +Inf", "# TYPE h histogram", "h_sum 0", "h_count 0"]))
    assert len(page.series) == 54
    assert page.nonfinite == 2
    known = [v for v in page.values if not math.isnan(v)]
    assert sum(known) == sum(range(50))


@pytest.mark.parametrize(
    "broken",
    [
        "no_value",
        'open{a="b 1',
        "x{a=b} 1",
        "a 1 2 3",
        "a x",
        "9name 1",
        'dup{a="1",a="2"} 1',
        "a 1_000",
        "{} 5",
        "\x00\xff",
    ],
)
def test_one_broken_line_costs_itself_only(broken: str) -> None:
    page = parse(f"# TYPE good counter\ngood 1\n{broken}\ngood_too 2\n")
    assert [s.name for s in page.series] == ["good", "good_too"]
    assert page.bad_lines == 1
    assert page.first_bad is not None


def test_timestamps_and_tabs_are_read() -> None:
    page = parse('a{b="c"} 1 1395066363000\nd\t2\ne   3   -5\n')
    assert list(page.values) == [1, 2, 3]
    assert page.bad_lines == 0


def test_the_first_of_two_equal_series_counts() -> None:
    page = parse('a{x="1",y="2"} 1\na{y="2",x="1"} 7\n')
    assert list(page.values) == [1]
    assert page.duplicates == 1


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [("<!doctype html><p>", "text/html", "HTML"), ("[]", "application/json", "JSON"), ('{"a": 1}', "", "JSON")],
)
def test_p108_another_kind_of_page_is_named(body: str, content_type: str, says: str) -> None:
    with pytest.raises(NotMetricsError, match=says):
        parse(body, content_type)


def test_an_empty_page_is_a_page() -> None:
    assert parse("").series == parse("# HELP a b\n# TYPE a counter\n").series == []


def test_label_explosion_is_cut_and_counted_and_spares_other_names() -> None:
    parser = PageParser(max_series_per_name=100, max_series=150)
    wild = "".join(f'per_request{{id="{i}"}} 1\n' for i in range(1_000))
    page = parser.parse((wild + "calm 5\n").encode())
    assert len(page.series) == 101
    assert page.dropped == 900
    assert values(page)["calm", ()] == 5
    later = "".join(f'per_request{{id="{i}"}} 2\n' for i in range(900, 2_000))
    again = parser.parse((later + "calm 6\n").encode())
    assert again.dropped == 1_100
    assert values(again) == {("calm", ()): 6}


def test_a_page_of_20_mb_takes_a_bounded_time() -> None:
    line = 'http_request_duration_seconds_bucket{handler="/v1/chat/completions/%06d",method="POST",le="%s"} %d\n'
    body = "".join(line % (i // 20, i % 20, i) for i in range(220_000)).encode()
    assert len(body) > 20_000_000
    parser = PageParser()
    began = perf_counter()
    page = parser.parse(body)
    first = perf_counter() - began
    parser.parse(body)
    again = perf_counter() - began - first
    assert len(page.series) == exposition.MAX_SERIES_PER_NAME
    assert page.dropped == 220_000 - exposition.MAX_SERIES_PER_NAME
    assert first < 5
    assert again < 2


def test_a_page_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_PAGE_BYTES", 2**20)
    with pytest.raises(NotMetricsError, match="more than 1 MiB"):
        parse("a 1\n" * 300_000)


LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), LABEL, max_size=4), st.floats())
def test_whatever_labels_hold_is_read_back(labels: dict[str, str], value: float) -> None:
    labels = {f"l{name}": text for name, text in labels.items()}
    registry = CollectorRegistry()
    gauge = Gauge("g", "", list(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    page = PageParser().parse(generate_latest(registry))
    assert page.series[0].labels == tuple(sorted(labels.items()))
    assert page.bad_lines == 0
    assert page.nonfinite == (not math.isfinite(value))


@given(st.text(max_size=200))
def test_no_text_raises_anything_but_what_it_says(text: str) -> None:
    try:
        page = parse(text)
    except NotMetricsError:
        return
    assert len(page.series) == len(page.values)
