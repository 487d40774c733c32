"""Pictures of experiments."""

import pandas as pd
import pytest


@pytest.mark.parametrize("n_methods", [1, 4, 7])
def test_a_legend_of_long_names_stays_within_the_picture(n_methods):
    from research.experiments.figures import lines

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
