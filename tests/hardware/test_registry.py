"""The registry: every published value of the three dated tables, the rule of choice, users' files and their errors."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest

import hardware
from hardware.registry import KEYS, TIERS, Registry, load_registry
from hardware.schema import parse
from results.errors import UserError

DATA = Path(hardware.__file__).parent / "data"
REQUIRED = {
    *("h100", "h200", "b200", "b300", "gb200-nvl72", "gb300-nvl72", "vr-nvl72", "vr-cpx", "rtx-pro-6000"),
    *("mi300x", "mi325x", "mi355x", "tpu-v7", "tpu-v8", "trainium2", "trainium3", "cpu"),
}
HYPERSCALER, NEOCLOUD, RENTAL = (f"usd_device_hour.{tier}" for tier in ("hyperscaler", "neocloud", "rental-3y"))

# The published tables, as they were read: kW, then the tiers; None where the table has no such cell.
APRIL_2026 = """
h100         1.73  1.30   1.69   1.30
h200         1.73  1.41   1.74   1.60
b200         2.17  1.95   2.34   2.90
b300         2.17  2.34   2.808  3.48
gb200-nvl72  2.10  2.21   2.75   3.30
gb300-nvl72  2.10  2.652  3.30   3.96
mi300x       1.79  1.12   1.40   1.55
mi325x       2.18  1.28   1.59   1.80
mi355x       2.65  1.48   1.90   2.10
"""
MID_2026 = """
h100         1.37  1.17  1.55  1.78
h200         1.37  1.22  1.59  2.05
b200         1.71  1.73  2.07  2.6
b300         1.9   2.26  2.52  3
gb200-nvl72  1.87  -     -     -
gb300-nvl72  2.12  -     -     -
mi300x       1.39  -     -     -
"""
JULY_2026 = """
vr-nvl72      1800  3.3    3.61  3.61
vr-nvl72      2300  -      -     8.5
h100          700   1.37   1.17  2
h200          700   1.37   1.22  2.9
b200          1000  1.71   1.73  3.7
b300          1200  1.9    2.26  4.25
gb200-nvl72   1200  1.87   1.86  4
gb300-nvl72   1400  2.12   2.31  5
mi300x        750   1.39   0.95  1.3
mi325x        1000  1.69   1.1   1.6
mi355x        1400  2.09   1.5   2.9
rtx-pro-6000  600   0.975  0.68  0.52
tpu-v7        980   1.207  1.21  2
jalapeno      700   1.125  1.47  1.79
jalapeno      -     -      1.27  -
"""
SPECS_APRIL_2026 = """
h100         80   3.35  -      1979  989   450
h200         141  4.8   -      1979  989   450
b200         180  8     9000   4500  2250  900
b300         268  8     13500  4500  2250  900
gb200-nvl72  192  8     10000  5000  2500  900
gb300-nvl72  288  8     15000  5000  2500  900
mi300x       192  5.3   -      2615  1307  448
mi325x       256  6     -      2615  1307  448
mi355x       288  8     10066  5033  2516  576
"""


def cells() -> list[tuple[str, str, float, str]]:
    """Name, key, value and date of every published cell."""
    giga, tera = 1e9, 1e12
    tables: list[tuple[str, str, list[tuple[str, float]]]] = [
        (APRIL_2026, "2026-04", [("kw_all_in", 1), (HYPERSCALER, 1), (NEOCLOUD, 1), (RENTAL, 1)]),
        (MID_2026, "2026-06", [("kw_all_in", 1), (HYPERSCALER, 1), (NEOCLOUD, 1), (RENTAL, 1)]),
        (JULY_2026, "2026-07", [("tdp_w", 1), ("kw_all_in", 1), (HYPERSCALER, 1), (RENTAL, 1)]),
        (
            SPECS_APRIL_2026,
            "2026-04",
            [
                ("hbm_bytes", giga),
                ("hbm_bytes_s", tera),
                ("fp4_flop_s", tera),
                ("fp8_flop_s", tera),
                ("bf16_flop_s", tera),
                ("scale_up_bytes_s", giga),
            ],
        ),
    ]
    return [
        (name, key, float(cell) * scale, dated)
        for table, dated, columns in tables
        for name, *row in (line.split() for line in table.strip().splitlines())
        for cell, (key, scale) in zip(row, columns, strict=True)
        if cell != "-"
    ]


@pytest.mark.parametrize(("name", "key", "value", "dated"), cells())
def test_every_published_value_is_there_with_its_date(name: str, key: str, value: float, dated: str) -> None:
    facts = load_registry().get(name).facts(key)
    assert any(fact.value == pytest.approx(value, rel=1e-12) and fact.date == dated for fact in facts), facts


def test_the_tables_are_as_long_as_published() -> None:
    assert len(cells()) == 9 * 4 + (4 * 4 + 3) + (13 * 4 + 2 + 1) + (9 * 6 - 4)


def test_the_shipped_files_are_those_asked_for_one_accelerator_each() -> None:
    registry = load_registry()
    assert {accelerator.name for accelerator in registry} >= REQUIRED
    for path in DATA.glob("*.toml"):
        assert list(tomllib.loads(path.read_text())) == [path.stem]


def test_every_value_has_a_source_and_every_gap_a_reason() -> None:
    for accelerator in load_registry():
        for key in KEYS:
            facts = accelerator.facts(key)
            reason = accelerator.why_unknown(key)
            assert bool(facts) != bool(reason)
            assert reason != "not in the registry's sources", f"{accelerator.name}.{key} is not mentioned in its file"
            assert all(fact.source and fact.since <= date(2026, 12, 1) for fact in facts)


def test_no_two_accelerators_share_a_name_or_a_pci_id() -> None:
    registry = load_registry()
    for accelerator in registry:
        for spelling in (accelerator.name, accelerator.label, *accelerator.aliases):
            assert registry.get(spelling) is accelerator, spelling
        for pci_id in accelerator.pci_ids:
            assert registry.find_pci(pci_id) is accelerator, pci_id


def test_values_are_plain_numbers_in_base_units() -> None:
    gpu = load_registry().get("gb300-nvl72")
    assert (gpu.hbm_bytes, gpu.hbm_bytes_s, gpu.scale_up_bytes_s, gpu.scale_up_devices) == (288e9, 8e12, 900e9, 72)
    assert (gpu.tdp_w, gpu.kw_all_in, gpu.flop_s("fp4")) == (1400, 2.12, 15e15)
    assert gpu.host_memory_bytes == pytest.approx(17e12 / 72)
    assert load_registry().get("h100").flop_s("fp4") is None
    assert "no FP4" in str(load_registry().get("h100").why_unknown("fp4_flop_s"))
    assert load_registry().get("tpu-v7").price("internal") == 1.03
    assert load_registry().get("tpu-v7").price("external") == 1.21


def test_rubin_power_is_unsettled_and_both_values_stand() -> None:
    rubin = load_registry().get("vr200")
    assert [fact.value for fact in rubin.facts("tdp_w")] == [1800, 2300]
    assert [fact.value for fact in rubin.facts(RENTAL)] == [8.5, 3.61]
    # What the published profit example uses: GPU-hours of a GW-year times the hyperscaler's cost, in billions.
    kw, price = rubin.kw_all_in, rubin.price("hyperscaler")
    assert kw is not None
    assert price is not None
    assert 1e6 / kw * 8760 * price / 1e9 == pytest.approx(9.58, abs=0.005)


def test_the_newest_value_is_used_unless_an_earlier_day_is_asked_for() -> None:
    h200 = load_registry().get("h200")
    assert h200.price("rental-3y") == 2.9
    assert h200.price("rental-3y", as_of=date(2026, 6, 30)) == 2.05
    assert h200.price("rental-3y", as_of=date(2026, 4, 1)) == 1.60
    assert h200.price("rental-3y", as_of=date(2026, 3, 31)) is None
    assert h200.price("on-demand") is None


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("b200", "b200"),
        ("B200-SXM", "b200"),
        ("NVIDIA B200", "b200"),
        ("nvidia  h100 80GB HBM3", "h100"),
        ("GB200", "gb200-nvl72"),
        ("NVIDIA GB300", "gb300-nvl72"),
        ("AMD Instinct MI355X", "mi355x"),
        ("MI300X", "mi300x"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("tpu7x", "tpu-v7"),
        ("trn3", "trainium3"),
        ("VR200", "vr-nvl72"),
    ],
)
def test_names_as_people_and_drivers_write_them(spelling: str, name: str) -> None:
    assert load_registry().get(spelling).name == name


@pytest.mark.parametrize("other", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA H100 NVL", "NVIDIA B100", "MI300A"])
def test_a_relative_of_an_accelerator_is_not_taken_for_it(other: str) -> None:
    with pytest.raises(UserError, match="no accelerator"):
        load_registry().get(other)


def test_an_unknown_name_tier_key_or_precision_is_refused_with_what_there_is() -> None:
    registry = load_registry()
    with pytest.raises(UserError, match="'B20' in the registry; closest: b200"):
        registry.get("B20")
    with pytest.raises(UserError, match="price tier 'spot'; choose one of: hyperscaler, neocloud, rental-3y"):
        registry.get("b200").price("spot")
    with pytest.raises(UserError, match="closest: tdp_w"):
        registry.get("b200").fact("tdp")
    with pytest.raises(UserError, match="precision 'fp6'"):
        registry.get("b200").flop_s("fp6")


def test_tiers_and_keys_are_the_documented_ones() -> None:
    assert TIERS == ("hyperscaler", "neocloud", "rental-3y", "on-demand", "internal", "external")
    documented = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text()
    assert all(key.removeprefix("usd_device_hour.") in documented for key in KEYS)


def user_file(folder: Path, text: str) -> Path:
    path = folder / "ours.toml"
    path.write_text(text)
    return path


def test_a_user_s_value_beats_ours_even_when_older_and_ours_stay_beside_it(tmp_path: Path) -> None:
    path = user_file(
        tmp_path,
        """
