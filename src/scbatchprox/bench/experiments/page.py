"""The page of an experiment: what was asked, what came out, what the paper has, how to get it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pandas as pd

__all__ = ["MEANINGS", "NAMES", "Story", "beside", "mean_sd", "render", "summary", "versions"]

#: How identifiers are called on pages and pictures.
NAMES = {
    "dataset": "data",
    "pca": "PCA",
    "scvi": "scVI",
    "scarches": "scArches",
    "random": "random (control)",
    "labels": "cell types (control)",
    "unrefined": "unrefined",
    "harmony": "Harmony",
    "batchprox": "scBatchProx exact",
    "batchprox_adam": "scBatchProx Adam",
    "batchprox_population": "scBatchProx population",
    "batchprox_frozen": "scBatchProx frozen",
    "batchprox_refit": "scBatchProx refit",
    "batchprox_population_frozen": "scBatchProx population frozen",
    "batchprox_population_refit": "scBatchProx population refit",
    "macro_f1": "macro-F1",
    "macro_f1_split": "macro-F1, other splits",
    "affected_f1": "affected F1",
    "lobo_f1": "leave-one-batch-out F1",
    "ilisi_30": "iLISI",
    "mixing_within_types": "mixing within types",
    "over_correction": "over-correction",
    "variance_kept": "variance kept within batch and type",
    "neighbours_kept_in_batch": "neighbours kept within batch",
    "displacement_error": "displacement error",
    "displacement_relative": "of that of doing nothing",
    "silhouette": "cell-type silhouette",
    "nmi": "NMI",
    "ari": "ARI",
    "asw_cell": "cell-type ASW",
    "isolated_f1": "isolated-label F1",
    "clisi": "cLISI",
    "asw_batch": "batch ASW",
    "ilisi": "iLISI (scIB)",
    "kbet": "kBET",
    "graph_connectivity": "graph connectivity",
    "pcr": "PCR",
    "bio": "Bio",
    "batch": "Batch",
    "overall": "Overall",
    "seconds": "seconds",
    "seconds_upstream": "upstream seconds",
}
#: What scores of neighbourhoods are, in the words of pages.
MEANINGS = (
    "Mixing within types: diversity of batches among the 30 nearest neighbours of the same type, over what "
    "the batches' shares of that type allow; batches with fewer than five of its cells are left out. "
    "Over-correction: part of the neighbours from other batches that are of another type; lower is better. "
    "Variance kept: within the cells of one type in one batch, after over before. Neighbours kept: of 30 "
    "within the own batch."
)
_PACKAGES = (
    *("scbatchprox", "numpy", "scikit-learn", "anndata", "scanpy", "harmonypy", "scib-metrics"),
    *("scvi-tools", "torch", "rdkit"),
)


@dataclass(frozen=True)
class Story:
    """What an experiment has to say about its rows.

    Attributes
    ----------
    findings
        Sentences that follow from the numbers.
    tables
        Titles and tables, ready to print.
    notes
        How things were measured.
    """

    findings: Sequence[str]
    tables: Mapping[str, pd.DataFrame]
    notes: Sequence[str] = field(default_factory=list)


def summary(rows: pd.DataFrame, by: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return "mean ± sd" of each metric over the rows of each group, groups in order of appearance."""
    keys = rows[list(by)].drop_duplicates()
    columns = {metric: mean_sd(rows, by, metric) for metric in metrics}
    table = keys.copy()
    for metric, values in columns.items():
        table[metric] = [values.get(key, "") for key in keys.itertuples(index=False, name=None)]
    return table.reset_index(drop=True)


def mean_sd(rows: pd.DataFrame, by: Sequence[str], metric: str) -> dict[tuple[str, ...], str]:
    """Return "mean ± sd" of a metric by group; a single value has no spread."""
    chosen = rows[(rows["metric"] == metric) & rows["value"].notna()]
    said = {}
    for key, values in chosen.groupby(list(by), observed=True)["value"]:
        several = len(values) > 1
        said[key] = beside(values.mean(), values.std(ddof=1) if several else None)
    return said


def beside(mean: float, sd: float | None = None) -> str:
    """Print a number with its spread."""
    digits = 3 if abs(mean) < 100 else 1
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")


def render(
    title: str,
    question: str,
    command: str,
    story: Story,
    picture: str | None,
    rows: pd.DataFrame,
    left_out: Mapping[str, str],
    unfinished: int = 0,
) -> str:
    """Return the page as markdown."""
    lines = [f"# {title}", "", question, "", "```console", command, "```", ""]
    if unfinished:
        lines += [
            f"**Incomplete: {unfinished} rows are still to come; run it again to go on.**",
            "",
        ]
    lines += ["## What came out", "", *(f"- {finding}" for finding in story.findings), ""]
    for name, table in story.tables.items():
        lines += [f"### {name}", "", _markdown(table), ""]
    lines += [f"![{title}]({picture})", ""] if picture else []
    lines += ["## How it was measured", "", *(f"- {note}" for note in story.notes), ""]
    failed = rows[rows["status"] == "failed"]
    if left_out or len(failed):
        lines += ["## What is not here", ""]
        lines += [f"- {name}: {reason}" for name, reason in left_out.items()]
        for reason, group in failed.groupby("reason", sort=False):
            who = group[["dataset", "upstream", "method"]].drop_duplicates()
            named = "; ".join(", ".join(NAMES.get(x, x) for x in row) for row in who.to_numpy())
            lines.append(f"- {len(group)} rows failed ({named}): {reason}")
        lines.append("")
    made_with = ", ".join(f"{name} {number}" for name, number in versions().items())
    return "\n".join([*lines, f"Made with {made_with}.", ""])


def versions() -> dict[str, str]:
    """Return the versions of the packages that the numbers come from."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _markdown(table: pd.DataFrame) -> str:
    cells = [[_cell(value) for value in row] for row in table.itertuples(index=False, name=None)]
    head = [NAMES.get(str(name), str(name)) for name in table.columns]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *cells]]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else beside(float(value))
    return NAMES.get(str(value), str(value)).replace("|", "\\|")
