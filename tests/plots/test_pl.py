"""Pictures of a refinement: what is in them, not their pixels."""

import subprocess
import sys

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from scbatchprox import Adapter, Atlas, BatchProx, Decision, diagnose, pl, refine
from scbatchprox.diagnosis import Level
from scbatchprox.plots.before_after import MAX_POINTS
from scbatchprox.plots.canvas import COLOURS, GREY, LEVELS, MAX_ROWS, label

KEY = "X_pca_batchprox"


def cells(n_batches=3, n=60, seed=0):
    rng = np.random.default_rng(seed)
    batch = np.repeat([f"b{i:02d}" for i in range(n_batches)], n)
    kind = rng.integers(0, 3, batch.size)
    Z = rng.normal(size=(batch.size, 6)) + 9.0 * np.eye(3, 6)[kind]
    Z += rng.normal(size=(n_batches, 6))[np.repeat(np.arange(n_batches), n)]
    obs = pd.DataFrame(
        {"batch": batch, "kind": [f"type{k}" for k in kind]}, map(str, range(len(Z)))
    )
    return ad.AnnData(obs=obs, obsm={"X_pca": Z.astype(np.float32)})


@pytest.fixture
def adata():
    found = cells()
    refine(found, "batch", target="population", diagnose=True)
    return found