[b200]
aliases = ["rack 12"]
kw_all_in = [{ value = 1.5, source = "meter", date = 2025-01-02 }]
fp4_flop_s = { unknown = "not trusted here" }

[b200.usd_device_hour]
on-demand = [{ value = 0, source = "ours", date = "2026-10" }]
""",
    )
    gpu = load_registry(path).get("rack 12")
    assert gpu.kw_all_in == 1.5
    assert [fact.value for fact in gpu.facts("kw_all_in")] == [1.5, 1.71, 1.71, 2.17]
    assert gpu.price("on-demand") == 0
    assert gpu.flop_s("fp4") is None
    assert gpu.why_unknown("fp4_flop_s") == "not trusted here"
    assert gpu.tdp_w == 1000
    assert gpu.origins == ("b200.toml", str(path))
    assert load_registry().get("b200").kw_all_in == 1.71  # the shipped registry is untouched


def test_a_user_s_own_accelerator(tmp_path: Path) -> None:
    text = (
        '[mine]\nlabel = "Mine"\nvendor = "Us"\nkind = "asic"\ntdp_w = [{ value = 75, source = "us", date = "2026" }]\n'
    )
    registry = load_registry(user_file(tmp_path, text))
    assert registry.get("MINE").tdp_w == 75
    assert registry.get("mine").hbm_bytes is None
    assert registry.get("mine").why_unknown("hbm_bytes")
    assert len(registry) == len(load_registry()) + 1


GOOD = 'value = 1, source = "x", date = "2026"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n[b200]\ntdp = 3\n", r"line 3: b200\.tdp: unknown key; known keys: label, vendor"),
        (
            '[b200]\nkw_all_in = [\n  { value = 0, source = "x", date = "2026" },\n]',
            r"line 3: b200\.kw_all_in\[0\]\.value",
        ),
        (
            f'[b200]\ntdp_w = [{{ {GOOD} }},\n{{ value = "1", source = "x", date = "2026" }}]',
            r"line 3: b200\.tdp_w\[1\]\.val",
        ),
        ('[b200]\ntdp_w = [{ value = nan, source = "x", date = "2026" }]', r"line 2: b200\.tdp_w\[0\]\.value"),
        ('[b200]\ntdp_w = [{ value = inf, source = "x", date = "2026" }]', r"line 2: b200\.tdp_w\[0\]\.value"),
        ('[b200]\ntdp_w = [{ value = true, source = "x", date = "2026" }]', r"line 2: .* got `bool`"),
        ('[b200]\ntdp_w = [{ value = 1, date = "2026" }]', r"line 2: b200\.tdp_w\[0\]: the key source is missing"),
        ('[b200]\ntdp_w = [{ value = 1, source = "", date = "2026" }]', r"line 2: b200\.tdp_w\[0\]\.source"),
        (
            '[b200]\ntdp_w = [{ value = 1, source = "x", date = "June" }]',
            r"line 2: b200\.tdp_w\[0\]\.date: write a date as 2026, 2026-07 or",
        ),
        ('[b200]\ntdp_w = [{ value = 1, source = "x", date = "2026-02-30" }]', r"line 2: b200\.tdp_w\[0\].* day"),
        ("[b200]\ntdp_w = []", r"line 2: b200\.tdp_w: .*length >= 1"),
        ("[b200]\ntdp_w = 700", r"line 2: b200\.tdp_w: write a list of"),
        (f"[b200]\ntdp_w = {{ {GOOD} }}", r"tdp_w\.value: unknown key; known keys: unknown \(values stand in a list"),
        (
            "[b200]\ntdp_w = [{ value = 1" + 400 * "0" + ', source = "x", date = "2026" }]',
            r"tdp_w\[0\]\.value: .*range",
        ),
        ("[b200]\na = " + 5000 * "[" + 5000 * "]", r"line 2: not TOML: .*recursion"),
        ("[b200]\ntdp_w = { unkown = 'x' }", r"line 2: b200\.tdp_w\.unkown: unknown key"),
        (
            f"[b200]\ntdp_w = [{{ {GOOD}, unit = 'kW' }}]",
            r"line 2: b200\.tdp_w\[0\]\.unit: unknown key; known keys: value",
        ),
        (
            f"[b200]\n[b200.usd_device_hour]\nspot = [{{ {GOOD} }}]",
            r"line 3: b200\.usd_device_hour\.spot: unknown key; known keys: hyperscaler, neocloud, rental-3y",
        ),
        (
            '[b200.usd_device_hour]\nrental-3y = [{ value = -1, source = "x", date = "2026" }]',
            r"line 2: b200\.usd_device_hour\.rental-3y\[0\]\.value",
        ),
        ('[b200]\npci_ids = [\n"10DE:2901"]', r"line 3: b200\.pci_ids\[0\]: write vendor:device as 10de:2901"),
        ('[b200]\nkind = "fpga"', r"line 2: b200\.kind"),
        ("b200 = 3", r"line 1: b200"),
        ('[" b "]', r"line 1: .*a name is of"),
        ("[b200]\nx = ", r"line 2: not TOML"),
        ("[b200]\nx = 1\nx = 2", r"line 3: not TOML"),
        ("[new]\nlabel = 'New'", r"line 1: new: a new accelerator also needs vendor and kind"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_key(text: str, message: str, tmp_path: Path) -> None:
    path = user_file(tmp_path, text)
    with pytest.raises(UserError, match=message) as refusal:
        load_registry(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml: No such file"):
        load_registry(tmp_path / "none.toml")
    with pytest.raises(UserError, match="directory"):
        load_registry(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"[b200]\nlabel = '\xe9'\n")
    with pytest.raises(UserError, match="not UTF-8"):
        load_registry(tmp_path / "latin.toml")


def test_the_example_of_the_documentation_is_valid() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text()
    example = documented.partition("```toml\n")[2].partition("```")[0]
    assert parse(example, "docs/hardware.md", known={"b200"})["b200"].kw_all_in


def test_iteration_and_lookup_agree() -> None:
    registry = load_registry()
    assert isinstance(registry, Registry)
    assert len(list(registry)) == len(registry) >= len(REQUIRED)
