"""Rounds of sums, all sites in one process."""

from fractions import Fraction

import numpy as np
import pytest

from in_step import in_process
from scbatchprox.errors import BadValue
from scbatchprox.federated import WIDE, Addends, FixedPoint


def powers(own, rounds, fixed=WIDE):
    """Each round adds a number that depends on the sum before."""

    def kind(add_up):
        known = [Fraction(1)]
        for _ in range(rounds):
            value, sites = add_up(Addends([own * known[-1], 1], fixed)).fractions()
            known.append(value / sites)
        return known

    return kind


def test_every_site_has_the_same_sums_in_every_round():
    found = in_process([powers(Fraction(n), 4) for n in (1, 2, 6)])
    assert found == [[Fraction(3) ** k for k in range(5)]] * 3


def test_no_rounds():
    assert in_process([powers(1, 0), powers(2, 0)]) == [[1], [1]]
    assert in_process([]) == []


def test_sums_do_not_depend_on_the_order_of_sites(rng):
    parts = [rng.normal(size=5) * 10.0 ** rng.integers(-20, 20, 5) for _ in range(7)]

    def site(values):
        return lambda add_up: add_up(Addends(values, WIDE)).floats()

    forward = in_process([site(part) for part in parts])
    backward = in_process([site(part) for part in reversed(parts)])
    np.testing.assert_array_equal(forward[0], backward[0])
    exact = [float(sum(Fraction(part[j]) for part in parts)) for j in range(5)]
    np.testing.assert_allclose(forward[0], exact, rtol=4e-16)


@pytest.mark.parametrize(
    "others",
    [powers(1, 2), powers(1, 3, FixedPoint(128, 72)), powers(1, 0)],
    ids=["fewer rounds", "another format", "no round"],
)
def test_sites_in_different_rounds_are_an_error(others):
    with pytest.raises(BadValue, match="all sites in the same round"):
        in_process([powers(1, 3), others])
