"""Run an experiment: load data, do the jobs that are not done, write rows, page and picture."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from scbatchprox.api.estimator import BatchProx
from scbatchprox.errors import BadValue, InputError
from scbatchprox.io.atomic import replacing
from scbatchprox.plots.canvas import DPI
from scbatchprox.progress import Progress, silent

from ..datasets import Dataset
from ..datasets.folder import data_folder
from .experiment import Experiment, Outcome
from .journal import Job, Journal, Mark
from .page import Report, render
from .settings import Settings
from .trial import EmbeddingStore, Trial, sample

__all__ = ["run"]

#: A part of the log of the package, which the command prints.
log = logging.getLogger("scbatchprox.research")


@dataclass
class _State:
    """The state of a run, so that the page of an interrupted run can be written too."""

    marks: list[Mark] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reused: int = 0


def run(
    experiment: Experiment,
    settings: Settings,
    out: str | Path,
    *,
    command: str = "",
    data_dir: str | Path | None = None,
    insist: bool = False,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda sentence: None,
) -> Outcome:
    """Run an experiment, or the rest of an interrupted one, and write the results.

    ``out`` gets ``NAME.csv`` (all numbers in long form), ``NAME.md`` and ``NAME.png``, and a folder
    ``work`` with the journal and the embeddings, from which an interrupted run continues.

    Parameters
    ----------
    experiment, settings
        The experiment and its settings.
    out
        Folder for the results; it is made if it does not exist. Several experiments may share it.
    command
        The command that was run, for the page.
    data_dir
        Folder of data sets.
    insist
        Raise an error if a data set cannot be loaded; else the page lists it as left out.
    progress
        Called with the data set, the number of jobs done and the number of all jobs.
    note
        Called with a sentence before a slow step.
    """
    out = Path(out)
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    store = EmbeddingStore(work / "embeddings", note)
    state = _State()
    with Journal.open(work / f"{experiment.name}.jsonl") as journal:
        _warm_up()
        try:
            for name in settings.data:
                try:
                    dataset = _data(experiment, name, settings, data_dir, progress, state)
                    trial = Trial(experiment.name, dataset, settings, store)
                    jobs = list(experiment.jobs(trial))
                    state.notes.append(_about(dataset, experiment.about(trial)))
                except (InputError, OSError) as error:
                    if insist:
                        raise
                    # The page is for other readers, so it does not name a folder of this machine.
                    folder = str(data_folder(data_dir))
                    state.left_out[name] = _sentence(error).replace(folder, "the data folder")
                    continue
                _work(trial, jobs, journal, state, progress)
        except (KeyboardInterrupt, SystemExit):  # Lightning raises the latter on Ctrl-C
            _write(experiment, settings, out, command, journal, state)
            raise KeyboardInterrupt from None
        return _write(experiment, settings, out, command, journal, state)


def _data(
    experiment: Experiment,
    name: str,
    settings: Settings,
    data_dir: str | Path | None,
    progress: Progress,
    state: _State,
) -> Dataset:
    dataset = experiment.load(
        name,
        data_dir=data_dir,
        batch_key=settings.batch_key,
        label_key=settings.label_key,
        use_rep=settings.use_rep,
        seed=settings.seed,
        progress=progress,
    )
    if dataset.name in state.names:
        raise BadValue(f"Expected data sets of different names, found {dataset.name!r} twice.")
    state.names.append(dataset.name)
    return sample(dataset, settings.max_cells, settings.seed)


def _about(dataset: Dataset, more: str) -> str:
    batches, types = (dataset.adata.obs[key].nunique() for key in ("batch", "cell_type"))
    said = f"{dataset.name}: {dataset.adata.n_obs:,} cells, {batches} batches, {types} types"
    return "; ".join(part for part in (said, dataset.note, more) if part) + "."


def _work(
    trial: Trial, jobs: list[Job], journal: Journal, state: _State, progress: Progress
) -> None:
    state.marks += [job.mark for job in jobs]
    stage = f"{trial.experiment} {trial.dataset.name}"
    for done, job in enumerate(jobs):
        progress(stage, done, len(jobs))
        if journal.is_done(job):
            state.reused += 1
            continue
        log.info("%s", " ".join(str(part) for part in job.key if part != ""))
        try:
            with np.errstate(all="ignore"):
                journal.finish(job, job.work())
        except Exception as error:
            log.info("failed", exc_info=True)
            journal.fail(job, _sentence(error))
    progress(stage, len(jobs), len(jobs))


def _write(
    experiment: Experiment,
    settings: Settings,
    out: Path,
    command: str,
    journal: Journal,
    state: _State,
) -> Outcome:
    rows = journal.rows(state.marks)
    name = experiment.name
    csv, page, picture = (out / f"{name}.{kind}" for kind in ("csv", "md", "png"))
    with replacing(csv) as temporary:
        rows.to_csv(temporary, index=False)
    written = [csv]
    good = rows[rows["status"] == "ok"]
    report = Report(["No row has a number."], {})
    if len(good):
        report = experiment.report(good, settings)
        written += _draw(experiment, good, picture)
    report = Report(report.findings, report.tables, [*report.notes, *state.notes])
    tried = rows[[*rows.columns[:7]]].drop_duplicates()
    text = render(
        experiment.title,
        experiment.question,
        command,
        report,
        picture.name if picture in written else None,
        rows,
        state.left_out,
        len(state.marks) - len(tried),
    )
    with replacing(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Outcome(rows, list(report.findings), state.left_out, [*written, page], state.reused)


def _draw(experiment: Experiment, rows: pd.DataFrame, path: Path) -> list[Path]:
    try:
        figure = experiment.draw(rows)
    except InputError as error:  # without matplotlib there is no picture, only numbers
        warnings.warn(str(error), UserWarning, stacklevel=2)
        return []
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png")
    return [path]


def _warm_up() -> None:
    """Load compiled code, so that the time of the first row is only that of the method."""
    Z = np.random.default_rng(0).normal(size=(80, 2))
    batch = np.repeat(["a", "b"], 40)
    for solver in ("exact", "adam"):
        BatchProx("moment", solver).fit_transform(Z, batch=batch)
        BatchProx("moment", solver).fit_transform(Z.astype(np.float32), batch=batch)


def _sentence(error: BaseException) -> str:
    """Return the message of an error on one line."""
    said = " ".join(str(error).split())
    return said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"
