import numpy as np
import pandas as pd
import pytest

from data import make_cells
from scbatchprox.evaluate.metrics import ilisi, macro_f1
from scbatchprox.plots.before_after import COLOURS, before_after


def test_macro_f1_knows_perfect_and_useless_embeddings(rng):
    labels = np.repeat(["a", "b", "c"], [200, 100, 20])
    onehot = (labels[:, None] == np.array(["a", "b", "c"])).astype(np.float32)
    assert macro_f1(onehot, labels) == 1.0
    assert macro_f1(rng.normal(size=(320, 5)), labels) < 0.5


def test_macro_f1_is_the_mean_over_types(rng):
    """Against the definition, on the predictions of an independent nearest-to-optimum classifier."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    labels = rng.choice(["a", "b", "c"], 400, p=[0.6, 0.3, 0.1])
    Z = rng.normal(size=(400, 4)) + (labels == "b")[:, None] + 2 * (labels == "c")[:, None]
    train, test = train_test_split(np.arange(400), test_size=0.2, stratify=labels, random_state=0)
    model = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000)
    predicted = model.fit(Z[train], labels[train]).predict(Z[test])
    scores = []
    for kind in "abc":
        hit = ((predicted == kind) & (labels[test] == kind)).sum()
        scores.append(2 * hit / ((predicted == kind).sum() + (labels[test] == kind).sum()))
    assert macro_f1(Z, labels) == pytest.approx(np.mean(scores))


def test_ilisi_is_the_formula_cell_by_cell(rng):
    Z, batch = rng.normal(size=(60, 3)), rng.choice(["x", "y", "z"], 60)
    values = []
    for i in range(60):
        distance = np.linalg.norm(Z - Z[i], axis=1)
        near = np.argsort(distance)[1:11]
        share = [np.mean(batch[near] == b) for b in "xyz"]
        values.append(1 / np.sum(np.square(share)))
    assert ilisi(Z, batch, k=10) == pytest.approx((np.mean(values) - 1) / 2)
    apart = Z + 100 * (batch == "x")[:, None] + 200 * (batch == "y")[:, None]
    assert ilisi(apart, batch, k=5) == 0.0


def test_picture_shows_every_cell_on_the_same_axes(rng, tmp_path):
    c = make_cells(rng, [50, 30], 4)
    after = c.Z + 1.0
    batch, kind = np.array(["x", "y"])[c.codes], rng.integers(0, 20, 80)
    path = tmp_path / "picture.png"
    figure = before_after(c.Z, after, {"batch": batch, "kind": kind}, path=path)
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = figure.axes
    assert [a.get_title() for a in axes[:2]] == ["before, by batch", "after, by batch"]
    assert len({a.get_xlim() for a in axes}) == 1
    for a in axes:
        assert sum(len(s.get_offsets()) for s in a.collections) == 80
    drawn = {tuple(s.get_facecolor()[0]) for s in axes[0].collections}
    assert len(drawn) == 2
    assert len(set(COLOURS)) == len(COLOURS)


def test_picture_of_one_coordinate(rng):
    before_after(rng.normal(size=(20, 1)), rng.normal(size=(20, 1)), {"all": ["a"] * 20})


@pytest.mark.parametrize("n_methods", [1, 4, 7])
def test_a_legend_of_long_names_stays_within_the_picture(n_methods):
    from scbatchprox.plots.figures import lines

    names = [f"scBatchProx population refit {m}" for m in range(n_methods)]
    rows = pd.DataFrame(
        [
            {"d": "data", "o": "order", "method": m, "step": s, "value": 0.5}
            for m in names
            for s in "12"
        ]
    )
    figure = lines(rows, x="step", row="d", column="o", ylabel="score")
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
