from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from harness.sweep.guarded import Guarded, tail
from harness.sweep.schema import Configuration, Server, Serving, Shape, Speculative
from harness.sweep.secret import find_secrets, is_secret_name, shown
from harness.sweep.server import fill, pool_from_log, pool_from_metrics
from results.errors import UserError
from tests.harness.sweep.sweeps import alive

PAGE = """\
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="1000",x="a,b=\\"c"} 1.0
vllm:cache_config_info{block_size="128",engine="1",num_gpu_blocks="500"} 1.0
"""


def test_the_kv_pool_is_blocks_times_block_size_over_all_engines() -> None:
    assert pool_from_metrics(PAGE) == 128 * 1500
    assert pool_from_metrics('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n') is None
    ranks = "".join(f'sglang:max_total_num_tokens{{tp_rank="{rank}"}} 85000.0\n' for rank in range(4))
    assert pool_from_metrics(ranks) == 85_000
    assert pool_from_metrics("# nothing\n") is None


def test_the_kv_pool_is_read_from_pages_of_real_servers(shared: Path) -> None:
    pools = {path.name: pool_from_metrics(path.read_text()) for path in (shared / "data" / "metrics").glob("*")}
    known = {name: tokens for name, tokens in pools.items() if tokens}
    assert any("vllm" in name for name in known), pools
    assert any("sglang" in name for name in known), pools


def test_the_kv_pool_is_read_from_logs() -> None:
    line = "(EngineCore_DP{} pid=7) INFO 12-01 [kv_cache_utils.py:2328] GPU KV cache size: 1,234,567 tokens\n"
    assert pool_from_log(line.format(0) + line.format(1)) == 2 * 1_234_567
    assert pool_from_log("TP0] max_total_num_tokens=85000, chunked\nTP1] max_total_num_tokens=85000,") == 85_000
    assert pool_from_log("nothing") is None


def test_commands_are_filled_from_metadata_variables_and_free_ports(tmp_path: Path) -> None:
    prefill, decode = Shape(workers=2, tp=4), Shape(tp=8)
    configuration = Configuration(
        name="a",
        serving=Serving(model="org/m", engine="vllm", tp=8, speculative=Speculative("mtp", 3)),
        server=Server(
            commands={
                "one": ["serve", "{model}", "--tp", "{tp}", "--port", "{port}", "--x", "{port2}", 8, 0.5],
                "two": ['{"n":{speculative_tokens},"k":"{kind}"}', "{unknown}"],
            },
            env={"FOLDER": "{folder}/x"},
            after=[["docker", "rm", "-f", "agentx-{port}"]],
        ),
        variables={"kind": "mtp"},
        extra={"one": ["--last", "{accelerators}"]},
    )
    filled = fill(configuration, tmp_path)
    one = filled.commands["one"]
    assert one[:4] == ["serve", "org/m", "--tp", "8"]
    assert one[5] == str(filled.port)
    assert one[7].isdecimal()
    assert one[7] != one[5]
    assert one[8:] == ["8", "0.5", "--last", "8"]
    assert filled.commands["two"] == ['{"n":3,"k":"mtp"}', "{unknown}"]
    assert filled.env == {"FOLDER": f"{tmp_path}/x"}
    assert filled.after == [["docker", "rm", "-f", f"agentx-{filled.port}"]]
    assert prefill.accelerators + decode.accelerators == 16


def test_a_guard_ends_a_child_that_ignores_term(tmp_path: Path) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with Guarded([sys.executable, "-c", script], tmp_path / "log", patience_s=0.3) as process:
        while not tail(tmp_path / "log"):
            sleep(0.01)
        pid, began = process.pid, monotonic()
    assert monotonic() - began < 5
    assert not alive(pid)


def test_a_guard_passes_signals_on_and_tells_the_exit_code(tmp_path: Path) -> None:
    with Guarded(["sleep", "60"], tmp_path / "log") as process:
        process.signal(2)
        assert process.wait(5) == 130
    with Guarded(["sh", "-c", "echo last words; exit 7"], tmp_path / "log2") as process:
        assert process.wait(5) == 7
    assert tail(tmp_path / "log2") == "last words"
    with pytest.raises(UserError, match="No such file"):
        Guarded(["/no/such/program"], tmp_path / "log3")


def test_a_secret_cut_between_two_writes_does_not_reach_the_log(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "for word in ('a hunter', '2hunter2 b\\nhunt', 'er2 c'):\n"
        "    sys.stdout.write(word); sys.stdout.flush(); time.sleep(0.05)\n"
    )
    with Guarded([sys.executable, "-c", script], tmp_path / "log", secrets=["hunter2"]) as process:
        process.wait(5)
    assert (tmp_path / "log").read_text() == "a ****** b\n*** c"


@pytest.mark.parametrize(
    "name", ["--api-key", "HF_TOKEN", "X-Auth-Token", "cookie", "DB_PASSWORD", "--key", "api_keys"]
)
def test_names_that_carry_credentials(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["--max-num-batched-tokens", "--enable-prompt-tokens", "--tokenizer", "max_tokens"])
def test_names_that_only_look_like_it(name: str) -> None:
    assert not is_secret_name(name)


def test_commands_are_shown_without_their_secrets() -> None:
    command = ["serve", "--api-key", "abc123", "--password=xyzt", "--host", "h"]
    found = find_secrets([command], {}, (), None)
    assert shown(command, found) == ["serve", "--api-key", "…", "--password=…", "--host", "h"]
