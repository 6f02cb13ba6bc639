from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors.counters import Counters
from collectors.exposition import PageParser

START = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n"


class Watched:
    def __init__(self) -> None:
        self.parser, self.counters = PageParser(), Counters()

    def page(self, text: str) -> bool:
        return self.counters.update(self.parser.parse(text.encode()), wall_s=1e9 + 10)

    def gained(self, name: str) -> float:
        return sum(value for series, value in self.counters.gained.items() if series.name == name)


def test_what_was_there_before_does_not_count() -> None:
    watched = Watched()
    watched.page("# TYPE a counter\na 100\n")
    watched.page("# TYPE a counter\na 130\n")
    assert watched.gained("a") == 30


def test_a_series_that_appears_later_began_at_zero() -> None:
    watched = Watched()
    watched.page("# TYPE a counter\na 1\n")
    watched.page('# TYPE a counter\na 1\n# TYPE b counter\nb{x="y"} 5\n')
    assert watched.gained("b") == 5


def test_a_restart_is_seen_by_a_smaller_value() -> None:
    watched = Watched()
    assert not watched.page("# TYPE a counter\na 100\n")
    assert not watched.page("# TYPE a counter\na 120\n")
    assert watched.page("# TYPE a counter\na 30\n")
    assert watched.gained("a") == 50
    assert watched.counters.resets == 1


def test_a_restart_is_seen_by_the_start_time_even_when_the_value_grew() -> None:
    watched = Watched()
    watched.page(START.format(1e9) + "# TYPE a counter\na 10\n")
    assert watched.page(START.format(1e9 + 60) + "# TYPE a counter\na 200\n")
    assert watched.gained("a") == 200


def test_a_restart_is_seen_by_a_shorter_uptime() -> None:
    watched = Watched()
    watched.page("dynamo_component_uptime_seconds 50\n# TYPE a counter\na 10\n")
    assert not watched.page("dynamo_component_uptime_seconds 51\n# TYPE a counter\na 11\n")
    assert watched.page("dynamo_component_uptime_seconds 2\n# TYPE a counter\na 40\n")
    assert watched.gained("a") == 41


def test_a_restart_is_seen_by_the_created_twin_of_that_series_only() -> None:
    page = (
        '# TYPE a_total counter\na_total{{x="1"}} {0}\n# TYPE a_created gauge\na_created{{x="1"}} {1}\n'
        '# TYPE h histogram\nh_bucket{{le="+Inf"}} {0}\nh_sum {0}\nh_count {0}\n# TYPE h_created gauge\nh_created {2}\n'
    )
    watched = Watched()
    watched.page(page.format(10, 1e9, 1e9))
    assert watched.page(page.format(15, 1e9, 2e9))
    assert watched.gained("a_total") == 5
    assert watched.gained("h_sum") == watched.gained("h_count") == watched.gained("h_bucket") == 15


def test_a_series_that_comes_back_late_after_a_restart_is_no_second_one() -> None:
    late = '# TYPE a counter\na{{x="1"}} {}\n# TYPE a_created gauge\na_created{{x="1"}} {}\n'
    watched = Watched()
    watched.page(START.format(1e9) + late.format(10, 1e9))
    assert watched.page(START.format(2e9))
    assert not watched.page(START.format(2e9) + late.format(12, 2e9))
    assert watched.gained("a") == 12
    assert watched.counters.resets == 1


def test_gauges_are_not_counted() -> None:
    watched = Watched()
    watched.page("# TYPE g gauge\ng 10\n")
    assert not watched.page("# TYPE g gauge\ng 3\n")
    assert watched.gained("g") == 0


def test_a_falling_value_without_a_declared_kind_is_no_restart() -> None:
    watched = Watched()
    for depth in (3, 1, 4, 1, 5, 2):
        assert not watched.page(f"depth {depth}\nasked_total 7\n")
    assert not watched.counters.unsteady
    assert watched.page("depth 1\nasked_total 2\n")


def test_nan_is_passed_over_and_a_series_that_returns_goes_on() -> None:
    watched = Watched()
    for value in ("10", "NaN", "14"):
        watched.page(f"# TYPE a counter\na {value}\n")
    watched.page("b 1\n")
    watched.page("# TYPE a counter\na 20\n")
    assert watched.gained("a") == 10
    assert watched.counters.resets == 0


def test_two_servers_that_answer_in_turn_are_no_restarts() -> None:
    watched = Watched()
    counter = "# TYPE a counter\na {}\n"
    for step in range(5):
        watched.page(START.format(1e9) + counter.format(1_000 + step))
        watched.page(START.format(1e9 + 5) + counter.format(50 + 10 * step))
    assert watched.gained("a") == 4 + 40
    assert watched.counters.resets == 0
    assert watched.counters.servers == 2
    assert not watched.counters.unsteady
    heard = watched.counters.pages
    watched.page(START.format(1e9) + counter.format(1_004))
    assert watched.counters.unheard(heard)
    watched.page(START.format(1e9 + 5) + counter.format(90))
    assert not watched.counters.unheard(heard)
    assert watched.page(START.format(1e9 + 60) + counter.format(7))  # one of them is replaced
    assert watched.gained("a") == 4 + 40 + 7
    assert watched.counters.servers == 2


def test_a_start_time_that_comes_with_the_second_page_is_kept() -> None:
    watched = Watched()
    watched.page("")
    assert not watched.page(START.format(1e9) + "# TYPE a counter\na 5\n")
    assert watched.page(START.format(1e9 + 60) + "# TYPE a counter\na 6\n")
    assert watched.gained("a") == 11


def test_servers_in_turn_that_nothing_tells_apart_are_unsteady() -> None:
    watched = Watched()
    for step in range(8):
        watched.page(f"# TYPE a counter\na {1_000 + step if step % 2 else 10 + step}\n")
    assert watched.counters.unsteady


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=5), min_size=1, max_size=4))
def test_nothing_is_lost_over_restarts_but_the_tail_after_the_last_page(lives: list[list[int]]) -> None:
    watched = Watched()
    expected, first = 0, True
    for number, steps in enumerate(lives):
        value = 0
        for step in steps:
            value += step
            watched.page(START.format(1e9 + 60 * number) + f"# TYPE a counter\na {value}\n")
            expected += 0 if first else step
            first = False
    assert watched.gained("a") == expected
