"""The demonstration: three sites as processes of the command, from counts to refined cells."""

import os
from pathlib import Path

import pytest

from scbatchprox.demo.federated import run
from scbatchprox.errors import InputError
from scbatchprox.federated import POPULATION


def processes(mark):
    """Commands of processes that were started for a folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in command and int(folder.name) != os.getpid():
            found.append(command)
    return found


CASES = [
    pytest.param("population", False, id="folder"),
    pytest.param("moment", True, marks=pytest.mark.flower, id="flower"),
]


@pytest.mark.parametrize(("target", "flower"), CASES)
def test_three_sites_equal_one_place(tmp_path, capsys, target, flower):
    found = run(tmp_path / "demo", target=target, flower=flower)
    assert found["difference"] < 1e-9
    assert found["moved"] > 0.1
    printed = capsys.readouterr().out
    assert "What each party saw" in printed
    assert "largest difference to the fit to all cells in one place" in printed
    # The demonstration promises no more than the guide.
    assert (POPULATION in printed) is (target == "population")
    assert "nobody" not in printed
    assert not processes(str(tmp_path))


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="Expected an empty folder"):
        run(tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]
