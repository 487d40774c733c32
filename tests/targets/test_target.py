"""Proposition "latent moment normalization", "within-batch affine preservation", representability."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from data import cells
from scbatchprox import Adapter, Moments, MomentTarget

RULES = st.builds(MomentTarget, st.booleans(), st.sampled_from([1e-6, 1e-2, 0.0]))


def target_of(c, rule):
    moments = Moments.of(c.Z, c.codes)
    target = rule(moments)
    return target, Adapter.per_batch(moments.batches, target.scale, target.shift).apply(
        c.Z, c.codes
    )


@given(cells(), RULES)
def test_film_represents_the_target(c, rule):
    _, T = target_of(c, rule)
    expected = oracles.target_cells(c.Z, c.codes, rule.eps, rule.variance_matching)
    np.testing.assert_allclose(T, expected, rtol=1e-8, atol=1e-8)


@given(cells(), RULES)
def test_target_has_the_global_mean(c, rule):
    _, T = target_of(c, rule)
    for b in range(c.B):
        np.testing.assert_allclose(T[c.codes == b].mean(0), c.Z.mean(0), rtol=1e-9, atol=1e-8)


@given(cells(), RULES)
def test_target_has_the_promised_spread(c, rule):
    target, T = target_of(c, rule)
    for b in range(c.B):
        spread = T[c.codes == b].std(0)
        np.testing.assert_allclose(spread, target.scale[b] * c.rows(b).std(0), rtol=1e-7)
        if rule.variance_matching and rule.eps == 0:
            np.testing.assert_allclose(spread, c.Z.std(0), rtol=1e-7)
        if not rule.variance_matching:
            np.testing.assert_array_equal(target.scale[b], 1.0)


@given(cells(), RULES)
def test_differences_within_a_batch_are_only_scaled(c, rule):
    target, T = target_of(c, rule)
    for b in range(c.B):
        Zb, Tb = c.rows(b), T[c.codes == b]
        np.testing.assert_allclose(
            Tb[1:] - Tb[:-1], target.scale[b] * (Zb[1:] - Zb[:-1]), rtol=1e-7, atol=1e-8
        )


def test_no_eps_leaves_a_constant_coordinate_at_scale_one():
    Z = np.array([[1.0, 2.0], [1.0, 4.0], [3.0, 0.0], [5.0, 1.0]])
    target = MomentTarget(eps=0.0)(Moments.of(Z, list("aabb")))
    assert target.scale[0, 0] == 1.0
    assert np.isfinite(target.scale).all()


@pytest.mark.parametrize("eps", [-1e-9, np.nan, np.inf])
def test_eps_must_make_sense(eps):
    with pytest.raises(ValueError, match="Expected eps"):
        MomentTarget(eps=eps)