def tick_names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def legend_names(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def written(axes):
    return [text.get_text() for text in axes.texts]


def test_before_and_after_by_batch_type_and_movement(adata):
    grid = pl.before_after(adata, label_key="kind", basis="pca")
    assert grid.shape == (3, 2)
    assert [axes.get_ylabel() for axes in grid[:, 0]] == ["by batch", "by cell type", "by movement"]
    assert [axes.get_title() for axes in grid[0]] == ["before: X_pca", f"after: {KEY}"]
    for axes in grid.flat:
        assert len(axes.collections[0].get_offsets()) == adata.n_obs
    assert len({axes.get_xlim() for axes in grid.flat}) == 1  # the same principal axes
    assert legend_names(grid[0, 1]) == ["b00", "b01", "b02"]
    assert legend_names(grid[1, 1]) == ["type0", "type1", "type2"]
    assert {text.get_text() for text in grid[1, 1].texts} == {"type0", "type1", "type2"}
    drawn = np.unique(grid[0, 0].collections[0].get_facecolor(), axis=0)
    assert len(drawn) == 3


def test_movement_is_the_distance_of_each_cell_in_spreads(adata):
    axes = pl.before_after(adata, color="movement", basis="pca")[0, 0]
    Z, after = adata.obsm["X_pca"], adata.obsm[KEY]
    moved = np.linalg.norm(after - Z, axis=1) / np.sqrt(Z.var(0).sum())
    drawn = axes.collections[0].get_array()
    np.testing.assert_allclose(np.sort(drawn), np.sort(moved), rtol=1e-4)


def test_cells_are_drawn_in_random_order(adata):
    axes = pl.before_after(adata, color=["batch"], basis="pca")[0, 0]
    colours = axes.collections[0].get_facecolor()
    changes = (np.abs(np.diff(colours, axis=0)).sum(1) > 0).sum()
    assert changes > adata.n_obs / 3  # sorted batches would change twice


def test_arrays_and_missing_labels(rng):
    Z = rng.normal(size=(40, 3))
    kind = np.array(["a", None] * 20, dtype=object)
    batch = np.repeat([1, 2], 20)
    grid = pl.before_after(Z, Z + 1.0, batch_key=batch, label_key=kind, basis="pca")
    assert legend_names(grid[0, 1]) == ["1", "2"]
    assert legend_names(grid[1, 1]) == ["a", "no label"]


@pytest.mark.parametrize("n", [400, MAX_POINTS + 2])
def test_cells_without_a_label_are_grey_below_all_others_and_without_a_name(n, rng):
    Z = np.repeat(rng.normal(size=(n // 2, 2)), 2, axis=0)  # two cells at each place
    kind = np.where(np.arange(n) % 2 == 0, None, "a")
    axes = pl.before_after(Z, Z, label_key=kind, color="cell type", basis=(0, 1))[0, 1]
    assert [text.get_text() for text in axes.texts] == ["a"]
    marks = axes.get_legend().legend_handles
    assert to_hex(marks[1].get_color()).upper() == GREY
    if n <= MAX_POINTS:
        drawn = [to_hex(colour).upper() for colour in axes.collections[0].get_facecolor()]
        assert drawn == [GREY] * (n // 2) + [COLOURS[0]] * (n // 2)
    else:
        image = np.asarray(axes.images[0].get_array())
        drawn = np.unique(image[image[..., 3] > 0][:, :3], axis=0)
        assert [to_hex(colour).upper() for colour in drawn] == [COLOURS[0]]  # grey is covered


def test_labels_that_are_all_missing(rng):
    Z = rng.normal(size=(20, 2))
    axes = pl.before_after(Z, Z, label_key=[None] * 20, color="cell type")[0, 1]
    assert legend_names(axes) == ["no label"]
    assert not axes.texts


def test_a_few_far_cells_do_not_shrink_all_others(rng):
    Z = rng.normal(size=(1000, 3))
    Z[:4] += 500.0
    grid = pl.before_after(Z, Z, batch_key=["a"] * 1000, color="batch", basis=(0, 1))
    for axes in grid[0]:
        assert np.ptp(axes.get_xlim()) < 15
        assert axes.get_xlabel().endswith("4 cells outside the panel")
    # A small group at some distance is not far.
    Z[:4] = 4.0
    grid = pl.before_after(Z, Z, batch_key=["a"] * 1000, color="batch", basis=(0, 1))
    assert grid[0, 0].get_xlim()[1] > Z[:, 0].max()
    assert grid[0, 0].get_xlabel() == "the embedding 1 × the embedding 2"


def test_one_coordinate(rng):
    Z = rng.normal(size=(20, 1))
    assert pl.before_after(Z, Z, batch_key=["a"] * 20).shape == (2, 2)


def test_positions_by_name_and_by_coordinate(adata, rng):
    adata.obsm["X_umap"], adata.obsm["X_umap_after"] = rng.normal(size=(2, adata.n_obs, 2))
    grid = pl.before_after(adata, basis=("X_umap", "X_umap_after"), color="batch")
    for axes, name in zip(grid[0], ("X_umap", "X_umap_after"), strict=True):
        drawn = axes.collections[0].get_offsets()
        np.testing.assert_allclose(np.sort(drawn[:, 0]), np.sort(adata.obsm[name][:, 0]))
    grid = pl.before_after(adata, basis=(2, 0), color="batch")
    assert grid[0, 0].get_xlabel() == "X_pca 3 × X_pca 1"
    drawn = grid[0, 1].collections[0].get_offsets()
    np.testing.assert_allclose(np.sort(drawn[:, 0]), np.sort(adata.obsm[KEY][:, 2]), rtol=1e-6)


def positions(axes):
    return np.sort(np.asarray(axes.collections[0].get_offsets()), axis=0)


@pytest.mark.parametrize("basis", ["auto", "umap", "X_umap"])
def test_umaps_that_are_there_are_drawn(adata, rng, basis):
    for name in ("X_umap", "X_umap_batchprox"):
        adata.obsm[name] = rng.normal(size=(adata.n_obs, 3))  # the third is not drawn
    grid = pl.before_after(adata, basis=basis, color="batch")
    for axes, name in zip(grid[0], ("X_umap", "X_umap_batchprox"), strict=True):
        expected = np.sort(adata.obsm[name][:, :2], axis=0)
        np.testing.assert_allclose(positions(axes), expected)
    assert grid[0, 0].get_xlabel() == "umap 1 × umap 2"


def test_other_layouts_of_obsm(adata, rng):
    adata.obsm["X_tsne"] = rng.normal(size=(adata.n_obs, 2))
    words = (
        "Expected 'X_tsne' of the refined .*'X_tsne_batchprox'.*, found none; available: 'X_pca'"
    )
    with pytest.raises(KeyError, match=words):
        pl.before_after(adata, basis="X_tsne")
    adata.obsm["X_tsne_batchprox"] = pd.DataFrame(
        rng.normal(size=(adata.n_obs, 2)), index=adata.obs_names
    )
    axes = pl.before_after(adata, basis="tsne", color="batch")[0, 1]
    np.testing.assert_allclose(positions(axes), np.sort(adata.obsm["X_tsne_batchprox"], axis=0))
    # The embedding itself: the same coordinates before and after, so the same axes.
    one, two = pl.before_after(adata, basis="X_pca", color="batch")[0]
    np.testing.assert_allclose(positions(two), np.sort(adata.obsm[KEY][:, :2], axis=0), rtol=1e-6)
    assert one.get_xlim() == two.get_xlim()


def test_without_umap_learn_the_axes_are_principal_axes(adata, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("scbatchprox.plots.layout.find_spec", lambda name: None)
    axes = pl.before_after(adata, color="batch")[0, 0]
    assert axes.get_xlabel() == "PC1 × PC2 of X_pca"
    with pytest.raises(ImportError, match="umap-learn"):
        pl.before_after(adata, basis="umap")


@pytest.mark.slow
def test_a_new_umap_is_of_some_cells(rng, monkeypatch):
    pytest.importorskip("umap")
    monkeypatch.setattr("scbatchprox.plots.layout.MAX_UMAP_CELLS", 60)
    Z = rng.normal(size=(200, 3))
    axes = pl.before_after(Z, Z, batch_key=["a"] * 200, color="batch")[0, 0]
    assert axes.get_xlabel() == "UMAP1 × UMAP2\n60 of 200 cells"
    assert len(positions(axes)) == 60


def test_umap_keeps_types_apart(adata):
    pytest.importorskip("umap")
    grid = pl.before_after(adata, basis="umap", color="cell type", label_key="kind")
    assert grid[0, 0].get_xlabel() == "UMAP1 × UMAP2"
    axes = grid[0, 1]
    drawn, colour = axes.collections[0].get_offsets(), axes.collections[0].get_facecolor()
    group = np.unique(colour, axis=0, return_inverse=True)[1].ravel()
    centre = np.array([np.asarray(drawn)[group == g].mean(0) for g in range(3)])
    nearest = ((np.asarray(drawn)[:, None] - centre) ** 2).sum(2).argmin(1)
    assert (nearest == group).mean() > 0.95


def test_many_cells_are_pixels(rng):
    n = MAX_POINTS + 1
    Z = rng.normal(size=(n, 2)).astype(np.float32)
    batch = rng.integers(0, 2, n)
    grid = pl.before_after(Z, Z, batch_key=batch, basis=(0, 1))
    assert not any(len(axes.collections) for axes in grid.flat)
    image = np.asarray(grid[0, 0].images[0].get_array())
    filled = image[..., 3] > 0
    assert 5_000 < filled.sum() < n
    share = (image[filled][:, 0] == image[filled][:, 0].max()).mean()
    assert 0.4 < share < 0.6  # a pixel has the colour of one of its cells, by chance
    # The middle has more cells than the edge.
    assert image[190:210, 190:210, 3].mean() > image[:40, :40, 3].mean()
    mean = np.asarray(grid[1, 0].images[0].get_array())
    assert (mean[..., 3] > 0).sum() == filled.sum()


def test_forty_batches_and_more_are_readable(rng):
    Z = rng.normal(size=(500, 3))
    batch = np.array([f"a_long_name_of_sample_number_{i:03d}" for i in range(50)])[
        np.arange(500) % 50
    ]
    axes = pl.before_after(Z, Z, batch_key=batch, color="batch", basis="pca")[0, 1]
    names = legend_names(axes)
    assert len(names) == 41
    assert names[-1] == "and 10 more"
    assert max(map(len, names)) <= 24
    assert len(set(names)) == 41  # the end of a name, which tells them apart, is not cut
    figure = axes.figure
    figure.canvas.draw()
    box = axes.get_legend().get_window_extent()
    assert box.x1 <= figure.bbox.width
    assert box.y0 >= 0


def test_colours_differ_also_for_colour_blind_readers():
    # Machado et al. 2009, without green and without red cones, on linear RGB.
    sight = [
        np.eye(3),
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    ]
    to_xyz = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]]
    assert len(set(COLOURS)) == 40
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS[:20]])
    for seen in sight:
        xyz = np.clip((rgb**2.2) @ np.array(seen).T, 0, 1) @ np.array(to_xyz).T
        x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
        lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], 1)
        apart = np.linalg.norm(lab[:, None] - lab, axis=2) + 100 * np.eye(20)
        assert apart.min() > 15  # a difference of 2 can just be seen
    assert len(set(LEVELS.values())) == len(LEVELS)


