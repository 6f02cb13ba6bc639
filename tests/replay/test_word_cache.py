"""Words found slowly are kept; a cache can be missing, old or broken without harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay import tokens
from replay.tokens import LocalCounter, find_words
from replay.word_search import WANTED_WORDS
from tests.replay.token_server import foreign_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agentx"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    return foreign_tokenizer(tmp_path / "foreign")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes long enough to be kept."""
    monkeypatch.setattr(tokens, "_SLOW_S", 0.0)


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    opened: list[int] = []
    fast = LocalCounter._fast

    def noting(self: LocalCounter) -> object:
        opened.append(1)
        return fast(self)

    monkeypatch.setattr(LocalCounter, "_fast", noting)
    return opened


@pytest.mark.usefixtures("slow")
def test_words_found_slowly_are_kept_and_the_file_is_not_read_again(
    directory: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_openings(monkeypatch)
    first = find_words(LocalCounter.load(directory))
    assert len(list(cache.iterdir())) == len(opened) == 1
    assert find_words(LocalCounter.load(directory)) == first
    assert len(opened) == 1


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"words": [" aa"]}', '{"identity": "x", "words": 3}'])
def test_a_broken_cache_is_ignored_and_mended(directory: Path, cache: Path, content: str) -> None:
    first = find_words(LocalCounter.load(directory))
    (kept,) = cache.iterdir()
    good = kept.read_text()
    kept.write_text(content)
    assert find_words(LocalCounter.load(directory)) == first
    assert kept.read_text() == good


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("words", [[], [""], ["word"], [" ab", " abc"], 'x"'])
def test_a_cache_with_words_that_can_not_be_is_ignored(directory: Path, cache: Path, words: object) -> None:
    first = find_words(LocalCounter.load(directory))
    (kept,) = cache.iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "words": words}))
    assert find_words(LocalCounter.load(directory)) == first


@pytest.mark.usefixtures("slow")
def test_another_tokenizer_file_has_words_of_its_own(directory: Path, cache: Path) -> None:
    find_words(LocalCounter.load(directory))
    path = directory / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    find_words(LocalCounter.load(directory))
    assert len(list(cache.iterdir())) == 2


@pytest.mark.usefixtures("slow")
def test_a_cache_that_can_not_be_written_is_no_error(directory: Path, cache: Path) -> None:
    cache.parent.write_text("a file where the folder would be")
    assert len(find_words(LocalCounter.load(directory)).words) == WANTED_WORDS


def test_words_found_at_once_are_not_kept(directory: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_SLOW_S", 1e9)
    find_words(LocalCounter.load(directory))
    assert not cache.exists()


def test_a_relative_cache_folder_is_ignored(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_SLOW_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    find_words(LocalCounter.load(directory))
    assert not (tmp_path / "relative").exists()
    assert len(list((tmp_path / "home" / ".cache" / "agentx").iterdir())) == 1
