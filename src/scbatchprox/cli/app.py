"""The command ``scbatchprox``, and the commands for files and models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._version import __version__
from ..errors import BadValue
from . import options as o
from .atlas import atlas
from .embed import embed
from .evaluate import evaluate
from .federated import federated
from .output import Output, PlainGroup
from .report import report

if TYPE_CHECKING:
    import pandas as pd

    from ..api.estimator import BatchProx

__all__ = ["app"]

app = typer.Typer(
    name="scbatchprox",
    cls=PlainGroup,
    help="Refine single-cell embeddings batch by batch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(atlas)
app.add_typer(embed)
app.add_typer(federated)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Example: `scbatchprox refine cells.h5ad --batch-key sample --out refined.h5ad`"
)
@o.takes_method(everything=True)
def refine(
    path: o.In,
    batch_key: o.BatchKey,
    use_rep: o.UseRep = None,
    key_added: o.KeyAdded = None,
    out: o.Out = None,
    in_place: o.InPlace = False,
    labels: o.LabelsFile = None,
    model: o.ModelOut = None,
    population_key: o.PopulationKey = None,
    keep: o.Keep = None,
    *,
    dask: o.Dask = False,
    scheduler: o.Scheduler = None,
    diagnose: o.Diagnose = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
    **method: Any,
) -> None:
    """Fit an adapter to the cells of a file, and write the refined cells."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors(), output.progress() as progress:
        from ..api.files import refine_file

        wanted = o.model_of(method)
        target_path = o.result_path(out, in_place, path=path, labels=labels, model=model)
        if model is not None:
            from ..io.atomic import check_place

            check_place(model)  # before the cells are read
            if not model.resolve().parent.is_dir():
                raise BadValue(f"Expected a folder for --model, found none at {model.parent}.")
        fitted = refine_file(
            path,
            batch_key,
            model=wanted,
            use_rep=use_rep,
            key_added=key_added,
            out=target_path,
            labels=labels,
            population_key=population_key,
            keep=keep,
            diagnose=diagnose,
            cluster=o.cluster(dask, scheduler),
            progress=progress,
        )
        fitted.provenance_["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        if model is not None:
            fitted.save(model)
    with output.handle_errors():
        output.print_table(fitted.movement())
        if fitted.diagnosis_ is not None:
            output.print_line("", *_verdicts(fitted.diagnosis_, output.width))
        else:
            output.print_line("no verdicts were made; --diagnose gives one per batch")
        output.print_line(
            *(f"wrote {written}" for written in (target_path or path, model) if written)
        )
        output.print_json(
            _facts(fitted) | {"written": str(target_path or path), "model": model and str(model)}
        )


def _mapping(inverse: bool) -> Callable[..., None]:
    """Return the command that applies a saved adapter, or its inverse."""

    def command(
        path: o.In,
        model: o.ModelIn,
        batch_key: o.MaybeBatchKey = None,
        use_rep: o.UseRep = None,
        key_added: o.KeyAdded = None,
        out: o.Out = None,
        in_place: o.InPlace = False,
        labels: o.LabelsFile = None,
        dask: o.Dask = False,
        scheduler: o.Scheduler = None,
        quiet: o.Quiet = False,
        verbose: o.Verbose = False,
        as_json: o.Json = False,
    ) -> None:
        output = Output(quiet, verbose, as_json)
        with output.handle_errors(), output.progress() as progress:
            from ..api.estimator import BatchProx
            from ..api.files import apply_file
            from ..io.formats import kind_of

            target_path = o.result_path(out, in_place, path=path, labels=labels, model=model)
            fitted = BatchProx.load(model)
            known = fitted.provenance_
            keys = batch_key or known.get("batch_key")
            if not keys:
                raise BadValue(f"Expected --batch-key, found none, and {model} does not name one.")
            # Embeddings of these files have names, which the model keeps.
            if kind_of(path) in (".h5ad", ".zarr"):
                use_rep = use_rep or known.get("key_added" if inverse else "use_rep")
                if inverse and use_rep and key_added is None:
                    key_added = f"{use_rep}_inverse"
            record = {"model": model.name, "inverse": inverse, "batch_key": list(keys)}
            apply_file(
                path,
                fitted.adapter_,
                keys,
                inverse=inverse,
                use_rep=use_rep,
                key_added=key_added,
                out=target_path,
                labels=labels,
                record=record | {"version": __version__},
                cluster=o.cluster(dask, scheduler),
                progress=progress,
            )
        with output.handle_errors():
            written = str(target_path or path)
            output.print_line(f"wrote {written}")
            output.print_json({"written": written, "model": str(model), "inverse": inverse})

    return command


app.command(
    "apply",
    help="Refine more cells of batches that a saved model knows.",
    epilog="Example: `scbatchprox apply more.h5ad --model m.safetensors --out more_refined.h5ad`",
)(_mapping(inverse=False))
app.command(
    "inverse",
    help="Map refined cells back to their original coordinates.",
    epilog="Example: `scbatchprox inverse refined.h5ad --model m.safetensors --in-place`",
)(_mapping(inverse=True))


@app.command(epilog="Example: `scbatchprox inspect m.safetensors --json`")
def inspect(
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A model saved by refine --model.")],
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Show a saved model: batches, cells, movement, parameters, and its source."""
    output = Output(False, verbose, as_json)
    with output.handle_errors():
        from ..api.estimator import BatchProx
        from ..io import model_file

        model = BatchProx.load(path)
        written_by = model_file.load(path).written_by
        facts = _facts(model) | {"written_by": f"scbatchprox {written_by}"}
        output.print_table(model.movement())
        for part in ("params", "provenance"):
            output.print_line("", part)
            for name, value in facts[part].items():
                output.print_line(f"  {name:<18} {value}")
        output.print_line("", f"{facts['written_by']}; {model.n_features_in_} coordinates")
        output.print_json(facts)


@app.command(epilog="Example: `scbatchprox demo --out demo-output`")
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo-output"),
    data: Annotated[str, typer.Option(help="Which table of the paper to simulate.")] = "pbmc4",
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    verbose: o.Verbose = False,
) -> None:
    """Simulate a data set of the paper, refine it, score it and plot it."""
    with Output(verbose=verbose).handle_errors():
        from ..demo.refinement import run

        run(out, data=data, seed=seed)


app.command(
    epilog="Example: `scbatchprox evaluate refined.h5ad --batch-key sample --label-key cell_type "
    "--reps X_pca,X_pca_batchprox`"
)(evaluate)
app.command(
    epilog="Example: `scbatchprox report cells.h5ad --batch-key sample --label-key cell_type "
    "-o report.html`"
)(report)


@app.command(
    epilog="Example: `scbatchprox diagnose cells.h5ad --batch-key sample --keep condition`"
)
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
            output.print_line("", *_verdicts(table, None))
        else:
            from ..diagnosis.table import diagnosis_lines

            output.print_line(*diagnosis_lines(table, output.width))
        columns = {str(name): values.tolist() for name, values in table.items()}
        output.print_json({"batches": fitted.batches_.tolist(), "diagnosis": columns})


def _verdicts(table: pd.DataFrame, width: int | None) -> list[str]:
    """Return a line per batch for a file, or sentences for a screen with one per verdict."""
    if width is None:
        return [f"{batch}: {verdict}" for batch, verdict in table["verdict"].items()]
    from ..diagnosis.table import verdict_lines

    return verdict_lines(table, width)


def _facts(model: BatchProx) -> dict[str, Any]:
    from ..io.model_file import params_as_json

    movement = model.movement()
    return {
        "batches": model.batches_.tolist(),
        "movement": {str(name): movement[name].tolist() for name in movement},
        "params": params_as_json(model.get_params(deep=False)),
        "rounds": model.rounds_,
        "converged": model.converged_,
        "diagnosis": None
        if model.diagnosis_ is None
        else {str(name): values.tolist() for name, values in model.diagnosis_.items()},
        "history": {name: value.tolist() for name, value in vars(model.history_).items()},
        "evidence": {name: value.tolist() for name, value in vars(model.evidence_).items()},
        "provenance": model.provenance_,
    }