def test_movement_is_sorted_and_has_colours_of_verdicts(adata):
    axes = pl.movement(adata)
    table = pd.DataFrame(adata.uns[KEY]["diagnosis"])
    moved = [bar.get_width() for bar in axes.patches]
    assert moved == sorted(moved, reverse=True)
    np.testing.assert_allclose(sorted(moved), sorted(table["moved"]))
    assert sorted(tick_names(axes)) == ["b00", "b01", "b02"]
    levels = {word.split(":")[0] for word in table["verdict"]}
    assert set(legend_names(axes)) == {f"verdict: {name}" for name in levels}
    model = BatchProx(target="moment").fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    assert legend_names(pl.movement(model)) == ["no verdict"]
    np.testing.assert_allclose(
        [bar.get_width() for bar in pl.movement(model.movement()).patches],
        sorted(model.movement()["relative"], reverse=True),
    )


def test_movement_of_very_many_batches():
    table = pd.DataFrame({"relative": np.linspace(0, 1, 200)}, index=range(200))
    axes = pl.movement(table)
    assert len(axes.patches) == MAX_ROWS
    assert tick_names(axes)[0] == "199"
    assert "60 of 200 batches" in axes.get_title(loc="left")


ALONE_WORDS = f"{Level.ALONE}: its geometry fits the others no better than turned copies of it"


