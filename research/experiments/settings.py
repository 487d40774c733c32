"""Settings of an experiment, with the paper's choices as defaults, and a file that changes them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from scbatchprox.core.checks import one_of, some_of
from scbatchprox.errors import BadFile, BadKey, BadValue
from scbatchprox.evaluate.scib_scores import PROFILES
from scbatchprox.upstream.components import N_COMPONENTS, N_HVGS

from ..baselines import METHODS, UPSTREAMS, Recipe

__all__ = ["Settings", "choice", "names", "read_config"]


def choice(default: Any) -> Any:
    """Return a field that selects rows; other fields change how a row is computed."""
    return field(default=default, metadata={"choice": True})


@dataclass(frozen=True)
class Settings:
    """Settings that all experiments share.

    Attributes
    ----------
    data
        Names of data sets, or files.
    runs
        Repetitions of a row; the page of the experiment describes how they differ.
    upstreams, methods
        Names of :data:`~research.baselines.UPSTREAMS` for data with counts (other data have an
        embedding), and of :data:`~research.baselines.METHODS`.
    controls
        Whether to add the random embedding and the one made from cell types.
    seed
        Seed of everything random; run r adds r to it.
    n_components, n_hvgs, scvi_epochs, reference
        Options of the upstreams; see :class:`~research.baselines.Recipe`.
    profile
        ``"full"`` or ``"fast"`` scores.
    max_cells
        Use a random sample of this many cells, the same share of every type in every batch.
    batch_key, label_key, use_rep
        Names of the batches, cell types and embedding in a file; with ``use_rep`` this embedding is the
        only upstream.
    """

    known_methods: ClassVar[tuple[str, ...]] = tuple(METHODS)

    data: tuple[str, ...] = choice(())
    runs: int = choice(5)
    upstreams: tuple[str, ...] = choice(("pca", "scvi"))
    methods: tuple[str, ...] = choice(
        ("unrefined", "harmony", "batchprox", "batchprox_adam", "batchprox_population")
    )
    controls: bool = choice(True)
    seed: int = 0
    n_components: int = N_COMPONENTS
    n_hvgs: int = N_HVGS
    scvi_epochs: int | None = None
    reference: tuple[str, ...] | None = None
    profile: str = "full"
    max_cells: int | None = None
    batch_key: str = "batch"
    label_key: str = "cell_type"
    use_rep: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("runs", 1), ("seed", 0), ("n_components", 1), ("n_hvgs", 1)):
            if getattr(self, name) < least:
                raise BadValue(f"Expected {name} >= {least}, found {getattr(self, name)}.")
        for what, known in (("upstreams", UPSTREAMS), ("methods", self.known_methods)):
            unknown = [name for name in getattr(self, what) if name not in known]
            if unknown:
                raise BadValue(
                    f"Expected known {what}, found {some_of(unknown)}; available: "
                    f"{some_of(known, most=20)}."
                )
        one_of("profile", self.profile, PROFILES)

    @property
    def recipe(self) -> Recipe:
        """Options of the upstreams."""
        return Recipe(self.n_components, self.n_hvgs, self.scvi_epochs, self.reference, self.seed)

    @property
    def upstream_note(self) -> str:
        """A note on the upstreams, for the page."""
        said = f"PCA: {self.n_components} components of {self.n_hvgs:,} highly variable genes."
        if "scvi" not in self.upstreams:
            return said
        epochs = "scVI's own number of" if self.scvi_epochs is None else self.scvi_epochs
        return f"{said} scVI and its surgery: {epochs} epochs, seed {self.seed}, on CPU."

    def of_a_row(self) -> dict[str, Any]:
        """Return the settings that change the numbers in a row, without those that select rows."""
        selecting = {f.name for f in fields(self) if f.metadata.get("choice")}
        return {name: value for name, value in asdict(self).items() if name not in selecting}


def names(settings: Settings) -> list[str]:
    """Return the names of all settings."""
    return [f.name for f in fields(settings)]


def read_config(path: str | Path, known: Mapping[str, Settings]) -> dict[str, dict[str, Any]]:
    """Read settings from a TOML file.

    Parameters
    ----------
    path
        Keys at the top are for every experiment with such a setting. Keys in a table named after an
        experiment are only for it, and override those at the top.
    known
        The experiments that will run, and their settings before the file is read.

    Returns
    -------
    dict
        For each experiment, the settings in the file.
    """
    if not Path(path).is_file():
        raise BadFile(f"Expected a TOML file with settings, found no file at {path}.")
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"Expected a TOML file with settings, found {path} ({error}).") from None
    tables = {name: value for name, value in given.items() if isinstance(value, dict)}
    common = {name: value for name, value in given.items() if name not in tables}
    for name in common:
        if not any(name in names(settings) for settings in known.values()):
            available = sorted({c for settings in known.values() for c in names(settings)})
            raise BadKey(
                f"Expected a setting in {path}, found {name!r}; available: "
                f"{some_of(available, most=40)}."
            )
    changes = {}
    for experiment, settings in known.items():
        own = tables.get(experiment, {})
        for name in own:
            if name not in names(settings):
                raise BadKey(
                    f"Expected a setting of {experiment} in {path}, found {name!r}; available: "
                    f"{some_of(names(settings), most=40)}."
                )
        wanted = {name: value for name, value in common.items() if name in names(settings)} | own
        hints = get_type_hints(type(settings))
        changes[experiment] = {
            name: _as(value, hints[name], f"{name} in {path}") for name, value in wanted.items()
        }
    return changes


def _as(value: Any, hint: Any, what: str) -> Any:
    """Return a value of TOML as the type of a field; another type is an error."""
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    for kind in kinds:
        if get_origin(kind) is tuple and isinstance(value, list):
            return tuple(_as(item, get_args(kind)[0], what) for item in value)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (int, str, bool) and type(value) is kind:
            return value
    name = str(hint) if get_args(hint) else hint.__name__
    raise BadValue(f"Expected {what} to be {name}, found {value!r}.")
