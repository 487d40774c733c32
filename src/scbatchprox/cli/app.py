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
from .command import command
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


@command(app, "scbatchprox refine cells.h5ad --batch-key sample --out refined.h5ad")
def refine(
    output: Output,
    *,
    source: o.CellFileOptions,
    key_added: o.KeyAdded = None,
    result: o.Result,
    model: o.ModelOut = None,
    method: Annotated[dict[str, Any], o.method_flags(everything=True)],
    cluster: o.Cluster,
    diagnose: Annotated[
        bool | None,
        o.printing(
            "--diagnose/--no-diagnose",
            help="Print a verdict per batch, or check nothing. By default --target population prints "
            "verdicts, and --target moment only warns, after a quick look, if it is wrong for these batches.",
        ),
    ] = None,
) -> None:
    """Fit an adapter to the cells of a file, and write the refined cells."""
    from ..api.files import refine_file
    from ..io.atomic import check_place

    wanted = o.model_of(method)
    out = result.place(path=source.path, labels=source.labels, model=model)
    if model is not None:
        check_place(model)  # before the cells are read
        if not model.resolve().parent.is_dir():
            raise BadValue(f"Expected a folder for --model, found none at {model.parent}.")
    with output.progress() as progress:
        fitted = refine_file(
            **vars(source), model=wanted, key_added=key_added, out=out, diagnose=diagnose,
            cluster=cluster.address(), progress=progress,
        )  # fmt: skip
        fitted.provenance_["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        if model is not None:
            fitted.save(model)
    output.print_table(fitted.movement())
    if fitted.diagnosis_ is not None:
        output.print_line("", *_verdicts(fitted.diagnosis_, output.width))
    else:
        output.print_line("no verdicts were made; --diagnose gives one per batch")
    written = out or source.path
    output.print_line(*(f"wrote {path}" for path in (written, model) if path))
    output.print_json(_facts(fitted) | {"written": str(written), "model": model and str(model)})


def _mapping(inverse: bool) -> Callable[..., None]:
    """Return the command that applies a saved adapter, or its inverse."""

    def apply(
        output: Output,
        *,
        path: o.In,
        model: Annotated[Path, o.files("--model", help="A model saved by refine --model.")],
        batch_key: o.MaybeBatchKey = None,
        use_rep: o.UseRep = None,
        key_added: o.KeyAdded = None,
        result: o.Result,
        labels: o.LabelsFile = None,
        cluster: o.Cluster,
    ) -> None:
        from ..api.estimator import BatchProx
        from ..api.files import apply_file
        from ..io.formats import kind_of

        out = result.place(path=path, labels=labels, model=model)
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
        with output.progress() as progress:
            apply_file(
                path, fitted.adapter_, keys, inverse=inverse, use_rep=use_rep, key_added=key_added, out=out,
                labels=labels, record=record | {"version": __version__}, cluster=cluster.address(),
                progress=progress,
            )  # fmt: skip
        written = str(out or path)
        output.print_line(f"wrote {written}")
        output.print_json({"written": written, "model": str(model), "inverse": inverse})

    return apply


command(
    app,
    "scbatchprox apply more.h5ad --model m.safetensors --out more_refined.h5ad",
    name="apply",
    help="Refine more cells of batches that a saved model knows.",
)(_mapping(inverse=False))
command(
    app,
    "scbatchprox inverse refined.h5ad --model m.safetensors --in-place",
    name="inverse",
    help="Map refined cells back to their original coordinates.",
)(_mapping(inverse=True))


@command(app, "scbatchprox inspect m.safetensors --json")
def inspect(
    output: o.NoQuiet,
    path: Annotated[Path, typer.Argument(metavar="MODEL", help="A model saved by refine --model.")],
) -> None:
    """Show a saved model: batches, cells, movement, parameters, and its source."""
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


@command(app, "scbatchprox demo --out demo-output")
def demo(
    output: o.VerboseOnly,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo-output"),
    data: Annotated[str, typer.Option(help="Which table of the paper to simulate.")] = "pbmc4",
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
) -> None:
    """Simulate a data set of the paper, refine it, score it and plot it."""
    from ..demo.refinement import run

    run(out, data=data, seed=seed)


command(
    app,
    "scbatchprox evaluate refined.h5ad --batch-key sample --label-key cell_type "
    "--reps X_pca,X_pca_batchprox",
)(evaluate)
command(
    app, "scbatchprox report cells.h5ad --batch-key sample --label-key cell_type -o report.html"
)(report)


@command(app, "scbatchprox diagnose cells.h5ad --batch-key sample --keep condition")
def diagnose(
    output: Output,
    *,
    source: o.CellFileOptions,
    method: o.Method,
    cluster: o.Cluster,
) -> None:
    """Tell what refining a file would do to each batch, and on which evidence; writes nothing."""
    from ..api.files import diagnose_file
    from ..diagnosis.table import diagnosis_lines
    from ..diagnosis.verdict import TEXT_COLUMNS

    wanted = o.model_of(method)
    with output.progress() as progress:
        fitted = diagnose_file(
            **vars(source), model=wanted, cluster=cluster.address(), progress=progress
        )
    table = fitted.diagnosis_
    assert table is not None  # diagnose_file always makes one
    if output.width is None:
        output.print_table(table.drop(columns=list(TEXT_COLUMNS)))
        output.print_line("", *_verdicts(table, None))
    else:
        output.print_line(*diagnosis_lines(table, output.width))
    output.print_json({"batches": fitted.batches_.tolist(), "diagnosis": _columns(table)})


def _verdicts(table: pd.DataFrame, width: int | None) -> list[str]:
    """Return a line per batch for a file, or sentences for a screen with one per verdict."""
    if width is None:
        return [f"{batch}: {verdict}" for batch, verdict in table["verdict"].items()]
    from ..diagnosis.table import verdict_lines

    return verdict_lines(table, width)


def _facts(model: BatchProx) -> dict[str, Any]:
    from ..io.model_file import params_as_json

    return {
        "batches": model.batches_.tolist(),
        "movement": _columns(model.movement()),
        "params": params_as_json(model.get_params(deep=False)),
        "rounds": model.rounds_,
        "converged": model.converged_,
        "diagnosis": None if model.diagnosis_ is None else _columns(model.diagnosis_),
        "history": _columns(vars(model.history_)),
        "evidence": _columns(vars(model.evidence_)),
        "provenance": model.provenance_,
    }


def _columns(table: pd.DataFrame | dict[str, Any]) -> dict[str, Any]:
    return {str(name): values.tolist() for name, values in table.items()}
