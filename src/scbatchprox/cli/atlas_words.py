"""What the commands of ``scbatchprox atlas`` say: versions, batches and judgements in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["done", "in_words", "names", "records"]


def done(entry: dict[str, Any]) -> str:
    """Say what a version did."""
    if entry["action"] == "rollback":
        return f"rollback to {entry['to']}"
    forced = ", forced" * entry["forced"]
    return str(entry["action"]) + (f" ({entry['policy']}{forced})" if entry["policy"] else "")


def names(counts: list[dict[str, Any]]) -> str:
    """List batches with their cells, the first few of many."""
    shown = [f"{count['batch']} ({count['n_cells']:,})" for count in counts[:8]]
    more = f", ... ({len(counts)} in all)" * (len(counts) > 8)
    return ", ".join(shown) + more


def in_words(batch: Any, row: Any) -> str:
    """Say how a batch was judged."""
    sentence = f"{batch} ({row['n_cells']:,} cells) is {row['verdict']}."
    if row["level"] != "first":
        sentence += f" Nearest is {row['nearest']} ({row['nearest_distance']:.2f} spreads)"
        ratio = row["spread_ratio"]
        wide = "" if ratio != ratio else f"; {ratio:.2f} times as wide"
        sentence += f"{wide}; the adapter moves it by {row['moved']:.2f} of its own spread."
        if "partnered" in row:
            sentence += f" {row['partnered']:.0%} of its cells are like something in the atlas."
        sentence += f" Advice: {row['advice']}."
    if "far_cells" in row:
        from ..atlas.judging import CELL_FAR

        share = row["far_cells"] / row["n_cells"]
        sentence += (
            f" {row['far_cells']:,} cells ({share:.1%}) are far from all that the atlas holds "
            f"(beyond {CELL_FAR:g})."
        )
    return sentence


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table for JSON."""
    # There is no NaN in JSON.
    rows = table.reset_index().to_dict("records")
    return [{str(k): None if v != v else v for k, v in row.items()} for row in rows]
