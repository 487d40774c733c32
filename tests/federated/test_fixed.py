"""Fixed-point numbers against Python's own integers and fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scbatchprox.errors import BadValue
from scbatchprox.federated import WIDE, FixedPoint

FORMATS = [
    WIDE,
    FixedPoint(128, 72),
    FixedPoint(64, 20),
    FixedPoint(64, 0),
    FixedPoint(64, 46),
    FixedPoint(192, 128),
]
formats = st.sampled_from(FORMATS)


def bound_of(fixed):
    """Integers of one site are smaller than this."""
    return 1 << (fixed.bits - 1 - fixed.spare)


@st.composite
def format_and_integers(draw, n_lists=1):
    fixed = draw(formats)
    n = draw(st.integers(0, 6))
    one = st.integers(1 - bound_of(fixed), bound_of(fixed) - 1)
    return fixed, [draw(st.lists(one, min_size=n, max_size=n)) for _ in range(n_lists)]


def units(fixed, integers):
    return [Fraction(number, 1 << fixed.fraction) for number in integers]


@given(format_and_integers())
def test_exact_numbers_survive(case):
    fixed, (integers,) = case
    limbs = fixed.encoded(units(fixed, integers))
    assert limbs.shape == (len(integers), fixed.bits // 64)
    assert limbs.dtype == np.uint64
    assert fixed.integers(limbs) == integers
    assert fixed.fractions(limbs) == units(fixed, integers)
    assert fixed.integers(fixed.negated(limbs)) == [-number for number in integers]


@given(format_and_integers(n_lists=5))
def test_sums_are_those_of_integers(case):
    fixed, lists = case
    total = fixed.encoded(units(fixed, lists[0]))
    for more in lists[1:]:
        total = fixed.added(total, fixed.encoded(units(fixed, more)))
    assert fixed.integers(total) == [sum(numbers) for numbers in zip(*lists, strict=True)]


@given(formats, st.data())
def test_any_limbs_add_modulo_a_power_of_two(fixed, data):
    """Masked numbers use the whole range."""
    top = 1 << fixed.bits
    a, b = (data.draw(st.lists(st.integers(0, top - 1), min_size=3, max_size=3)) for _ in range(2))

    def limbs(numbers):
        raw = b"".join(number.to_bytes(fixed.bits // 8, "little") for number in numbers)
        return np.frombuffer(raw, "<u8").reshape(3, -1).astype(np.uint64)

    found = fixed.added(limbs(a), limbs(b))
    np.testing.assert_array_equal(found, limbs([(x + y) % top for x, y in zip(a, b, strict=True)]))
    np.testing.assert_array_equal(fixed.negated(limbs(a)), limbs([-x % top for x in a]))
    assert not fixed.added(limbs(a), fixed.negated(limbs(a))).any()


@given(formats, st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
@example(WIDE, [5e-324, -5e-324, 2.0**-193, 1.5 * 2.0**-192, 0.0, -0.0])
@example(FixedPoint(64, 0), [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994])
@example(FixedPoint(64, 20), [2.0**27 - 2.0**-26, 2.0**27 - 2.0**-20])
def test_doubles_are_rounded_as_fractions_are(fixed, values):
    expected = [round(Fraction(value) * (1 << fixed.fraction)) for value in values]
    if all(abs(number) < bound_of(fixed) for number in expected):
        limbs = fixed.encoded(np.array(values, float))
        assert fixed.integers(limbs) == expected
        np.testing.assert_array_equal(limbs, fixed.encoded([Fraction(v) for v in values]))
    else:
        with pytest.raises(BadValue, match="Expected numbers below"):
            fixed.encoded(np.array(values, float))
        with pytest.raises(BadValue, match="Expected numbers below"):
            fixed.encoded([Fraction(value) for value in values])


@given(format_and_integers())
def test_doubles_are_correct_to_the_last_bits(case):
    fixed, (integers,) = case
    found = fixed.floats(fixed.encoded(units(fixed, integers)))
    for value, exact in zip(found.tolist(), units(fixed, integers), strict=True):
        assert abs(Fraction(value) - exact) <= abs(exact) * Fraction(2) ** -52


@pytest.mark.parametrize("fixed", FORMATS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_limit_itself_is_out_of_range(fixed, sign):
    limit = Fraction(bound_of(fixed), 1 << fixed.fraction)
    assert fixed.limit == limit
    below = float(np.nextafter(float(limit), 0.0))
    inside = sign * (limit - Fraction(1, 1 << fixed.fraction))
    assert fixed.fractions(fixed.encoded([inside])) == [inside]
    for values in ([sign * limit], np.array([sign * float(limit)]), [sign * 2 * limit]):
        with pytest.raises(BadValue, match="found larger ones, NaN or infinity"):
            fixed.encoded(values)
    # The largest double below the limit is in range unless it is rounded up to it.
    if round(Fraction(below) * (1 << fixed.fraction)) < bound_of(fixed):
        assert fixed.fractions(fixed.encoded(np.array([sign * below])))
    else:
        with pytest.raises(BadValue, match="Expected numbers below"):
            fixed.encoded(np.array([sign * below]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(value):
    with pytest.raises(BadValue, match="NaN or infinity"):
        WIDE.encoded(np.array([0.0, value, 1.0]))


def test_the_sum_of_many_sites_is_in_range():
    """As many sites as the spare bits allow, each at the limit."""
    fixed = FixedPoint(64, 4)
    largest = [Fraction(bound_of(fixed) - 1, 16)]
    total = one = fixed.encoded(largest)
    for _ in range(fixed.spare):  # 2^16 sites by doubling
        total = fixed.added(total, total)
    assert fixed.integers(total) == [(bound_of(fixed) - 1) << fixed.spare]
    assert fixed.floats(total)[0] == float(2**fixed.spare * largest[0])
    assert fixed.integers(one) == [bound_of(fixed) - 1]


def test_nothing_to_add():
    for values in ([], np.array([])):
        limbs = WIDE.encoded(values)
        assert limbs.shape == (0, 6)
        assert WIDE.integers(WIDE.added(limbs, WIDE.negated(limbs))) == []
        assert WIDE.floats(limbs).shape == (0,)


@pytest.mark.parametrize(
    ("bits", "fraction"), [(0, 0), (63, 0), (100, 2), (64, 47), (64, -1), (-64, 0)]
)
def test_formats_that_cannot_be(bits, fraction):
    with pytest.raises(BadValue, match="Expected a multiple of 64 bits"):
        FixedPoint(bits, fraction)