def diagnosis_table():
    return pd.DataFrame(
        {
            "n_cells": [1000, 20], "moved": [0.1, 0.0], "scale_min": [1.0, 0.5], "scale_max": [1.0, 1.2],
            "matched": [0.9, 0.1], "agreement": [8.1, 0.7], "evidence": [3.0, 0.3],
            "composition": [0.0, np.nan], "neighbours_kept": [0.9, 0.9], "condition confounded": [1.0, 1.0],
            "level": [Level.REMOVED, Level.ALONE], "reasons": ["", "evidence"],
            "verdict": [Level.REMOVED, ALONE_WORDS],
        },
        index=["good", "bad"],
    )  # fmt: skip


def test_diagnosis_has_numbers_marks_and_whole_verdicts():
    axes = pl.diagnosis(diagnosis_table())
    assert tick_names(axes) == ["bad", "good"]  # the worst first
    assert ALONE_WORDS in verdicts(axes)
    assert {"1,000", "0.70", "–", Level.REMOVED} <= set(written(axes))
    assert len(axes.patches) == 1  # the evidence
    headings = [label.get_text() for label in axes.get_xticklabels()]
    assert headings[0] == "cells"
    assert headings[-2:] == ["condition\nconfounded", "verdict"]
    assert legend_names(axes) == [
        f"verdict: {Level.REMOVED}",
        f"verdict: {Level.ALONE}",
        "a reason of the verdict",
    ]


def verdicts(axes):
    return [text.replace("\n", " ") for text in written(axes)]


def test_long_verdicts_are_wrapped_not_cut():
    table = diagnosis_table()
    long = f"{Level.WEAK}: " + "; ".join(f"reason number {i} of this batch" for i in range(12))
    table["level"], table["verdict"] = [Level.REMOVED, Level.WEAK], [Level.REMOVED, long]
    axes = pl.diagnosis(table)
    assert long in verdicts(axes)
    axes.figure.canvas.draw()
    boxes = [t.get_window_extent() for t in axes.texts if t.get_text()[:4] in ("effe", "weak")]
    assert not boxes[0].overlaps(boxes[1])
    for box in boxes:
        assert box.x1 <= axes.figure.bbox.width


