"""List prices: what ships, users' files and their errors, which of several counts, OpenRouter's answer."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from results.errors import UserError
from results.openrouter import list_price
from results.price_list import parse, pick, read_file, shipped

ROW = '{{ input = {0}, output = 2, source = "a", date = "{1}" }}'


def one(value: str = "1", when: str = "2026") -> str:
    return f"[m]\n\nprices = [{ROW.format(value, when)}]\n"


def test_what_ships_is_dated_and_sourced() -> None:
    assert {"zai", "minimax"} <= shipped().keys()
    for name, listed in shipped().items():
        for price in listed.prices:
            assert price.source, name
            assert price.since <= date(2026, 12, 4), name
    zai = pick(shipped(), "zai", "x").price
    assert (zai.input, zai.cached_input, zai.output, zai.licence_share) == (1.40, 0.26, 4.40, 0.10)
    minimax = pick(shipped(), "minimax", "x").price
    assert (minimax.input, minimax.cached_input, minimax.output, minimax.licence_share) == (0.30, 0.06, 1.20, 0.20)


def test_the_newest_counts_then_the_first_and_date_and_source_choose_another() -> None:
    pro = shipped()["deepseek-v4-pro"]
    newest, april, launch = pro.choose(), pro.choose(as_of=date(2026, 5, 30)), pro.choose(source="AT LAUNCH")
    assert newest is not None
    assert april is not None
    assert launch is not None
    assert (newest.input, april.input, launch.cached_input) == (0.435, 1.74, 0.145)
    assert pro.choose(as_of=date(2026, 1, 1)) is None
    text = f"[m]\nprices = [{ROW.format(3, '2026')}, {ROW.format(4, '2026-01-01')}]"
    tie = parse(text, "f")["m"].choose()
    assert tie is not None
    assert tie.input == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (one("nan"), "f.toml, line 3: m.prices[0].input: "),
        (one("inf"), "f.toml, line 3: m.prices[0].input: "),
        (one("-1"), "f.toml, line 3: m.prices[0].input: "),
        (one('"1"'), "f.toml, line 3: m.prices[0].input: "),
        (one("1", "2026-02-30"), "f.toml, line 3: m.prices[0]: "),
        (one("1", "soon"), "f.toml, line 3: m.prices[0].date: write a date"),
        (one().replace("output", "outputs"), "f.toml, line 3: m.prices[0].outputs: unknown key; known keys: input"),
        (one().replace(", output = 2", ""), "f.toml, line 3: m.prices[0]: the key output is missing"),
        ("[m]\nprices = []", "f.toml, line 2: m.prices: "),
        ("[M]\n", "f.toml, line 1: M: a name is"),
        ("[m\n", "f.toml, line 1: not TOML"),
        ("m = 1", "f.toml, line 1: m: "),
        ("", "f.toml: no price list there"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "f.toml")
    assert str(caught.value).startswith(said)


def test_zero_is_a_price_and_an_unlisted_cached_price_is_a_tenth(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(one("0"))
    assert pick(read_file(file), None, "x").price.prices.cached == 0
    file.write_text(one("2"))
    assert pick(read_file(file), None, "x").price.prices.cached == pytest.approx(0.2)


def test_of_several_lists_one_must_be_named() -> None:
    lists = parse(one() + one().replace("[m]", "[n]"), "f")
    with pytest.raises(UserError, match=r"several lists; choose one of: m, n"):
        pick(lists, None, "--prices f")
    with pytest.raises(UserError, match="no such list"):
        pick(lists, "o", "--prices f")
    with pytest.raises(UserError, match=r"there are: 2026 a"):
        pick(lists, "m", "--prices f", as_of=date(2025, 1, 1))


def answer(**pricing: Any) -> dict[str, Any]:
    return {"data": [{"id": "z-ai/glm-5"}, {"id": "a/m", "pricing": pricing}, 7]}


def test_openrouter_prices_are_strings_of_dollars_per_token() -> None:
    document = answer(prompt="0.0000006", completion="0.0000022", input_cache_read="0.00000011", request="0")
    price = list_price(document, "a/m", source="url", date="2026-12-04")
    assert (price.input, price.cached_input, price.output) == (0.6, 0.11, 2.2)
    assert (price.source, price.date, price.note) == ("url", "2026-12-04", None)
    free = list_price(answer(prompt="0", completion="0"), "a/m", source="url", date="2026")
    assert (free.input, free.output, free.cached_input, free.prices.cached) == (0, 0, None, 0)
    fee = list_price(answer(prompt="0", completion="0", request="0.01"), "a/m", source="url", date="2026")
    assert fee.note == "$0.01 for each request is left out"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "url: not a list of models"),
        ({"data": {}}, "url: not a list of models"),
        (answer() | {"data": [{"id": "a/n"}]}, "url: no model 'a/m'; closest: a/n"),
        (answer(prompt="-1", completion="-1"), "url: a/m: prompt '-1' is no fixed price"),
        (answer(prompt="nan", completion="1"), "url: a/m: prompt 'nan' is no fixed price"),
        (answer(prompt="free", completion="1"), "url: a/m: prompt 'free' is not a number"),
        (answer(prompt="1"), "url: a/m: no price of completion"),
        ({"data": [{"id": "a/m", "pricing": None}]}, "url: a/m: no price of prompt and completion"),
    ],
)
def test_openrouter_answers_that_hold_no_price(document: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        list_price(document, "a/m", source="url", date="2026")
    assert str(caught.value).startswith(said)
