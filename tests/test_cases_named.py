"""Every public failure of the two lists has a test that bears its name: none is forgotten, none is dropped silently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ELSEWHERE = {
    "P88": "running totals are a thing of transcripts: no importer of them is built",
}
"""Cases of these kinds without a test of their own, and what they wait for."""
LAST_KIND, LAST_PUBLIC = "K", 20
"""Kind L is the capture proxy's; of the second list C21 and later are tested under the names of what they break."""
CAPITAL = re.compile(r"(?<![A-Za-z0-9])[PC]\d{2,3}(?![0-9])")
LEADING = re.compile(r"(?:def test_|\")((?:[pc]\d{2,3}[_-])+)")
"""`test_c11_p37_...` and the parameter "p70-too-few"; `ttft_p95` is a percentile."""


def listed(design: Path) -> set[str]:
    """Ids of kinds A to K, and C01 to C20."""
    for name in ("CASES-FULL.md", "CASES.md"):
        if not (design / name).is_file():
            pytest.skip(f"no {name} in {design}")
    found, kind = set(), "?"
    for line in (design / "CASES-FULL.md").read_text().splitlines():
        if heading := re.match(r"## ([A-Z])\. ", line):
            kind = heading[1]
        elif (case := re.match(r"### (P\d+) ", line)) and kind <= LAST_KIND:
            found.add(case[1])
    for line in (design / "CASES.md").read_text().splitlines():
        if (case := re.match(r"\| (C\d+) \|", line)) and int(case[1][1:]) <= LAST_PUBLIC:
            found.add(case[1])
    return found


def named() -> set[str]:
    """Ids at the head of test names and of parameters, and in capitals in what tests say of themselves."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        if path == Path(__file__):
            continue
        text = path.read_text()
        found |= set(CAPITAL.findall(text))
        found |= {name.upper() for names in LEADING.findall(text) for name in re.findall(r"[pc]\d+", names)}
    return found


def test_every_listed_case_has_a_test_with_its_name(shared: Path) -> None:
    cases = listed(shared / "design")
    assert len(cases) > 100
    assert cases - named() - set(ELSEWHERE) == set()


def test_what_is_left_out_is_on_the_list_and_has_no_test(shared: Path) -> None:
    assert set(ELSEWHERE) <= listed(shared / "design")
    assert not set(ELSEWHERE) & named(), "it has a test now: take it from the list of those without"