#: The numbers of a batch without any reason for care, and what makes each a reason.
QUIET = {
    "n_cells": 100, "moved": 0.1, "scale_min": 1.0, "scale_max": 1.0, "matched": 1.0, "agreement": 8.0,
    "evidence": 3.0, "smooth": 1.0, "composition": 0.0, "neighbours_kept": 0.9,
    "condition confounded": 0.1, "condition removed": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("by_moments", [True, False])
@pytest.mark.parametrize(
    ("change", "marked"),
    [
        ({}, {"agreement"}),
        ({"moved": 0.6}, {"agreement"}),  # how far it moves is no reason
        ({"agreement": 2.0}, {"smooth"}),
        ({"scale_min": 0.5}, {"scale_min"}),
        ({"scale_max": 2.0}, {"scale_max"}),
        ({"n_cells": 19}, {"agreement"}),
        ({"neighbours_kept": 0.2}, {"neighbours_kept"}),
        ({"composition": 0.5}, {"moment": {"composition"}, "population": {"agreement"}}),
        ({"condition confounded": 0.9}, {"condition confounded"}),
        ({"condition removed": 0.6}, {"condition removed"}),
        (
            {"condition confounded": 1.0, "condition removed": 0.6, "moved": 0.9},
            {"condition confounded", "condition removed"},
        ),
    ],
)
def test_only_reasons_of_the_verdict_are_marked(change, marked, by_moments):
    from scbatchprox.diagnosis.kept import Kept
    from scbatchprox.diagnosis.verdict import (
        judge_batch,
        judge_kept,
        sentence,
        verdict_columns,
        with_care,
    )

    if isinstance(marked, dict):
        marked = marked["moment" if by_moments else "population"]
    row = QUIET | change
    column = Kept("condition", row["condition confounded"], row["condition removed"])
    verdict = judge_batch(row, Decision.REMOVED, by_moments=by_moments)
    verdict = with_care(verdict, judge_kept([column]), row["moved"])
    table = pd.DataFrame([row], index=["a"]).assign(**verdict_columns([verdict]))
    axes = pl.diagnosis(table.assign(verdict=sentence(verdict, row)))
    shown = [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()]
    found = {shown[round(box.get_x() + 0.46)].replace(" differs", "") for box in axes.patches}
    names = {
        "scale min": "scale_min",
        "scale max": "scale_max",
        "neighbours kept": "neighbours_kept",
    }
    assert {names.get(name, name) for name in found} == marked
    assert "a reason of the verdict" in legend_names(axes)


def test_diagnosis_of_a_table_and_of_an_anndata_is_the_same(adata, tmp_path):
    table = diagnose(adata.obsm["X_pca"], adata.obs["batch"], target="population")
    adata.write_h5ad(tmp_path / "cells.h5ad")
    again = ad.read_h5ad(tmp_path / "cells.h5ad")
    assert written(pl.diagnosis(again)) == written(pl.diagnosis(table))


def test_a_diagnosis_that_was_not_made():
    model = BatchProx(target="moment").fit(cells().obsm["X_pca"], batch=cells().obs["batch"])
    with pytest.raises(ValueError, match="found a model that has none"):
        pl.diagnosis(model)
    adata = cells()
    refine(adata, "batch", target="moment", diagnose=False)
    with pytest.raises(KeyError, match="diagnose=True"):
        pl.diagnosis(adata)


def test_adapter_shows_scale_and_shift(adata):
    model = BatchProx(target="moment").fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    scale, shift = pl.adapter(model)
    np.testing.assert_allclose(2.0 ** np.asarray(scale.images[0].get_array()), model.scale_)
    np.testing.assert_allclose(shift.images[0].get_array(), model.shift_)
    assert tick_names(scale) == ["b00", "b01", "b02"]
    record = adata.uns[KEY]
    _, shift = pl.adapter(adata)
    own = record["row_batch"] == "b01"
    np.testing.assert_allclose(shift.images[0].get_array()[1], record["shift"][own].mean(0))
    _, shift = pl.adapter(adata, batch="b01")
    np.testing.assert_allclose(shift.images[0].get_array(), record["shift"][own])
    with pytest.raises(KeyError, match="found 'b99'; available: 'b00'"):
        pl.adapter(adata, batch="b99")


def test_ticks_of_scales_differ_and_a_white_panel_says_why(adata):
    model = BatchProx(target="moment").fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    for given in (model, adata):
        scale = pl.adapter(given)[0]
        bar = scale.images[0].colorbar.ax
        scale.figure.canvas.draw()
        words = [tick.get_text() for tick in bar.get_yticklabels()]
        assert len(set(words)) == len(words) == 5
        assert words[2] == "1"
        log = np.asarray(scale.images[0].get_array())
        white = np.abs(2.0**log - 1).max() < 0.01
        assert any("all scales are 1" in text for text in written(scale)) == white
    same = Adapter.per_batch(np.array(["a", "b"]), np.full((2, 3), 1.001), np.zeros((2, 3)))
    one, two = pl.adapter(same)
    assert "all scales are 1" in written(one)[0]
    assert written(two) == ["all shifts are 0"]


def test_history_shows_rounds_and_the_fixed_point(adata):
    Z, batch = adata.obsm["X_pca"], adata.obs["batch"]
    model = BatchProx(target="moment", rounds=4).fit(Z, batch=batch)
    objective, distance, step = pl.history(model)
    np.testing.assert_array_equal(objective.lines[0].get_ydata(), model.history_.objective)
    np.testing.assert_array_equal(distance.lines[0].get_xdata(), range(5))
    assert len(step.lines[0].get_ydata()) == 4
    fixed = BatchProx(target="moment", rounds=None).fit(Z, batch=batch)
    words = [tick.get_text() for tick in pl.history(fixed.history_)[0].get_xticklabels()]
    assert words == ["start", "fixed point"]
    assert objective.get_xlabel() == "round"
    assert step.get_yscale() == "linear"  # steps that differ little would have ticks such as 7.1e-1


def test_steps_that_shrink_much_are_on_a_log_scale():
    table = pd.DataFrame({"round": range(4), "objective": 1.0, "distance": 1.0})
    table["step"] = [0.0, 1.0, 0.1, 0.001]
    assert pl.history(table)[2].get_yscale() == "log"
    table["step"] = 0.0  # no round changed anything
    assert pl.history(table)[2].get_yscale() == "linear"


def test_history_of_a_registration_shows_what_met_and_moved(adata):
    known = adata.uns[KEY]["history"]
    matched, movement, agreement = pl.history(adata)
    each = ((matched, "matched"), (movement, "movement"), (agreement, "agreement"))
    for axes, name in each:
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), known[name])
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), known["round"])
    unknown = pl.history(pd.DataFrame(known).assign(agreement=np.nan))[2]
    assert written(unknown) == ["not known"]


