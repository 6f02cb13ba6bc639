"""Numbers that several processes take: each once, none left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.starts import Starts

TAKE = "import sys; from pathlib import Path; from harness.starts import Starts; s = Starts(Path(sys.argv[1])); \
print(*[s.take() for _ in range(2000)])"


def test_every_number_is_taken_once_by_one_of_many(tmp_path: Path) -> None:
    Starts.create(tmp_path / "s", 7)
    takers = [
        subprocess.Popen([sys.executable, "-c", TAKE, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    taken = [list(map(int, taker.communicate()[0].split())) for taker in takers]
    assert sorted(number for mine in taken for number in mine) == list(range(7, 6007))
    assert all(mine == sorted(mine) for mine in taken)
    starts = Starts(tmp_path / "s")
    assert starts.peek() == starts.take() == 6007
    starts.close()
