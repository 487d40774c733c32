"""Settings of experiments, from defaults and from a file."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from research.experiments import EXPERIMENTS, read_config
from research.experiments.settings import Settings
from scbatchprox.errors import BadFile, BadKey, BadValue


class TestSettings:
    def config(self, tmp_path, text, *names):
        (tmp_path / "c.toml").write_text(text)
        known = {name: EXPERIMENTS[name].settings for name in names or ("classify",)}
        return read_config(tmp_path / "c.toml", known)

    def test_tables_override_keys_at_the_top(self, tmp_path):
        text = 'runs = 2\nfirst = 3\nreference = ["a"]\n[classify]\nruns = 7\n[rounds]\nruns = 9\n'
        found = self.config(tmp_path, text, "classify", "continual")
        assert found == {
            "classify": {"runs": 7, "reference": ("a",)},
            "continual": {"runs": 2, "first": 3, "reference": ("a",)},
        }

    def test_unknown_settings_are_an_error_that_lists_the_known(self, tmp_path):
        with pytest.raises(BadKey, match="'epochs'; available: .*'scvi_epochs'"):
            self.config(tmp_path, "epochs = 3")
        with pytest.raises(BadKey, match="'first'"):  # a setting of another experiment
            self.config(tmp_path, "first = 3")
        with pytest.raises(BadKey, match="setting of classify .*'grid'"):
            self.config(tmp_path, "[classify]\ngrid = [1]")

    @pytest.mark.parametrize(
        "text",
        ['runs = "5"', "runs = 2.0", "controls = 1", 'data = "pbmc4"', "data = [1]", "seed = true"],
    )
    def test_other_types_are_an_error(self, tmp_path, text):
        with pytest.raises(BadValue, match="Expected .* in .*c.toml to be"):
            self.config(tmp_path, text)

    def test_missing_and_bad_files(self, tmp_path):
        with pytest.raises(BadFile, match="no file"):
            read_config(tmp_path / "none.toml", {})
        with pytest.raises(BadValue, match="TOML"):
            self.config(tmp_path, "runs = = 3")

    def test_bad_values(self):
        for change in ({"runs": 0}, {"seed": -1}, {"profile": "slow"}, {"n_components": 0}):
            with pytest.raises(BadValue, match=next(iter(change))):
                replace(Settings(), **change)
        with pytest.raises(BadValue, match="'combat'; available: .*'harmony'"):
            Settings(methods=("combat",))
        with pytest.raises(BadValue, match="'umap'; available: 'pca'"):
            Settings(upstreams=("umap",))

    def test_which_rows_there_are_does_not_change_a_row(self):
        base = Settings()
        for change in ({"runs": 2}, {"data": ("x",)}, {"methods": ("harmony",)}):
            assert replace(base, **change).of_a_row() == base.of_a_row()
        for change in ({"seed": 2}, {"n_components": 3}, {"profile": "fast"}, {"scvi_epochs": 1}):
            assert replace(base, **change).of_a_row() != base.of_a_row()


def test_the_documented_settings_exist(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "results" / "README.md").read_text()
    (tmp_path / "c.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    known = {name: experiment.settings for name, experiment in EXPERIMENTS.items()}
    for name, changes in read_config(tmp_path / "c.toml", known).items():
        assert changes["n_components"] == 30
        replace(known[name], **changes)
    listed = page.split("All of them:")[1]
    for name in (field.name for field in fields(Settings)):
        assert f"`{name}`" in listed