def test_history_of_a_start_and_an_end_has_bars_with_numbers():
    """As version 0.2.0 wrote it for the population target."""
    known = pd.DataFrame({"round": [0.0, 10.0], "objective": [2.0, 1.0], "distance": [3.0, 0.0]})
    known["step"] = [0.0, 4.0]
    for axes, name in zip(pl.history(known), ("objective", "distance", "step"), strict=True):
        assert [bar.get_height() for bar in axes.patches] == known[name].tolist()
        assert written(axes) == [f"{value:.3g}" for value in known[name]]
        words = [tick.get_text() for tick in axes.get_xticklabels()]
        assert words == ["start", f"after {known['round'][1]:.0f} rounds"]
    assert "from start to end" in axes.get_title()


def test_history_of_very_many_rounds_says_that_some_are_left_out(adata):
    model = BatchProx(target="moment", rounds=3000).fit(
        adata.obsm["X_pca"], batch=adata.obs["batch"]
    )
    axes = pl.history(model)[0]
    assert axes.lines[0].get_linestyle() == ":"
    assert axes.get_xlabel() == "round (dotted: some are left out)"


def test_scores_have_circles_numbers_and_the_unrefined_row():
    table = pd.DataFrame(
        {"X_pca": [0.5, 0.01, 0.1, np.nan, 0.2], "refined": [0.6, 0.02, 0.9, np.nan, 0.1]},
        index=["macro_f1", "macro_f1_sd", "ilisi", "kbet", "over_correction"],
    )
    axes = pl.scores(table)
    assert tick_names(axes) == ["X_pca (unrefined)", "refined"]
    heads = [label.get_text() for label in axes.get_xticklabels()]
    assert heads == ["macro-F1", "iLISI", "over-\ncorrection ↓"]  # kBET has no number
    assert len(axes.collections) == 6
    bold = {text.get_text() for text in axes.texts if text.get_weight() == "bold"}
    assert bold == {"0.60\n±0.02", "0.90", "0.10"}
    sizes = [circle.get_sizes()[0] for circle in axes.collections]
    assert sizes[3] > sizes[2]
    assert tick_names(pl.scores(table, unrefined="refined"))[0] == "refined (unrefined)"
    with pytest.raises(ValueError, match="one of X_pca, refined, found 'other'"):
        pl.scores(table, unrefined="other")


