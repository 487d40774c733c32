"""The page of an experiment: question, command, findings, tables with the paper's numbers, methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pandas as pd

from scbatchprox.core.printed_tables import markdown_table

__all__ = [
    *("MEANINGS", "NAMES", "NO_EFFECT", "SENTENCE_NAMES", "Report"),
    *("with_sd", "mean_sd", "render", "summary", "versions"),
]

#: The row of the same cells without a batch effect.
NO_EFFECT = "no batch effect"
#: Display names of identifiers on pages and pictures.
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
    "shuffled_harmony": "Harmony, shuffled batches (control)",
    "shuffled_batchprox_population": "scBatchProx population, shuffled batches (control)",
    "batchprox_frozen": "scBatchProx frozen",
    "batchprox_refit": "scBatchProx refit",
    "batchprox_population_frozen": "scBatchProx population frozen",
    "batchprox_population_refit": "scBatchProx population refit",
    "macro_f1": "macro-F1",
    "macro_f1_split": "macro-F1, other splits",
    "f1_given_batch": "F1 given batch",
    "neighbour_accuracy": "accuracy of types",
    "affected_f1": "affected F1",
    "lobo_f1": "leave-one-batch-out F1",
    "ilisi_30": "iLISI",
    "mixing_within_types": "mixing within types",
    "over_correction": "over-correction",
    "variance_kept": "variance kept within batch and type",
    "neighbours_kept_in_batch": "neighbours kept within batch",
    "displacement_error": "displacement error",
    "displacement_relative": "relative to unrefined",
    "relative_error": "relative error",
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
#: Display names at the start of a sentence, or within one.
SENTENCE_NAMES = NAMES | {
    "macro_f1_split": "Macro-F1",
    "f1_given_batch": "F1 given batch",
    "lobo_f1": "Leave-one-batch-out F1",
    "affected_f1": "Affected F1",
    "drop": "Drop of affected F1",
    "overall": "Overall scIB score",
}
#: Definitions of the scores that use neighbourhoods.
MEANINGS = (
    "Mixing within types: diversity of batches among the 30 nearest neighbours of the same type, divided by "
    "the diversity of batches in that type; batches with fewer than five cells of the type are left out. "
    "Over-correction: share of neighbours of another type, among neighbours from other batches; lower is "
    "better. Variance kept: within the cells of one type in one batch, after divided by before. Neighbours "
    "kept: share of the 30 nearest neighbours within the same batch."
)
_PACKAGES = (
    *("scbatchprox", "numpy", "scikit-learn", "anndata", "scanpy", "harmonypy", "scib-metrics"),
    *("scvi-tools", "torch", "rdkit"),
)


@dataclass(frozen=True)
class Report:
    """The content of a page, made from rows.

    Attributes
    ----------
    findings
        Sentences that follow from the numbers.
    tables
        Tables by title.
    notes
        How things were measured.
    """

    findings: Sequence[str]
    tables: Mapping[str, pd.DataFrame]
    notes: Sequence[str] = field(default_factory=list)


def summary(rows: pd.DataFrame, by: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return "mean ± sd" of each metric for each group, in order of appearance."""
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
        said[key] = with_sd(values.mean(), values.std(ddof=1) if several else None)
    return said


def with_sd(mean: float, sd: float | None = None) -> str:
    """Return a number as text, with its standard deviation if given."""
    digits = 3 if abs(mean) < 100 else 1
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")


def render(
    title: str,
    question: str,
    command: str,
    report: Report,
    picture: str | None,
    rows: pd.DataFrame,
    left_out: Mapping[str, str],
    unfinished: int = 0,
) -> str:
    """Return the page as markdown."""
    lines = [f"# {title}", "", question, "", "```console", command, "```", ""]
    if unfinished:
        lines += [
            f"**Incomplete: {unfinished} rows are missing; run the command again to continue.**",
            "",
        ]
    lines += ["## Findings", "", *(f"- {finding}" for finding in report.findings), ""]
    for name, table in report.tables.items():
        lines += [f"### {name}", "", _markdown(table), ""]
    lines += [f"![{title}]({picture})", ""] if picture else []
    lines += ["## How it was measured", "", *(f"- {note}" for note in report.notes), ""]
    failed = rows[rows["status"] == "failed"]
    if left_out or len(failed):
        lines += ["## Missing data and failed rows", ""]
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
    return markdown_table(head, cells)


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else with_sd(float(value))
    return NAMES.get(str(value), str(value)).replace("|", "\\|")
