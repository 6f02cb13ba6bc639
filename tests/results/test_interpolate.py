"""Steffen's curve against scipy's Hermite splines, and its promises on random points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator  # type: ignore[import-untyped]

from results.interpolate import Curve

coordinates = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))
points = st.dictionaries(coordinates, coordinates, min_size=1, max_size=12).map(lambda found: sorted(found.items()))


def steffen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Slopes as the paper writes them (equation 11, with its signs and minimum), ends as D3 has them."""
    h, s = np.diff(x), np.diff(y) / np.diff(x)
    if len(s) == 1:
        return np.array([s[0], s[0]])
    p = (s[:-1] * h[1:] + s[1:] * h[:-1]) / (h[:-1] + h[1:])
    least = np.minimum(np.minimum(abs(s[:-1]), abs(s[1:])), abs(p) / 2)
    inner = (np.sign(s[:-1]) + np.sign(s[1:])) * least
    return np.array([(3 * s[0] - inner[0]) / 2, *inner, (3 * s[-1] - inner[-1]) / 2])


@given(points)
def test_as_scipys_hermite_spline_of_those_slopes(found: list[tuple[float, float]]) -> None:
    x, y = (np.array(side) for side in zip(*found, strict=True))
    curve = Curve(x.tolist(), y.tolist())
    if len(x) == 1:
        assert curve.at(x[0]) == (y[0], False)
        return
    reference = CubicHermiteSpline(x, y, steffen(x, y))
    for place in np.linspace(x[0], x[-1], 50):
        assert curve.at(float(place)).y == pytest.approx(float(reference(place)), rel=1e-6, abs=1e-6)


@given(points, st.floats(0, 1))
def test_it_stays_between_its_neighbours_and_meets_the_points(found: list[tuple[float, float]], share: float) -> None:
    x, y = ([float(v) for v in side] for side in zip(*found, strict=True))
    curve = Curve(x, y)
    assert [curve.at(place) for place in x] == [(value, False) for value in y]
    for a, b, low, high in zip(x, x[1:], y, y[1:], strict=False):
        at = curve.at(min(a + share * (b - a), b))
        assert min(low, high) <= at.y <= max(low, high)


def test_away_from_the_ends_it_is_close_to_scipys_monotone_spline() -> None:
    x = np.linspace(20, 200, 10)
    y = 30_000 / x
    curve, pchip = Curve(x.tolist(), y.tolist()), PchipInterpolator(x, y)
    for place in np.linspace(60, 160, 91):
        assert curve.at(float(place)).y == pytest.approx(float(pchip(place)), rel=0.01)


def test_outside_it_is_the_nearest_end_and_says_so() -> None:
    curve = Curve([1, 2, 4], [9, 5, 3])
    assert curve.at(0.5) == (9, True)
    assert curve.at(5) == (3, True)
    assert curve.at(4) == (3, False)
    assert Curve([7], [2]).at(8) == (2, True)
    assert Curve([0, 2], [0, 4]).at(1) == (2, False)


@pytest.mark.parametrize(
    ("x", "y"),
    [([], []), ([1, 1], [2, 3]), ([2, 1], [2, 3]), ([1, math.nan], [2, 3]), ([1], [math.inf]), ([1, 2], [1])],
)
def test_no_curve_of_no_points(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="a curve needs"):
        Curve(x, y)


def test_nan_is_no_place() -> None:
    with pytest.raises(ValueError, match="NaN"):
        Curve([1, 2], [1, 2]).at(math.nan)