def test_atlas_shows_versions_arrivals_and_removals(tmp_path, rng):
    Z = rng.normal(size=(400, 4))
    atlas = Atlas.create(tmp_path / "atlas", target="moment")
    with pytest.raises(ValueError, match="add some first"):
        pl.atlas(atlas)
    atlas.add(Z[:200], batch=np.repeat(["a", "b"], 100))
    atlas.add(Z[200:300], batch=["c"] * 100)
    judged = atlas.add(9 * Z[300:], batch=["far"] * 100, force=True).judgement
    atlas.forget("c")
    atlas.rollback(3)
    versions, arrivals = pl.atlas(atlas.path)
    assert [bar.get_height() for bar in versions.patches] == [0, 200, 300, 400, 300, 300]
    assert tick_names(arrivals) == ["a", "b", "c", "far"]
    assert f"{judged['moved'].iloc[0]:.2f}" in written(arrivals)
    assert legend_names(arrivals) == [
        f"advice: {Level.REMOVED}",
        f"advice: {Level.ALONE}",
        "removed",
        "returned by a rollback",
    ]


def test_an_atlas_of_many_versions_has_numbers_of_batches(tmp_path, rng):
    atlas = Atlas.create(tmp_path / "atlas", target="moment")
    for i in range(29):
        atlas.add(rng.normal(size=(20, 2)), batch=[f"b{i:02d}"] * 20, force=True)
    versions, arrivals = pl.atlas(atlas)
    ticks = [tick.get_text().split()[0] for tick in arrivals.get_xticklabels()]
    assert ticks[-1] == str(atlas.entries()[-1]["number"])  # the latest version is named
    numbers = [int(text) for text in written(versions) if text]
    assert numbers == [e["n_batches"] for e in atlas.entries() if str(e["number"]) in ticks]
    assert numbers[-1] == 29


def test_save_show_and_ax(adata, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    plt.close("all")  # those of tests before
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(True))
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        pl.movement(adata, save=tmp_path / f"picture{suffix}", show=False)
        assert (tmp_path / f"picture{suffix}").read_bytes().startswith(start)
    assert not plt.get_fignums()  # a notebook would show these
    assert not shown
    pl.movement(adata, show=True)
    assert shown == [True]
    assert len(plt.get_fignums()) == 1
    plt.close("all")
    axes = Figure().subplots(1, 2)
    assert pl.movement(adata, ax=axes[0]) is axes[0]
    assert pl.adapter(adata, ax=axes)[1] is axes[1]
    with pytest.raises(ValueError, match="Expected 2 axes for 1 x 2 panels, found 1"):
        pl.adapter(adata, ax=axes[0])
    with pytest.raises(TypeError, match="found str"):
        pl.movement(adata, ax="here")


@pytest.mark.slow
def test_pictures_need_no_display(tmp_path):
    script = (
        "import sys, scbatchprox\n"
        "from scbatchprox import pl\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import pandas as pd\n"
        f"pl.movement(pd.DataFrame({{'relative': [0.1]}}, index=['a']), save={str(tmp_path / 'a.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert scbatchprox.pl is pl\n"
    )
    environment = {
        "MPLBACKEND": "TkAgg",
        "PATH": "",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda a: pl.movement(a, key="X_other"),
            "found no 'X_other'; available: 'X_pca_batchprox'",
        ),
        (
            lambda a: pl.before_after(a, label_key="nothing"),
            "Expected label_key in obs, found no column 'nothing'; available: 'batch'",
        ),
        (
            lambda a: pl.before_after(a, batch_key="nothing"),
            "Expected batch_key in obs, found no column 'nothing'",
        ),
        (
            lambda a: pl.before_after(a.obsm["X_pca"], a.obsm["X_pca"], label_key=["a"]),
            "Expected one cell type per cell .180., found 1 label",
        ),
        (lambda a: pl.before_after(a, color="cell type"), "label_key= adds 'cell type'"),
        (
            lambda a: pl.before_after(a, basis=("X_umap", "b")),
            "found no 'X_umap'; available: 'X_pca'",
        ),
        (lambda a: pl.before_after(a, basis="tsne"), "found 'tsne'"),
        (lambda a: pl.before_after(a, basis=(0, 6)), "Expected coordinates from 0 to 5"),
        (lambda a: pl.before_after(a.obsm["X_pca"]), "found one array"),
        (lambda a: pl.before_after(a.obsm["X_pca"], a.obsm["X_pca"][:, :2]), "of the same shape"),
        (lambda a: pl.movement(3), "found int"),
        (lambda a: pl.movement(pd.DataFrame({"x": [1]})), "found one without 'relative'"),
        (lambda a: pl.history(3), "found int"),
        (lambda a: pl.adapter(3), "found int"),
        (lambda a: pl.scores(3), "found int"),
        (lambda a: pl.atlas(3), "found int"),
    ],
)
def test_errors_say_what_is_available(adata, call, words):
    with pytest.raises((KeyError, ValueError, TypeError), match=words):
        call(adata)


