"""The population target for files, Dask arrays, AnnData, the command line and federated sites."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata.io import write_elem

from command_line import answer, run
from data import in_memory
from population_models import BOTH, assert_same, grown, refined, some_of
from scbatchprox import BatchProx, PopulationTarget, refine, refine_file
from scbatchprox.cells import file as stream


class TestInterfaces:
    @pytest.fixture
    def data(self, grow):
        rng = np.random.default_rng(0)
        leiden = rng.choice(["1", "2", "3"], len(grow[0]))
        return grow[0], np.array(["a", "b", "c", "d", "e"])[grow[1]], leiden

    @pytest.fixture
    def adata(self, data):
        Z, batch, leiden = data
        obs = pd.DataFrame(
            {"batch": batch, "leiden": pd.Categorical(leiden)},
            index=[f"c{i}" for i in range(len(Z))],
        )
        return ad.AnnData(obs=obs, obsm={"X_pca": Z, "small": Z.astype(np.float32)})

    @pytest.mark.filterwarnings("ignore:.*zarr", "ignore:Consolidated metadata")
    @pytest.mark.parametrize("kind", ["h5ad", "zarr", "npy"])
    @pytest.mark.parametrize("given", [False, True])
    @pytest.mark.parametrize("chunk", [1 << 25, 2000])
    def test_files(self, adata, data, tmp_path, monkeypatch, kind, given, chunk):
        Z, batch, leiden = data
        monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
        expected = refined(Z, batch, leiden if given else None)
        path, out, options = tmp_path / f"x.{kind}", tmp_path / f"y.{kind}", {}
        if kind == "h5ad":
            adata.write_h5ad(path)
        elif kind == "zarr":
            import zarr

            write_elem(zarr.open_group(path, mode="w", zarr_format=2), "/", adata)
        else:
            np.save(path, Z)
            adata.obs.to_csv(tmp_path / "labels.csv", index=False)
            options = {"labels": tmp_path / "labels.csv"}
        refine_file(
            path, "batch", model=BatchProx(target="population"), out=out,
            population_key="leiden" if given else None, **options,
        )  # fmt: skip
        result = (
            np.load(out)
            if kind == "npy"
            else getattr(ad, f"read_{kind}")(out).obsm["X_pca_batchprox"]
        )
        np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)

    @BOTH
    def test_single_precision_in_small_chunks(self, adata, data, tmp_path, monkeypatch, target):
        monkeypatch.setattr(stream, "CHUNK_BYTES", 700)
        adata.write_h5ad(tmp_path / "x.h5ad")
        model = refine_file(
            tmp_path / "x.h5ad", "batch", model=BatchProx(target=target), use_rep="small"
        )
        expected = refined(adata.obsm["small"], data[1], target=target)
        result = ad.read_h5ad(tmp_path / "x.h5ad").obsm["small_batchprox"]
        assert result.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
        assert model.moments_.n_cells == len(expected)

    @BOTH
    def test_the_paper_s_optimiser_on_a_file(self, adata, tmp_path, target):
        adata.write_h5ad(tmp_path / "x.h5ad")
        model = BatchProx(target=target, solver="adam", rounds=1)
        with pytest.raises(ValueError, match="Expected solver='exact' for target='population'"):
            refine_file(tmp_path / "x.h5ad", "batch", model=model, out=tmp_path / "y.h5ad")
        assert not (tmp_path / "y.h5ad").exists()

    def test_a_file_with_nan_says_where(self, adata, tmp_path, monkeypatch):
        monkeypatch.setattr(stream, "CHUNK_BYTES", 700)
        adata.obsm["X_pca"][321, 2] = np.nan
        adata.write_h5ad(tmp_path / "x.h5ad")
        model = BatchProx(target="population")
        with pytest.raises(ValueError, match="Expected finite values.*row 321, column 2"):
            refine_file(tmp_path / "x.h5ad", "batch", model=model, out=tmp_path / "y.h5ad")
        assert not (tmp_path / "y.h5ad").exists()

    @pytest.mark.parametrize(
        "chunks", [(540, 6), (100, 6), (37, 2), ((1, 0, 300, 239), 6)], ids=str
    )
    @pytest.mark.parametrize("given", [False, True])
    def test_dask(self, data, chunks, given):
        da = pytest.importorskip("dask.array")
        dask = pytest.importorskip("dask")
        Z, batch, leiden = data
        lazy = da.from_array(Z, chunks=chunks)
        population = leiden if given else None
        model = BatchProx(target="population")
        with dask.config.set(scheduler="synchronous"):
            result = model.fit_transform(lazy, batch=batch, population=population)
            assert isinstance(result, da.Array)
            np.testing.assert_allclose(
                result.compute(), refined(Z, batch, population), rtol=1e-10, atol=1e-10
            )
            np.testing.assert_array_equal(
                model.transform(lazy, batch=batch).compute(), model.transform(Z, batch=batch)
            )

    @BOTH
    def test_dask_arrays_arrive_too(self, grow, target):
        da = pytest.importorskip("dask.array")
        Z, codes = some_of(grow, 0, 2, 3)
        model = grown(grow, target, [0, 1])
        model.partial_fit(da.from_array(Z, chunks=(50, 6)), batch=codes)
        assert_same(model, grown(grow, target, [0, 1], [0, 2, 3]))

    def test_sparse_dask_blocks(self, data):
        da = pytest.importorskip("dask.array")
        Z, batch, _ = data
        Z = np.where(Z > 0, Z, 0.0)
        lazy = da.from_array(Z, chunks=(100, 6)).map_blocks(sp.csr_matrix)
        np.testing.assert_allclose(
            refined(lazy, batch).compute(), refined(Z, batch), rtol=1e-10, atol=1e-10
        )

    def test_dask_nan_says_where(self, data):
        da = pytest.importorskip("dask.array")
        Z, batch, _ = data
        Z = Z.copy()
        Z[321, 2] = np.nan
        with pytest.raises(ValueError, match="Expected finite values.*row 321, column 2"):
            refined(da.from_array(Z, chunks=(100, 6)), batch)

    def test_anndata(self, adata, data, tmp_path):
        Z, batch, leiden = data
        refine(adata, "batch", target="population")
        np.testing.assert_array_equal(adata.obsm["X_pca_batchprox"], refined(Z, batch))
        refine(adata, "batch", target="population", population_key="leiden", key_added="mine")
        np.testing.assert_array_equal(adata.obsm["mine"], refined(Z, batch, leiden))
        refine(adata, "batch", target=PopulationTarget(conditioned=False), key_added="per_batch")
        adata.write_h5ad(tmp_path / "x.h5ad")
        back = ad.read_h5ad(tmp_path / "x.h5ad")
        assert "population" in str(back.uns["mine"]["params"]["target"])
        np.testing.assert_array_equal(back.obsm["mine"], adata.obsm["mine"])

    def test_anndata_bad_populations(self, adata):
        for options, error, message in [
            ({"population_key": "leiden"}, ValueError, "only with target='population'"),
            ({"population_key": "nope", "target": "population"}, KeyError, "nope"),
        ]:
            with pytest.raises(error, match=message):
                refine(adata, "batch", **{"target": "moment"} | options)
        adata.obs["holes"] = adata.obs["leiden"].astype(object).where(adata.obs["leiden"] != "2")
        with pytest.raises(ValueError, match="Expected a population"):
            refine(adata, "batch", target="population", population_key="holes")
        assert set(adata.obsm) == {"X_pca", "small"}

    def test_command_line(self, adata, data, tmp_path):
        Z, batch, leiden = data
        path, out, model = (tmp_path / name for name in ("x.h5ad", "y.h5ad", "m.safetensors"))
        adata.write_h5ad(path)

        refine_it = ["refine", path, "--batch-key", "batch", "--target", "population"]
        run(*refine_it, "--population-key", "leiden", "--out", out, "--model", model)
        np.testing.assert_allclose(
            ad.read_h5ad(out).obsm["X_pca_batchprox"], refined(Z, batch, leiden), atol=1e-9
        )
        run("apply", path, "--model", model, "--out", tmp_path / "z.h5ad")
        np.testing.assert_allclose(
            ad.read_h5ad(tmp_path / "z.h5ad").obsm["X_pca_batchprox"],
            refined(Z, batch, leiden),
            atol=1e-9,
        )
        facts = answer("inspect", model)
        assert facts["batches"] == list("abcde")
        said = run("inverse", out, "--model", model, "--out", tmp_path / "w.h5ad", code=2).output
        assert "a row per population" in " ".join(said.split())
        assert not (tmp_path / "w.h5ad").exists()
        run(*refine_it, "--per-batch", "--seed", "3", "--out", out)
        target = PopulationTarget(conditioned=False, seed=3)
        np.testing.assert_allclose(
            ad.read_h5ad(out).obsm["X_pca_batchprox"],
            refined(Z, batch, target=target),
            atol=1e-9,
        )
        run(
            "refine",
            path,
            "--batch-key",
            "batch",
            "--population-key",
            "leiden",
            "--target",
            "moment",
            "--out",
            out,
            code=2,
        )

    def test_sites_that_send_populations(self, grow):
        """Federated: the sites' descriptions of their cells are enough."""
        sites = []
        for b in range(5):
            Z, codes = some_of(grow, b)
            blank = BatchProx(target="population")
            sites.append(blank.describe(in_memory(Z, codes)))
        merged = sites[3]
        for other in (0, 4, 1, 2):
            merged = merged.merge(sites[other])
        model = BatchProx(target="population").fit_moments(merged)
        assert_same(model, grown(grow, "population", range(5)))
