"""Killed processes and two writers: an atlas loses nothing."""

import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from atlas_cells import assert_same_model, content, fitted, of
from scbatchprox import Atlas, Moments


def program(body):
    return [sys.executable, "-c", textwrap.dedent(body)]


class TestCrash:
    def test_killed_at_every_step(self, path, atlas, c, tmp_path):
        """A child is killed before and after each call that writes to disk; no version is lost."""
        m = Moments.of(*of(c, "c"))
        np.savez(tmp_path / "c.npz", n=m.n, mean=m.mean, m2=m.m2)
        body = f"""
            import os, shutil, signal
            from pathlib import Path
            import numpy as np
            from scbatchprox import Atlas, Moments
            data = np.load({str(tmp_path / "c.npz")!r})
            moments = Moments.per_batch(np.array(["c"]), data["n"], data["mean"], data["m2"])
            origin = Path({str(path)!r})
            real = {{name: getattr(os, name) for name in ("replace", "fsync", "open", "close")}}

            def child(at, after, where):
                count = 0
                def step(name):
                    def call(*args, **kwargs):
                        nonlocal count
                        count += 1
                        if count == at and not after:
                            os.kill(os.getpid(), signal.SIGKILL)
                        result = real[name](*args, **kwargs)
                        if count == at:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return result
                    return call
                for name in real:
                    setattr(os, name, step(name))
                Atlas.open(where).add(moments)
                os._exit(0)

            killed = old = new = 0
            at, done = 1, False
            while not done:
                for after in (False, True):
                    where = origin.parent / f"crash{{at}}{{after}}"
                    shutil.copytree(origin, where)
                    pid = os.fork()
                    if pid == 0:
                        child(at, after, where)
                    status = os.waitpid(pid, 0)[1]
                    done = status == 0
                    assert done or os.WTERMSIG(status) == signal.SIGKILL, status
                    killed += not done
                    left = Atlas.open(where)
                    assert left.version in (2, 3)
                    names = left.model.batches_.tolist()
                    assert names == ["a", "b", "c"][: left.version], names
                    old += left.version == 2
                    new += left.version == 3
                    if left.version == 2:  # the next writer adds the version and deletes leftovers
                        assert left.add(moments).version == 3
                    left.forget("c")
                    files = sorted(p.name for p in where.rglob("*") if p.is_file())
                    assert files == ["000002.safetensors", "000003.safetensors", "000004.safetensors",
                                     "atlas.json", "lock"], files
                    assert np.array_equal(left.model.scale_, left.model_at(2).scale_)
                at += 1
            print(killed, old, new)
        """
        done = subprocess.run(program(body), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        killed, old, new = map(int, done.stdout.split())
        assert killed > 20
        assert old > 10
        assert new >= 3

    def test_killed_from_outside_between_version_and_list(self, path, atlas, c):
        before = content(path)
        body = f"""
            import time
            import numpy as np
            from scbatchprox import Atlas
            from scbatchprox.atlas import versions
            def wait(path):
                print("now", flush=True)
                time.sleep(60)
            versions.sync_folder = wait
            Atlas.open({str(path)!r}).add(np.random.default_rng(0).normal(size=(20, 4)), ["x"] * 20)
        """
        with subprocess.Popen(program(body), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "now\n"
            assert (path / "versions/000003.safetensors").exists()
            # It holds the lock until it ends.
            with pytest.raises(ValueError, match="free to write to, found it in use elsewhere"):
                atlas.add(*of(c, "c"))
            assert Atlas.open(path).version == 2  # readers need no lock
            assert Atlas.open(path).judge(*of(c, "c"))["level"].tolist() == ["close"]
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert {k: v for k, v in content(path).items() if k in before} == before
        assert Atlas.open(path).version == 2
        atlas.add(*of(c, "c"))
        assert_same_model(
            atlas.model, fitted(c, "a", "b").partial_fit(of(c, "c")[0], batch=["c"] * 25)
        )

    def test_only_own_leftovers_are_deleted(self, path, atlas, c, tmp_path):
        versions = path / "versions"
        ours = ["versions/000003.safetensors", "versions/.000003.safetensors.ab12.partial"]
        ours += [".atlas.json.ab12.partial"]
        theirs = [
            "versions/notes.txt",
            "versions/copy of 000002.safetensors",
            "versions/.mine.partial",
        ]
        theirs += [
            "000009.safetensors",
            ".notes.txt.ab12.partial",
            "versions/000002.safetensors.bak",
        ]
        for name in ours + theirs:
            (path / name).write_text(name)
        (versions / "plots").mkdir()
        (versions / "000007.safetensors").symlink_to(tmp_path / "elsewhere")
        atlas.add(*of(c, "c"))
        assert atlas.entries()[-1]["file"] == "000003.safetensors"
        left = {str(p.relative_to(path)) for p in path.rglob("*")}
        assert not left & set(ours[1:])
        assert left >= {*theirs, "versions/plots", "versions/000007.safetensors"}
        assert all((path / name).read_text() == name for name in theirs)

    def test_a_folder_with_the_name_of_a_version_does_not_block(self, path, atlas, c):
        (path / "versions/000003.safetensors/notes").mkdir(parents=True)
        (path / "versions/.000003.safetensors.ab12.partial").mkdir()
        for name in "cd":
            atlas.add(*of(c, name))
        found = Atlas.open(path)
        assert found.version == 4
        assert [entry["file"] for entry in found.entries()[2:]] == [
            "000004.safetensors", "000005.safetensors",
        ]  # fmt: skip
        assert found.model_at(3).batches_.tolist() == ["a", "b", "c"]
        assert found.model.batches_.tolist() == ["a", "b", "c", "d"]
        assert (path / "versions/000003.safetensors/notes").is_dir()

    def test_no_new_atlas_over_the_versions_of_another(self, path, atlas):
        (path / "atlas.json").unlink()
        before = content(path)
        with pytest.raises(ValueError, match="new or empty folder for the atlas, found 'versions'"):
            Atlas.create(path, target="moment")
        assert content(path) == before

    def test_after_a_killed_init_the_folder_can_be_used(self, path):
        (path / "versions").mkdir(parents=True)
        (path / "lock").touch()
        (path / ".atlas.json.abc.partial").touch()
        with pytest.raises(FileNotFoundError, match="found none at"):
            Atlas.open(path)
        Atlas.create(path, target="moment")
        assert sorted(p.name for p in path.iterdir()) == ["atlas.json", "lock", "versions"]

    def test_two_processes_lose_nothing(self, path, atlas):
        """Both repeat what was refused while the other wrote: the atlas has all batches at the end."""
        body = """
            import sys, time
            import numpy as np
            from scbatchprox import Atlas
            path, name = sys.argv[1:]
            Z = np.random.default_rng(0).normal(size=(20, 4))
            refused = 0
            for k in range(8):
                while True:
                    try:
                        Atlas.open(path).add(Z, [f"{name}{k}"] * 20)
                        break
                    except ValueError as error:
                        assert "in use elsewhere" in str(error), error
                        refused += 1
                        time.sleep(0.002)
        """
        both = [subprocess.Popen([*program(body), str(path), name]) for name in "xy"]
        assert [process.wait() for process in both] == [0, 0]
        names = [f"{name}{k}" for name in "xy" for k in range(8)]
        assert Atlas.open(path).model.batches_.tolist() == ["a", "b", *names]
        assert Atlas.open(path).log().index.tolist() == list(range(1, 19))

    def test_two_threads(self, path, atlas, c):
        started, go = threading.Event(), threading.Event()

        def hold():
            with atlas._writing():
                started.set()
                go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        started.wait()
        try:
            with pytest.raises(ValueError, match="in use elsewhere"):
                Atlas.open(path).forget("a")
        finally:
            go.set()
            thread.join()
