"""The journal of .h5ad files that are changed in place: a commit is complete or undone."""

import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest

from anndata_files import contents, journal_of, make, read, write
from command_line import command
from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.io.formats import h5ad, journal, open_cells


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
            monkeypatch.setattr(journal.JournaledFile, "discard", lambda self: None)
            monkeypatch.setattr(journal, "_undo", lambda fd, path: None)
        refine_file(path, "batch", model=BatchProx(target="moment"))

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
                refine_file(path, "batch", model=BatchProx(target="moment"))
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
                refine_file(path, "batch", model=BatchProx(target="moment"))
        assert sent
        assert "X_pca_batchprox" in read(path).obsm
        assert os.listdir(path.parent) == [path.name]

    @pytest.mark.usefixtures("ctrl_c")
    @pytest.mark.parametrize("method", ["seek", "readinto", "write", "truncate", "flush"])
    def test_ctrl_c_while_hdf5_uses_the_file(self, path, monkeypatch, method):
        before, real, sent = path.read_bytes(), getattr(journal.JournaledFile, method), []

        def interrupting(self, *arguments):
            if not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGINT)
            return real(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(journal.JournaledFile, method, interrupting)
            with pytest.raises(KeyboardInterrupt), h5ad.changing(path) as file:
                file["obs"].attrs["new"] = 1
        assert sent
        assert path.read_bytes() == before
        with h5ad.changing(path) as file:
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
            refine_file(path, "batch", model=BatchProx(target="moment"))
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
        journaled = journal.JournaledFile(other)
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


class TestBelieved:
    """A journal is verified before a byte of the file is written."""

    @pytest.fixture
    def interrupted(self, rng, tmp_path_factory):
        """A file whose commit stopped after one page, and its content before."""
        path = tmp_path_factory.mktemp("interrupted") / "cells.h5ad"
        write(make(rng), path, "h5ad")
        before = contents(path)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            TestJournal().change(path, 1, patch)
        return path, before

    @pytest.fixture
    def path(self, interrupted, tmp_path):
        """A copy of the file and its journal, which is restored as well as the original."""
        for source in (interrupted[0], journal_of(interrupted[0])):
            shutil.copy(source, tmp_path)
        return tmp_path / "cells.h5ad"

    @pytest.fixture
    def before(self, interrupted):
        return interrupted[1]

    def pages(self, path):
        """The offsets, old bytes and new bytes in a journal, by the description of its format."""
        raw = journal_of(path).read_bytes()
        assert raw.startswith(b"scbatchprox journal 2\n")
        assert hashlib.sha256(raw[:-32]).digest() == raw[-32:]
        length, n_pages = struct.unpack_from("<QQ", raw, 22)
        assert length == path.stat().st_size
        at, found = 38, []
        for _ in range(n_pages):
            offset, size = struct.unpack_from("<QI", raw, at)
            old, new = raw[at + 12 : at + 12 + size], raw[at + 12 + size : at + 12 + 2 * size]
            found.append((offset, old, new))
            at += 12 + 2 * size
        assert at == len(raw) - 32
        return found

    def old_journal(self, path, pages):
        """Replace the journal by one of version 1."""
        entries = [struct.pack("<QI", at, len(old)) + old + new for at, old, new in pages]
        journal_of(path).write_bytes(b"scbatchprox journal 1\n" + b"".join(entries))

    def refused(self, path, message):
        """Opening is refused in one sentence that names the journal, and nothing is written."""
        files = {p: p.read_bytes() for p in path.parent.iterdir()}
        with pytest.raises(InputError, match=message) as caught:
            open_cells(path)
        assert str(journal_of(path)) in str(caught.value)
        assert str(caught.value).count(". ") == 0
        assert {p: p.read_bytes() for p in path.parent.iterdir()} == files

    def test_a_flipped_bit_anywhere(self, path):
        journal, rng = journal_of(path), np.random.default_rng(1)
        whole = journal.read_bytes()
        first = range(22, 60)  # lengths, number of pages, first offset and size
        for at in [*first, *rng.integers(22, len(whole), 60), len(whole) - 1]:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << int(rng.integers(8))
            journal.write_bytes(damaged)
            self.refused(path, "found a damaged one at")
        journal.write_bytes(whole)
        open_cells(path).close()
        assert not journal.exists()

    @pytest.mark.parametrize(
        ("at", "kind", "value"),
        [
            *((30, "<Q", number) for number in (0, 1 << 40)),
            *((38, "<Q", offset) for offset in (1, 1 << 40)),
            *((46, "<I", size) for size in (0, 1 << 31)),
        ],
    )
    def test_a_right_checksum_is_not_enough(self, path, at, kind, value):
        """The number of pages, and the offset and the size of the first one, must be those of a journal."""
        body = bytearray(journal_of(path).read_bytes()[:-32])
        struct.pack_into(kind, body, at, value)
        journal_of(path).write_bytes(body + hashlib.sha256(body).digest())
        self.refused(path, "found a damaged one at")

    def test_cut_short(self, path):
        whole = journal_of(path).read_bytes()
        for length in (0, 1, 21, 22, 30, 38, 60, len(whole) // 2, len(whole) - 1):
            journal_of(path).write_bytes(whole[:length])
            self.refused(path, "found a damaged one at")

    def test_another_file_in_its_place(self, path):
        journal_of(path).write_bytes(b"notes of the user")
        self.refused(path, "Expected a journal of scbatchprox, found another file at")
        journal_of(path).unlink()
        journal_of(path).mkdir()
        with pytest.raises(InputError, match="Expected to read the journal"):
            open_cells(path)

    def test_the_command_says_so(self, path):
        whole = journal_of(path).read_bytes()
        journal_of(path).write_bytes(whole[:-1])
        found = path.read_bytes()
        done = command("refine", path, "--batch-key", "batch", "--in-place")
        assert done.returncode == 2
        words = " ".join(done.stderr.split())
        assert "found a damaged one at" in words
        assert "Traceback" not in words
        assert path.read_bytes() == found

    @pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
    def test_a_page_that_was_half_written(self, path, before, part):
        """As after a power cut, in each page, from its beginning and from its end."""
        pages, left = self.pages(path), path.read_bytes()
        whole = journal_of(path).read_bytes()
        torn = 0
        for offset, old, new in pages:
            changed = np.flatnonzero(np.frombuffer(old, "u1") != np.frombuffer(new, "u1"))
            written = int(np.quantile(changed, part)) + 1 if changed.size else 0
            for page in (new[:written] + old[written:], old[:written] + new[written:]):
                content = bytearray(left)
                content[offset : offset + len(page)] = page
                path.write_bytes(content)
                journal_of(path).write_bytes(whole)
                open_cells(path).close()
                assert not journal_of(path).exists()
                assert contents(path) == before
                torn += page not in (old, new)
        assert torn

    def test_another_file_that_took_the_name(self, path, tmp_path):
        """Of the same length, with the same pages but for one byte, or of another length."""
        offset, old, new = max(self.pages(path))
        same = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a == b)
        other = bytearray(path.read_bytes())
        other[offset + same] ^= 1
        left = path.read_bytes()
        for content in (bytes(other), left + b"more", left[:-1], make_other(tmp_path, len(left))):
            temporary = tmp_path / "other"
            temporary.write_bytes(content)
            os.replace(temporary, path)
            self.refused(path, "found that it was changed since; delete")

    def test_a_copy_from_before_that_was_put_back(self, path, before):
        """It has another length, but nothing in it is to be restored."""
        pages, content = self.pages(path), bytearray(path.read_bytes())
        for offset, old, _ in pages:
            content[offset : offset + len(old)] = old
        path.write_bytes(content + b"of another length")
        open_cells(path).close()
        assert not journal_of(path).exists()
        assert path.read_bytes() == content + b"of another length"
        assert contents(path) == before

    def test_version_1_is_never_applied_or_removed(self, path):
        """It has no checksum: a wrong bit in an old page that is to be written back cannot be noticed."""
        pages, rng = self.pages(path), np.random.default_rng(2)
        self.old_journal(path, pages)
        whole = journal_of(path).read_bytes()
        said = "found one of version 0.1.0 without at .*; open the file once with that version"
        size = len(pages[0][1])  # the page that is new in the file: its old bytes would be written
        for at in [*(34 + rng.integers(0, size, 20)), *rng.integers(22, len(whole), 40)]:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << int(rng.integers(8))
            journal_of(path).write_bytes(damaged)
            self.refused(path, said)
        # An offset and a size that leave nothing to compare, cuts, also between two pages, and no damage.
        huge = struct.pack("<QI", 1 << 50, 1 << 31)
        cuts = (whole[:-1], whole[: 34 + 2 * size], whole[:22])
        for raw in (whole[:22] + huge + whole[34:], *cuts, whole):
            journal_of(path).write_bytes(raw)
            self.refused(path, said)

    def test_restoring_is_repeated_if_it_is_interrupted(self, path, before, monkeypatch):
        whole, real = journal_of(path).read_bytes(), os.pwrite
        with open(path, "r+b") as file:  # as if the commit was stopped after its last page
            for offset, _, new in self.pages(path):
                file.seek(offset)
                file.write(new)
        for stop in range(len(self.pages(path))):
            count = []

            def stopping(fd, data, offset, stop=stop, count=count):
                count.append(offset)
                if len(count) > stop:
                    raise KeyboardInterrupt
                return real(fd, data, offset)

            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", stopping)
                with pytest.raises(KeyboardInterrupt):
                    open_cells(path)
            assert journal_of(path).read_bytes() == whole
        open_cells(path).close()
        assert contents(path) == before

    def test_a_failure_to_undo_keeps_what_is_needed(self, rng, tmp_path, monkeypatch):
        """A disk that fails for good during a commit: the next opening restores the file."""
        path = tmp_path / "new" / "cells.h5ad"
        path.parent.mkdir()
        write(make(rng), path, "h5ad")
        before, real, count = contents(path), os.pwrite, []

        def failing(fd, data, offset):
            if journal_of(path).exists():
                count.append(offset)
                if len(count) > 1:
                    raise OSError(5, "Input/output error")
            return real(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing)
            with pytest.raises(OSError, match="Input/output"):
                refine_file(path, "batch", model=BatchProx(target="moment"))
        assert journal_of(path).exists()
        open_cells(path).close()
        assert contents(path) == before

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_no_permission_to_restore(self, path):
        path.chmod(0o444)
        with pytest.raises(InputError, match="Expected permission to write to .* half changed"):
            open_cells(path)

    def test_in_use_elsewhere(self, path, before):
        """Another program that reads a half changed file keeps us from restoring it."""
        with h5py.File(path, "r"):
            with pytest.raises(InputError, match="interrupted run .* found it in use elsewhere"):
                open_cells(path)
            assert journal_of(path).exists()
        open_cells(path).close()
        assert contents(path) == before


def make_other(folder, length):
    """Another .h5ad file, of a given length."""
    path = folder / "made.h5ad"
    write(make(np.random.default_rng(7), n=300), path, "h5ad")
    return path.read_bytes()[:length].ljust(length, b"\0")
