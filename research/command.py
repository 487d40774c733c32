"""The command ``python -m research``: the paper's tables and figures, on its data or on yours."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from scbatchprox.choices import Profiles
from scbatchprox.cli import options as o
from scbatchprox.cli.output import Output
from scbatchprox.errors import BadFile, BadValue

__all__ = ["NAMES", "app"]

#: Experiments, in the order in which ``--all`` runs them. Help shows them before anything is loaded.
NAMES = (
    "classify", "imbalance", "continual", "cumulative", "molecules", "ablation", "rounds", "planted",
    "sensitivity", "without_effect", "federated_rounds",
)  # fmt: skip
_DATA, _HOW = "Data", "How"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command(
    epilog="Example: `python -m research classify --data my.h5ad --out results`",
)
def research(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help=f"{', '.join(NAMES[:-1])} or {NAMES[-1]}.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for results; an interrupted run continues there.")
    ] = Path("bench-output"),
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="An .h5ad or .zarr file, or the name of a data set; repeat for several.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    batch_key: Annotated[
        str | None, typer.Option(help="Column of obs with batches.", rich_help_panel=_DATA)
    ] = None,
    label_key: Annotated[
        str | None, typer.Option(help="Column of obs with cell types.", rich_help_panel=_DATA)
    ] = None,
    use_rep: Annotated[
        str | None,
        typer.Option(
            help="Start from this embedding in obsm, not from counts.", rich_help_panel=_DATA
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of data sets; by default $SCBATCHPROX_DATA.", rich_help_panel=_DATA
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings.", rich_help_panel=_HOW)
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few cells and few epochs.", rich_help_panel=_HOW),
    ] = False,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Number of repetitions.", rich_help_panel=_HOW)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of random numbers.", rich_help_panel=_HOW)
    ] = None,
    profile: Annotated[
        Profiles | None, typer.Option(help="All scores, or the fast ones.", rich_help_panel=_HOW)
    ] = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Run an experiment of the paper, on its data or on yours, and write a page about it."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from .datasets import data_folder
        from .experiments import EXPERIMENTS, read_config, run

        chosen = _chosen(name, everything, tuple(EXPERIMENTS))
        if data_dir is not None:
            data_folder(data_dir)  # an error now, not a reason to leave data out later
        given = {
            "data": tuple(data) if data else None,
            "batch_key": batch_key,
            "label_key": label_key,
            "use_rep": use_rep,
            "runs": runs,
            "seed": seed,
            "profile": profile.value if profile else None,
        }
        changed = {key: value for key, value in given.items() if value is not None}
        settings = {
            which: replace(
                EXPERIMENTS[which].settings, **(EXPERIMENTS[which].quick if quick else {})
            )
            for which in chosen
        }
        from_file = read_config(config, settings) if config else {}
        settings = {
            which: replace(default, **(from_file.get(which, {}) | changed))
            for which, default in settings.items()
        }
        facts: dict[str, Any] = {}
        for which in chosen:
            command = _command(which, given, config, quick, out)
            with output.progress(cells=False) as progress:
                try:
                    done = run(
                        EXPERIMENTS[which],
                        settings[which],
                        out,
                        command=command,
                        data_dir=data_dir,
                        insist=bool(data) and not everything,
                        progress=progress,
                        note=output.print_note,
                    )
                except KeyboardInterrupt:
                    output.print_note(
                        f"Finished rows are kept in {out}; run the same command to continue."
                    )
                    raise
            facts[which] = _report(output, which, done)
        if not any(found["rows"] for found in facts.values()):
            reasons = " ".join(r for found in facts.values() for r in found["left_out"].values())
            raise BadFile(f"Expected data to run on, found none. {reasons}")
        output.print_json({"experiments": facts})


def _chosen(name: str | None, everything: bool, known: tuple[str, ...]) -> tuple[str, ...]:
    if everything == (name is not None):
        found = f"both {name!r} and --all" if everything else "neither"
        raise BadValue(
            f"Expected the name of an experiment or --all, found {found}; available: {', '.join(known)}."
        )
    if name is not None and name not in known:
        raise BadValue(
            f"Expected the name of an experiment, found {name!r}; available: {', '.join(known)}."
        )
    return known if everything else (str(name),)


def _command(name: str, given: dict[str, Any], config: Path | None, quick: bool, out: Path) -> str:
    """Return the command that reproduces the page on any machine."""
    words = ["python", "-m", "research", name, *(["--quick"] if quick else [])]
    for key, value in given.items():
        for item in value if isinstance(value, tuple) else () if value is None else (value,):
            words += [f"--{key.replace('_', '-')}", _portable(item)]
    words += ["--config", _portable(config)] if config else []
    return shlex.join([*words, "--out", _portable(out)])


def _portable(word: object) -> str:
    """Return a word of a command; of an absolute path, only the name."""
    return Path(str(word)).name if Path(str(word)).is_absolute() else str(word)


def _report(output: Output, name: str, done: Any) -> dict[str, Any]:
    rows = done.rows
    tried = rows.drop_duplicates(list(rows.columns[:7]))
    failed = tried[tried["status"] == "failed"]
    output.print_line(f"{name}: {len(tried)} rows, {done.reused} of them from an earlier run")
    for sentence in done.findings:
        output.print_line(f"  {sentence}")
    for data, reason in done.left_out.items():
        output.print_line(f"  without {data}: {reason}")
    for reason, group in failed.groupby("reason", sort=False):
        output.print_line(f"  {len(group)} rows failed: {reason}")
    for path in done.written:
        output.print_line(f"wrote {path}")
    return {
        "rows": len(tried),
        "reused": done.reused,
        "failed": len(failed),
        "reasons": sorted(set(failed["reason"])),
        "left_out": done.left_out,
        "findings": done.findings,
        "written": [str(path) for path in done.written],
    }
