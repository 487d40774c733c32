import numpy as np
import pytest

from data import labels_of
from report_cells import make_cells
from scbatchprox.reporting.contents import Drawn, chosen_rows, chosen_view, placed
from scbatchprox.reporting.pictures import COLOURS, looks, scatter


def test_small_batches_are_seen():
    labels = labels_of(np.repeat(["big", "small", "tiny"], [100_000, 500, 7]))
    rows = chosen_rows(labels, 3000)
    n = np.bincount(labels.codes[rows])
    assert n[2] == 7
    assert n[1] >= 250  # a twelfth of the picture, for a two hundredth of the cells
    assert 2900 < rows.size <= 3000
    assert (np.diff(rows) > 0).all()


def test_few_cells_are_all_drawn():
    labels = labels_of(list("aabbb"))
    np.testing.assert_array_equal(chosen_rows(labels, 10), np.arange(5))


def test_more_batches_than_points_give_one_cell_each():
    labels = labels_of(np.repeat(np.arange(50), 4))
    assert set(labels.codes[chosen_rows(labels, 20)]) == set(range(50))


def test_both_plots_are_on_the_principal_axes_of_the_first(rng):
    before = rng.normal(size=(300, 5)) * [9, 4, 1, 1, 1] + 100.0
    first, second = placed(before, before + 1.0, "pca")
    covariance = np.cov(first.T)
    assert covariance[0, 0] > covariance[1, 1] > 10 * abs(covariance[0, 1])
    shift = second - first
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0], shift.shape), atol=1e-9)


def test_one_coordinate_can_be_drawn(rng):
    first, second = placed(rng.normal(size=(20, 1)), rng.normal(size=(20, 1)), "pca")
    assert first.shape == second.shape == (20, 2)


def test_stored_umaps_are_preferred():
    assert chosen_view("auto", stored=True, n_cells=100) == "stored"
    assert chosen_view("pca", stored=True, n_cells=100) == "pca"
    with pytest.raises(ValueError, match="view to be one of"):
        chosen_view("tsne", stored=False, n_cells=100)


def drawn(n=50):
    cells = make_cells(n)
    Z = cells.obsm["X_pca"].astype(float)
    batch, kind = (labels_of(cells.obs[name]) for name in ("batch", "type"))
    return Drawn(Z[:, :2], Z[:, 2:4], batch, kind, np.arange(n) / n, "test")


def test_plots_share_cells_and_ranges():
    cells = drawn()
    models = scatter(cells, "type")
    before, after = models["before"], models["after"]
    assert before.x_range is after.x_range
    assert before.y_range is after.y_range
    first, second = before.renderers[0], after.renderers[0]
    assert first.data_source is second.data_source
    assert first.view.filter is second.view.filter
    data = first.data_source.data
    order = np.argsort(data["moved"])
    np.testing.assert_array_equal(data["x_before"][order], cells.before[:, 0].astype(np.float32))
    np.testing.assert_array_equal(data["y_after"][order], cells.after[:, 1].astype(np.float32))
    codes = np.array(data["batch"], int)[order]
    np.testing.assert_array_equal(codes, cells.batch.codes)
    assert models["batches"].labels == cells.batch.batches.tolist()


def luminance(colour):
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722]), linear


def test_forty_groups_look_different_on_light_and_dark():
    assert len(set(looks(40))) == 40
    for colour in COLOURS:
        light = luminance(colour)[0]
        assert 1.05 / (light + 0.05) >= 3.0, colour  # on white
        assert (light + 0.05) / (luminance("#14171b")[0] + 0.05) >= 3.0, colour


#: What readers without red or green receptors see, in linear RGB (Viénot, Brettel and Mollon, 1999).
BLIND = {
    "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


@pytest.mark.parametrize("kind", BLIND)
def test_colour_blind_readers_tell_colours_apart(kind):
    lms = np.array([luminance(colour)[1] @ np.transpose(BLIND[kind]) for colour in COLOURS])
    seen = np.cbrt(np.clip(lms, 0, 1))  # about as different as they look
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    np.fill_diagonal(distance, 1)
    pairs = [
        (round(float(distance[i, j]), 3), COLOURS[i], COLOURS[j])
        for i in range(8)
        for j in range(i)
    ]
    assert min(pairs)[0] > 0.05, sorted(pairs)[:4]
