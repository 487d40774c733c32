"""``scbatchprox diagnose``: what a refinement would do to each batch of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import options as o
from .output import Output

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["diagnose", "verdicts"]


@o.takes_method()
def diagnose(
    path: o.In,
    batch_key: o.BatchKey,
    use_rep: o.UseRep = None,
    labels: o.LabelsFile = None,
    population_key: o.PopulationKey = None,
    keep: o.Keep = None,
    *,
    dask: o.Dask = False,
    scheduler: o.Scheduler = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
    **method: Any,
) -> None:
    """Tell what refining a file would do to each batch, and on which evidence; writes nothing."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors(), output.progress() as progress:
        from ..api.files import diagnose_file

        wanted = o.model_of(method)
        fitted = diagnose_file(
            path,
            batch_key,
            model=wanted,
            use_rep=use_rep,
            labels=labels,
            population_key=population_key,
            keep=keep,
            cluster=o.cluster(dask, scheduler),
            progress=progress,
        )
    with output.handle_errors():
        from ..diagnosis.verdict import COLUMNS

        table = fitted.diagnosis_
        assert table is not None  # diagnose_file always makes one
        if output.width is None:
            output.print_table(table.drop(columns=list(COLUMNS)))
            output.print_line("", *verdicts(table, None))
        else:
            from ..diagnosis.table import diagnosis_lines

            output.print_line(*diagnosis_lines(table, output.width))
        columns = {str(name): values.tolist() for name, values in table.items()}
        output.print_json({"batches": fitted.batches_.tolist(), "diagnosis": columns})


def verdicts(table: pd.DataFrame, width: int | None) -> list[str]:
    """Return a line per batch for a file, or sentences for a screen with one per verdict."""
    if width is None:
        return [f"{batch}: {verdict}" for batch, verdict in table["verdict"].items()]
    from ..diagnosis.table import verdict_lines

    return verdict_lines(table, width)
