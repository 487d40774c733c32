"""The journal of .h5ad files that are changed in place: a commit is complete or undone."""

import os
import signal
import subprocess
import sys

import h5py
import pytest

from anndata_files import contents, make, read, write
from scbatchprox import InputError, refine_file
from scbatchprox.io.formats import journal, open_cells
from scbatchprox.io.formats.h5ad import changing
from scbatchprox.io.formats.journal import JournaledFile, journal_of


class TestJournal:
    @pytest.fixture
    def path(self, rng, tmp_path):
        path = tmp_path / "cells.h5ad"
        write(make(rng), path, "h5ad")
        return path

    def change(self, path, stop_after=None, monkeypatch=None):
        """Refine in place; stop the commit after some of its writes."""
        if stop_after is not None:
            real, count = os.pwrite, []

            def stopping(fd, data, offset):
                if journal_of(path).exists():
                    count.append(offset)
                    if len(count) > stop_after:
                        raise KeyboardInterrupt
                return real(fd, data, offset)

            monkeypatch.setattr(os, "pwrite", stopping)
            # A killed process cannot clean up.
            monkeypatch.setattr(JournaledFile, "discard", lambda self: None)
            monkeypatch.setattr(journal, "_undo", lambda fd, path: None)
        refine_file(path, "batch")

    @pytest.mark.parametrize("stop_after", [0, 1, 2])
    def test_a_kill_during_a_commit_is_undone(self, path, monkeypatch, stop_after):
        before = contents(path)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            self.change(path, stop_after, patch)
        assert journal_of(path).exists()
        with open_cells(path):
            pass
        assert not journal_of(path).exists()
        assert contents(path) == before
        self.change(path)
        assert "X_pca_batchprox" in read(path).obsm

    @pytest.mark.parametrize("stop_after", [0, 1, 2])
    def test_a_failed_commit_is_undone_at_once(self, path, monkeypatch, stop_after):
        before, real, count = path.read_bytes(), os.pwrite, []

        def failing(fd, data, offset):
            if journal_of(path).exists():
                count.append(offset)
                if len(count) == stop_after + 1:
                    raise OSError(5, "Input/output error")
            return real(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing)
            with pytest.raises(OSError, match="Input/output error"):
                refine_file(path, "batch")
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    @pytest.mark.usefixtures("ctrl_c")
    @pytest.mark.parametrize("moment", ["first write", "after the last"])
    def test_ctrl_c_during_a_commit_waits_for_its_end(self, path, monkeypatch, moment):
        real_write, real_unlink, sent = os.pwrite, type(path).unlink, []

        def interrupt():
            if not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGINT)

        def writing(fd, data, offset):
            if moment == "first write" and journal_of(path).exists():
                interrupt()
            return real_write(fd, data, offset)

        def unlinking(self, *args, **options):
            real_unlink(self, *args, **options)
            if moment == "after the last" and self == journal_of(path):
                interrupt()

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", writing)
            patch.setattr(type(path), "unlink", unlinking)
            with pytest.raises(KeyboardInterrupt):
                refine_file(path, "batch")
        assert sent
        assert "X_pca_batchprox" in read(path).obsm
        assert os.listdir(path.parent) == [path.name]

    @pytest.mark.parametrize("method", ["seek", "readinto", "write", "truncate", "flush"])
    def test_ctrl_c_while_hdf5_uses_the_file(self, path, monkeypatch, method):
        before, real, sent = path.read_bytes(), getattr(JournaledFile, method), []

        def interrupting(self, *arguments):
            if not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGINT)
            return real(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(JournaledFile, method, interrupting)
            with pytest.raises(KeyboardInterrupt), changing(path) as file:
                file["obs"].attrs["new"] = 1
        assert sent
        assert path.read_bytes() == before
        with changing(path) as file:
            file["obs"].attrs["new"] = 1
        with h5py.File(path) as file:
            assert file["obs"].attrs["new"] == 1

    def test_another_process_does_not_undo_a_running_commit(self, path, monkeypatch):
        real, answers = os.pwrite, []

        def slow(fd, data, offset):
            if journal_of(path).exists() and not answers:
                script = f"from scbatchprox.io.formats import open_cells; open_cells({str(path)!r})"
                answers.append(
                    subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
                )
            return real(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", slow)
            refine_file(path, "batch")
        assert "found it in use elsewhere" in answers[0].stderr
        assert "X_pca_batchprox" in read(path).obsm

    def test_links_share_the_journal(self, path, tmp_path, monkeypatch):
        (tmp_path / "staged").mkdir()
        link = tmp_path / "staged" / "cells.h5ad"
        link.symlink_to(path)
        before = contents(path)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            self.change(link, 1, patch)
        with open_cells(path):
            pass
        assert contents(path) == before
        self.change(link)
        assert link.is_symlink()
        assert "X_pca_batchprox" in read(path).obsm

    def test_user_block_and_unused_bytes_at_the_end(self, path, tmp_path):
        """After a killed run the file is longer than its content; the superblock gives the end."""
        other = tmp_path / "block.h5ad"
        with h5py.File(path) as a, h5py.File(other, "w", userblock_size=1024) as b:
            for name in a:
                a.copy(name, b)
            b.attrs.update(a.attrs)
        size = other.stat().st_size
        with open(other, "ab") as file:
            file.write(os.urandom(5_000_000))
        journaled = JournaledFile(other)
        assert journaled._old_end == size
        journaled.close()
        self.change(other)
        assert "X_pca_batchprox" in read(other).obsm
        assert other.stat().st_size < 5_000_000

    def test_open_in_the_same_process(self, path):
        with h5py.File(path, "r"), open_cells(path) as file:
            assert file.embedding(None).shape == (900, 6)

    def test_a_changed_file_is_not_undone(self, path, monkeypatch):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            self.change(path, 1, patch)
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(b"changed by another program")
        with pytest.raises(InputError, match="found that it was changed since; delete"):
            open_cells(path)

    def test_only_new_objects_are_written(self, path):
        """Only a few pages of the old content change, for a result of any size."""
        size, before = path.stat().st_size, path.read_bytes()
        self.change(path)
        after = path.read_bytes()
        changed = sum(
            before[k : k + 4096] != after[k : k + 4096] for k in range(0, size // 4096 * 4096, 4096)
        )
        assert changed <= 8
        assert len(after) > size
