"""What a cache tier gains, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from results.dataset import RunFiles
from results.errors import UserError
from results.offload import Assumed, offload_row, pair_up, tier_of


def a_run(
    name: str, hit: float | None = 0.5, total: float | None = 1000.0, *, load: int | None = 8, **manifest: Any
) -> RunFiles:
    summary = {
        "run_id": name,
        "scenario": "agentx",
        "concurrency": load,
        "cache": {"achieved": hit},
        "throughput": {
            "total_tok_s": total,
            "input_tok_s": total and 0.9 * total,
            "output_tok_s": total and 0.1 * total,
        },
        "intervals": {
            "cache.achieved": hit and [hit - 0.1, hit + 0.1],
            "throughput.total_tok_s": total and [0.9 * total, 1.1 * total],
        },
    }
    return RunFiles(Path(name), summary, manifest)


def sweep(kind: str, gigabytes: float | None = None, accelerators: int = 4) -> dict[str, Any]:
    offload = {"kind": kind, "backend": None if kind == "none" else "native", "gigabytes": gigabytes}
    return {"sweep": {"serving": {"kv_offload": offload, "accelerators": accelerators}}}


def test_gains_by_gb_by_hand() -> None:
    before, after = a_run("off", 0.5, 1000.0, **sweep("none")), a_run("on", 0.9, 1100.0, **sweep("dram", 200.0))
    row = offload_row(before, after, Assumed(usd_per_device_hour=3.0))
    assert row["tier"] == {"gb": 200.0, "kind": "dram", "origin": "serving.json"}
    assert row["hit_rate_points"] == pytest.approx({"without": 50, "with_tier": 90, "gain": 40, "significant": True})
    total = row["throughput"]["total_tok_s"]
    assert total == pytest.approx({"without": 1000, "with_tier": 1100, "gain": 100, "significant": False})
    assert row["throughput"]["output_tok_s"]["significant"] is None  # no interval of it
    assert row["usd_per_hour"] == pytest.approx(4 * 3.0 * 0.1)
    assert row["per_gb"] == pytest.approx(
        {"hit_rate_points": 0.2, "input_tok_s": 0.45, "output_tok_s": 0.05, "total_tok_s": 0.5, "usd_per_hour": 0.006}
    )
    assert row["usd_per_gb_year"] == pytest.approx(0.006 * 8760)
    assert list(row["reasons"]) == ["tier_hit_share"]
    assert offload_row(before, after, Assumed(devices=8, usd_per_device_hour=3.0))["usd_per_hour"] == pytest.approx(2.4)


def test_a_tier_that_costs_throughput_is_a_loss() -> None:
    row = offload_row(a_run("off", 0.5, 1000.0), a_run("on", 0.5, 800.0), Assumed(100.0, 2, 5.0))
    assert row["usd_per_hour"] == pytest.approx(-2.0)
    assert row["per_gb"]["total_tok_s"] == pytest.approx(-2.0)
    assert row["hit_rate_points"]["gain"] == 0.0


@pytest.mark.parametrize(
    ("manifest", "gb", "kind"),
    [
        (sweep("nvme", 4000.0), 4000.0, "nvme"),
        (sweep("none"), 0.0, "none"),
        ({"serving": {"kv_offload_gib": {"value": 100, "origin": "seen"}}}, 107.3741824, None),
        (sweep("dram") | {"serving": {"kv_offload_gib": {"value": 1, "origin": "stated"}}}, 1.073741824, "dram"),
        (sweep("dram"), None, "dram"),
        ({"serving": {"kv_offload_gib": {"value": "much"}}}, None, None),
        ({}, None, None),
    ],
)
def test_where_the_size_comes_from(manifest: dict[str, Any], gb: float | None, kind: str | None) -> None:
    tier = tier_of(manifest)
    assert tier.gb == (None if gb is None else pytest.approx(gb))
    assert tier.kind == kind


def test_a_larger_tier_counts_by_what_it_has_more() -> None:
    small, large = a_run("s", **sweep("dram", 50.0)), a_run("l", 0.6, **sweep("dram", 250.0))
    assert offload_row(small, large, Assumed())["per_gb"]["hit_rate_points"] == pytest.approx(10 / 200)
    swapped = offload_row(large, small, Assumed())
    assert swapped["added_gb"] is swapped["per_gb"]["hit_rate_points"] is None
    assert "swapped?" in swapped["reasons"]["per_gb"]


def test_what_is_not_known_is_null_with_its_reason() -> None:
    row = offload_row(a_run("off", None, None), a_run("on", None, 5.0), Assumed())
    assert row["hit_rate_points"]["gain"] is row["usd_per_hour"] is row["usd_per_gb_year"] is None
    assert set(row["per_gb"].values()) == {None}
    wanted = {
        "per_gb",
        "hit_rate_points",
        "input_tok_s",
        "output_tok_s",
        "total_tok_s",
        "usd_per_hour",
        "tier_hit_share",
    }
    assert set(row["reasons"]) == wanted
    assert "--price" in offload_row(a_run("off"), a_run("on"), Assumed(1.0, 8))["reasons"]["usd_per_hour"]
    assert "--gpus" in offload_row(a_run("off"), a_run("on"), Assumed(1.0, None, 2.0))["reasons"]["usd_per_hour"]
    after = a_run("on")
    after.summary["cache"] |= {"host": 0.25, "external": None}
    assert offload_row(a_run("off"), after, Assumed())["tier_hit_share"] == 0.25


def test_runs_pair_by_scenario_and_load() -> None:
    pairs, notes = pair_up(
        [a_run("on16", load=16), a_run("on8"), a_run("on32", load=32)], [a_run("off8"), a_run("off16", load=16)]
    )
    assert [(before.run_id, after.run_id) for before, after in pairs] == [("off8", "on8"), ("off16", "on16")]
    assert notes == ["on32: the other side has no run of its scenario and load"]
    with pytest.raises(UserError, match="run both at the same load"):
        pair_up([a_run("on", load=1)], [a_run("off", load=2)])
    with pytest.raises(UserError, match="a and b: several runs with the tier"):
        pair_up([a_run("a"), a_run("b")], [a_run("off")])
    with pytest.raises(UserError, match="--gb 0"):
        Assumed(gb=0.0)
