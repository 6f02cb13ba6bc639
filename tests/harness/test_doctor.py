"""doctor: what it says of this machine and of an endpoint, and that it can say no."""

from __future__ import annotations

import json

import pytest

from harness.doctor import HONEST_CPU, Check, Load, check_endpoint, honest_streams
from results.errors import UserError
from tests.harness.test_run import agentx, hostile, simulated
from tests.raw_server import Request, Writer, normal_answer


def load(streams: int, cpu: float, delivered: float = 1.0) -> Load:
    return Load(streams, cpu, 0.01, 1.0, delivered)


def test_the_ceiling_is_where_a_worker_s_honest_share_is_used_up() -> None:
    assert honest_streams([load(100, 0.10), load(200, 0.35)]) == 400
    assert honest_streams([load(100, 0.10), load(800, 2 * HONEST_CPU)]) == 400
    assert honest_streams([load(100, 0.01)]) == 200  # never more than twice what was really seen
    assert honest_streams([load(100, 0.35), load(200, 0.5, delivered=0.4)]) == 200
    assert honest_streams([load(50, 0.3, delivered=0.0)]) == 0


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def look_at(url: str) -> dict[str, Check]:
    return by_name(check_endpoint(url, api_key=None, ca_file=None, insecure=False, ready_s=2))


def test_a_good_endpoint_has_nothing_to_mend() -> None:
    with simulated() as url:
        checks = look_at(url)
    assert all(check.ok is not False for check in checks.values())
    assert checks["cache block"].found == "64 tokens"
    assert "exact" in checks["prompt sizes"].found


def test_what_an_endpoint_lacks_is_said_with_the_remedy() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await normal_answer(request, writer)

    with hostile(script) as server:
        checks = look_at(server.url)
    assert checks["cache hits per request"].ok is False
    assert "--enable-prompt-tokens-details" in checks["cache hits per request"].remedy
    assert checks["metrics page"].ok is False


def test_an_endpoint_that_is_not_there() -> None:
    with pytest.raises(UserError, match="is not ready"):
        check_endpoint("http://127.0.0.1:1", api_key=None, ca_file=None, insecure=False, ready_s=0.1)


def test_the_machine_through_the_command_line() -> None:
    done = agentx("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode in (0, 1), done.stderr
    assert "after the server's write" in checks["arrival times"]["found"]
    assert "streams at 50 tokens/s" in checks["honest up to"]["found"]
    assert "of a core" in checks["50 streams at 20 ms"]["found"]
