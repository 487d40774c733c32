"""Text that the commands of ``scbatchprox atlas`` print: versions, batches and judgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["judgement", "names", "records"]


def names(counts: list[dict[str, Any]]) -> str:
    """List batches with their numbers of cells; only the first few of many."""
    shown = [f"{count['batch']} ({count['n_cells']:,})" for count in counts[:8]]
    more = f", ... ({len(counts)} in all)" * (len(counts) > 8)
    return ", ".join(shown) + more


def judgement(batch: Any, row: Any) -> str:
    """Return the judgement on a batch as text."""
    sentence = f"{batch} ({row['n_cells']:,} cells) is {row['verdict']}."
    from ..diagnosis.verdict import FIRST

    if row["level"] != FIRST:
        sentence += f" Nearest is {row['nearest']} ({row['nearest_distance']:.2f} spreads)"
        ratio = row["spread_ratio"]
        if ratio == ratio:  # not NaN
            sentence += f"; its spread is {ratio:.2f} times that of the atlas' batches"
        sentence += f"; the adapter moves it by {row['moved']:.2f} of its own spread."
        if "matched" in row and row["matched"] == row["matched"]:
            sentence += f" {row['matched']:.0%} of its cells meet the atlas."
        sentence += f" Advice: {row['advice']}."
    if "far_cells" in row:
        from ..atlas.judging import CELL_FAR

        share = row["far_cells"] / row["n_cells"]
        sentence += (
            f" {row['far_cells']:,} cells ({share:.1%}) are far from all batches of the atlas "
            f"(score above {CELL_FAR:g})."
        )
    return sentence


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, which has no NaN."""
    rows = table.reset_index().to_dict("records")
    return [{str(k): None if v != v else v for k, v in row.items()} for row in rows]