def test_two_records_need_a_key(adata):
    with pytest.raises(KeyError, match="found none"):
        pl.movement(cells())
    refine(adata, "batch", target="moment", key_added="other", diagnose=False)
    with pytest.raises(KeyError, match="Expected key= .* found 2 in uns"):
        pl.movement(adata)
    assert len(pl.movement(adata, key="other").patches) == 3


def test_a_batch_of_several_keys(adata):
    refine(adata, ["batch", "kind"], target="moment", key_added="both", diagnose=False)
    axes = pl.before_after(adata, key="both", color="batch", basis="pca")[0, 1]
    assert "b00 | type0" in legend_names(axes)


def test_names_are_cut_in_the_middle():
    assert label("short") == "short"
    assert len(label("x" * 100)) == 24


#: Two "$" make a formula, and these are no formulas.
FORMULA = "$a_1^{$ x"


@pytest.fixture
def formulas():
    found = cells()
    found.obs["batch"] = found.obs["batch"].replace({"b00": FORMULA})
    found.obs["kind"] = found.obs["kind"].replace({"type0": r"$\frac$"})
    found.obs["$$"] = found.obs["kind"]
    found.obsm["$X^$"] = found.obsm["X_pca"]
    refine(found, "batch", use_rep="$X^$", target="population", keep="$$", diagnose=True)
    return found


def drawn_texts(axes):
    """Return what is drawn, with ``\\$`` as the ``$`` that a reader sees; a formula is an error."""
    from matplotlib.text import Text

    axes.figure.canvas.draw()  # raises for what is no formula
    every = [text.get_text() for text in axes.figure.findobj(Text)]
    return [text.replace(r"\$", "$") for text in every]


@pytest.mark.parametrize(
    "draw",
    [
        lambda a: pl.before_after(a, label_key="kind", basis="pca")[0, 0],
        lambda a: pl.before_after(a, basis=(0, 1))[0, 0],
        pl.movement,
        pl.diagnosis,
        lambda a: pl.adapter(a)[0],
        lambda a: pl.adapter(a, batch=FORMULA)[0],
    ],
)
def test_dollars_in_names_are_no_formulas(formulas, draw):
    assert any(FORMULA in text for text in drawn_texts(draw(formulas)))


def test_dollars_in_scores_and_atlases(tmp_path, rng):
    table = pd.DataFrame({FORMULA: [0.5], "b": [0.4]}, index=["$q^{$"])
    assert {f"{FORMULA} (unrefined)", "$q^{$"} <= set(drawn_texts(pl.scores(table)))
    atlas = Atlas.create(tmp_path / "atlas", target="moment")
    atlas.add(rng.normal(size=(40, 3)), batch=np.repeat([FORMULA, "b"], 20))
    assert FORMULA in drawn_texts(pl.atlas(atlas)[0])


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (True, "Expected save to be a file, such as 'picture.png', found True"),
        ("absent/picture.png", "in a folder that exists, found no 'absent'"),
        ("picture.docx", "found the suffix 'docx'; available: .*'pdf', .*'png'"),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error_before_drawing(
    save, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for draw in (getattr(pl, name) for name in pl.__all__):
        # There is nothing to draw, so this would be another error if the file were not checked first.
        with pytest.raises((TypeError, ValueError, FileNotFoundError), match=words):
            draw(None, save=save)
