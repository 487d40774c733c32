import numpy as np
import pandas as pd
import pytest

from data import make_cells
from scbatchprox.plots.before_after import before_after
from scbatchprox.plots.canvas import COLOURS


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
