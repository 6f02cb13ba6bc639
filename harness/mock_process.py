"""The simulated endpoint as a child process of one run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from results.errors import EXIT_ENDPOINT, UserError


class MockProcess:
    """Starts `harness.mock_server` and ends it with the run."""

    @staticmethod
    @contextmanager
    def maybe(profile: str | None, options: tuple[str, ...] = ()) -> Iterator[str | None]:
        """URL of a fresh simulated endpoint, or None when no `profile` is asked for."""
        if profile is None:
            yield None
            return
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.mock_server", "--profile", profile, "--port", "0", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise UserError(
                    f"--mock {profile}: the simulated endpoint did not start",
                    remedy="try `agentx mock` by itself",
                    exit_code=EXIT_ENDPOINT,
                )
            yield f"http://127.0.0.1:{json.loads(line)['port']}"
        finally:
            process.stdin.close()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
