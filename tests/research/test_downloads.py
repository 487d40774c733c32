"""Downloads from a real server on this machine: whole and checked, or not there at all."""

import errno
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from research.datasets import downloads as d
from research.datasets import load
from research.datasets.archives import unpack
from research.datasets.originals import ORIGINALS
from scbatchprox.errors import BadFile, BadValue, MissingExtra
from scbatchprox.progress import silent

DATA = np.random.default_rng(0).bytes(3_500_000)  # several chunks


def md5(data):
    return hashlib.md5(data).hexdigest()


class Site:
    """Pages of a server: bytes, or a function that answers as it likes; requests are counted."""

    def __init__(self):
        self.pages, self.asked = {}, Counter()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.partition("?")[0]
                site.asked[path] += 1
                page = site.pages.get(path)
                if page is None:
                    self.send_error(404)
                elif callable(page):
                    page(self)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(page)))
                    self.end_headers()
                    self.wfile.write(page)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_):  # a client that went away is what some tests are about
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site(monkeypatch):
    site = Site()
    monkeypatch.setattr(d, "ZENODO", site.url)
    monkeypatch.setattr(d, "FIGSHARE", site.url)
    # A proxy of the machine's must not stand between this test and its own server.
    monkeypatch.setenv("no_proxy", "*")
    yield site
    site.close()


@pytest.fixture
def offline(monkeypatch):
    """Addresses at which nobody answers."""
    closed = Site()
    closed.close()
    monkeypatch.setattr(d, "ZENODO", closed.url)
    monkeypatch.setattr(d, "FIGSHARE", closed.url)
    monkeypatch.setenv("no_proxy", "*")
    return closed.url


def test_a_download_is_the_file(site, tmp_path):
    site.pages["/file"] = DATA
    seen = []
    target = tmp_path / "new" / "folders" / "file.bin"
    checksum = "sha256:" + hashlib.sha256(DATA).hexdigest()
    path = d.download(d.Remote(f"{site.url}/file", checksum), target, lambda *a: seen.append(a))
    assert path == target
    assert path.read_bytes() == DATA
    assert os.listdir(target.parent) == ["file.bin"]
    names, done, totals = zip(*seen, strict=True)
    assert set(names) == {"file.bin"}
    assert set(totals) == {len(DATA)}
    assert len(done) > 2
    assert list(done) == sorted(done)
    assert done[-1] == len(DATA)


def without_length(handler):
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(DATA)


@pytest.mark.parametrize("size", [0, len(DATA)])
def test_a_host_that_does_not_say_how_much_there_is(site, tmp_path, size):
    site.pages["/file"] = without_length
    seen = []
    remote = d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}", size)
    path = d.download(remote, tmp_path / "file", lambda *a: seen.append(a))
    assert path.read_bytes() == DATA
    assert all(total == (size or done) for _, done, total in seen)


def test_a_size_that_is_known_otherwise(site, tmp_path):
    site.pages["/file"] = without_length
    remote = d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}", len(DATA) + 1)
    with pytest.raises(d.Unreachable, match="ended after 3,500,000 of 3,500,001 bytes"):
        d.download(remote, tmp_path / "file", silent)


def cut_short(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(DATA)))
    handler.end_headers()
    handler.wfile.write(DATA[:1_200_000])


def cut_short_in_chunks(handler):
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"100000\r\n" + DATA[:1000])
    handler.close_connection = True


def asleep(handler):
    time.sleep(5)  # longer than any machine is busy


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (None, "answered 404 Not Found"),
        (cut_short, "ended after 1,200,000 of 3,500,000 bytes"),
        (cut_short_in_chunks, "could not be read"),
        (asleep, "(timed out)"),
    ],
)
def test_a_download_that_fails_leaves_nothing(site, tmp_path, monkeypatch, page, words):
    monkeypatch.setattr(d, "TIMEOUT", 0.2 if page is asleep else 10.0)
    site.pages["/file"] = page
    with pytest.raises(d.Unreachable) as caught:
        d.download(d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}"), tmp_path / "file", silent)
    assert words in str(caught.value)
    assert f"{site.url}/file" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_wrong_checksum_names_both_and_keeps_the_old_file(site, tmp_path):
    site.pages["/file"] = DATA
    (tmp_path / "file").write_text("old")
    with pytest.raises(BadValue) as caught:
        d.download(d.Remote(f"{site.url}/file", f"md5:{md5(b'')}"), tmp_path / "file", silent)
    assert md5(DATA) in str(caught.value)
    assert md5(b"") in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_files_are_as_their_host_has_them(site, tmp_path):
    """Hosts that pack text on the way, as most do, are told not to: sizes are those of files."""

    def packing(handler):
        packed = "gzip" in handler.headers.get("Accept-Encoding", "")
        content = gzip.compress(DATA) if packed else DATA
        handler.send_response(200)
        if packed:
            handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def moved(handler):
        handler.send_response(302)
        handler.send_header("Location", f"{site.url}/there")
        handler.end_headers()

    site.pages |= {"/file": moved, "/there": packing}
    seen = []
    remote = d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}")
    path = d.download(remote, tmp_path / "file", lambda *a: seen.append(a))
    assert path.read_bytes() == DATA
    assert {total for _, _, total in seen} == {len(DATA)}


def test_an_empty_file(site, tmp_path):
    site.pages["/file"] = b""
    path = d.download(d.Remote(f"{site.url}/file", f"md5:{md5(b'')}"), tmp_path / "file", silent)
    assert path.read_bytes() == b""


def test_a_file_is_for_all_whom_the_user_lets_read(site, tmp_path):
    site.pages["/file"] = DATA
    path = d.download(d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}"), tmp_path / "file", silent)
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_without_pooch_the_extra_is_named(site, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"found none: pip install 'scbatchprox\[bench\]'"):
        load("hpms2", data_dir=tmp_path)
    assert not site.asked
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_not_the_hosts_fault(site, tmp_path, monkeypatch):
    site.pages["/file"] = DATA

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(d._Download, "_opened", full)
    with pytest.raises(OSError, match="No space left") as caught:
        d.download(d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}"), tmp_path / "file", silent)
    assert not isinstance(caught.value, d.Unreachable)
    assert os.listdir(tmp_path) == []


def test_an_interrupted_download_leaves_nothing(site, tmp_path):
    site.pages["/file"] = DATA

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        d.download(d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}"), tmp_path / "file", interrupt)
    assert os.listdir(tmp_path) == []


def test_a_killed_download_leaves_no_file_and_can_be_made_again(site, tmp_path):
    halfway, go_on = threading.Event(), threading.Event()

    def slowly(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        handler.wfile.write(DATA[:2_000_000])
        halfway.set()
        go_on.wait(60)
        handler.wfile.write(DATA[2_000_000:])

    site.pages["/file"] = slowly
    target = tmp_path / "file"
    script = (
        "import sys; from pathlib import Path;"
        "from research.datasets.downloads import Remote, download;"
        "download(Remote(sys.argv[1], sys.argv[2]), Path(sys.argv[3]),"
        "         lambda *a: print(*a, flush=True))"
    )
    arguments = [f"{site.url}/file", f"md5:{md5(DATA)}", str(target)]
    child = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)
    try:
        assert halfway.wait(120)
        assert child.stdout.readline()  # something has been written
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        go_on.set()
    assert not target.exists()
    site.pages["/file"] = DATA
    remote = d.Remote(f"{site.url}/file", f"md5:{md5(DATA)}")
    assert d.download(remote, target, silent).read_bytes() == DATA


def test_a_folder_that_cannot_be_written_to(site, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(d.Unreachable, match="cannot be written to"):
        d.download(d.Remote(f"{site.url}/file", "md5:0"), tmp_path / "file", silent)
    assert not site.asked


@pytest.mark.parametrize(
    "entry",
    [
        {"key": "cells.h5ad", "checksum": f"md5:{md5(DATA)}", "size": len(DATA)},
        {"filename": "cells.h5ad", "checksum": md5(DATA), "filesize": len(DATA)},
    ],
    ids=["today", "2023"],
)
def test_zenodo_gives_the_checksum(site, tmp_path, entry):
    site.pages["/api/records/7"] = json.dumps(
        {"files": [{"key": "x", "checksum": ""}, entry]}
    ).encode()
    site.pages["/records/7/files/cells.h5ad"] = DATA
    assert d.Zenodo(7, "cells.h5ad").fetch(tmp_path, silent).read_bytes() == DATA
    site.pages["/records/7/files/cells.h5ad"] = DATA[:-1] + b"?"
    with pytest.raises(BadValue, match=md5(DATA)):
        d.Zenodo(7, "cells.h5ad").fetch(tmp_path, silent)


@pytest.mark.parametrize(
    "answer",
    [b"<html>Please log in</html>", b"[]", b'{"files": []}', b'{"files": [{}]}', b"\xff\xfe"],
)
@pytest.mark.parametrize("source", [d.Zenodo(7, "cells.h5ad"), d.Figshare(7, 1, "all.tar.gz")])
def test_a_host_that_answers_something_else(site, tmp_path, source, answer):
    site.pages["/api/records/7"] = site.pages["/articles/7/versions/1"] = answer
    with pytest.raises(d.Unreachable, match="does not list the file"):
        source.fetch(tmp_path, silent)
    assert os.listdir(tmp_path) == []


def h5ad(path, batch="b"):
    obs = pd.DataFrame({"batch": [batch] * 3, "celltype": ["A", "A", "B"]}, index=list("xyz"))
    ad.AnnData(np.eye(3, dtype=np.float32), obs).write_h5ad(path)
    return path.read_bytes()


def tar(**members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
    return packed.getvalue()


def figshare(site, archive, name="resources.tar.gz"):
    file = {
        "name": name,
        "download_url": f"{site.url}/download/1",
        "computed_md5": md5(archive),
        "size": len(archive),
    }
    readme = {"name": "README.txt", "download_url": "", "computed_md5": "", "size": 0}
    site.pages["/articles/24625302/versions/1"] = json.dumps({"files": [readme, file]}).encode()
    site.pages["/download/1"] = archive


def test_the_sets_of_maan_come_out_of_one_archive(site, tmp_path):
    data, seen = tmp_path / "data", []
    data.mkdir()
    inside = "resources/h5ad_files/int_datasets"
    archive = tar(
        **{
            f"{inside}/pbmc_4_batch/one.h5ad": h5ad(tmp_path / "1", "one"),
            f"{inside}/pbmc_4_batch/two.h5ad": h5ad(tmp_path / "2", "two"),
            f"{inside}/pbmc_4_batch/._two.h5ad": b"of another system",
            f"{inside}/mouse_hindbrain_6_batch/E10.h5ad": h5ad(tmp_path / "3", "E10"),
            f"{inside}/huge.h5ad": DATA,
        }
    )
    figshare(site, archive)
    pbmc = load("pbmc4", data_dir=data, progress=lambda *a: seen.append(a))
    assert list(pbmc.adata.obs["batch"]) == ["one"] * 3 + ["two"] * 3
    assert sorted(os.listdir(data)) == ["maan2024_resources.tar.gz", "pbmc_4_batch"]
    assert sorted(os.listdir(data / "pbmc_4_batch")) == ["one.h5ad", "two.h5ad"]
    stages = list(dict.fromkeys(name for name, _, _ in seen))
    assert stages == ["maan2024_resources.tar.gz", "unpack maan2024_resources.tar.gz"]
    assert all(0 < done <= total == len(archive) for _, done, total in seen)
    # The archive is there now: neither a second set nor the same set asks for it again.
    assert list(load("mhd6", data_dir=data).adata.obs["batch"]) == ["E10"] * 3
    load("pbmc4", data_dir=data)
    assert site.asked["/download/1"] == 1
    with pytest.raises(BadValue, match="'pbmc_2_batch_base_balanced'.*available: .*'pbmc_4_batch'"):
        load("balanced2", data_dir=data)


def test_an_archive_cannot_write_elsewhere(tmp_path):
    good = h5ad(tmp_path / "good")
    target = tmp_path / "data" / "set"
    target.parent.mkdir()
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(
        tar(
            **{
                "../../set/up.h5ad": good,
                "/abs/set/top.h5ad": good,
                "set/../../out.h5ad": good,
                "set/link.h5ad": "/etc/passwd",
                "set/code.py": b"import this",
            }
        )
    )
    unpack(packed, target, silent)
    assert sorted(os.listdir(target)) == ["top.h5ad", "up.h5ad"]
    assert all(path.read_bytes() == good for path in target.iterdir())
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "data", "good"]
    assert os.listdir(target.parent) == ["set"]


@pytest.mark.parametrize("damage", ["cut", "changed", "text", "of zeros"])
def test_a_damaged_archive_leaves_nothing(tmp_path, damage):
    whole = tar(**{"set/a.h5ad": DATA})
    content = {
        "cut": whole[: len(whole) // 2],
        "changed": whole[:100] + bytes(200) + whole[300:],
        "text": b"no archive",
        "of zeros": gzip.compress(bytes(5000))[:-20],
    }[damage]
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(BadValue, match="damaged|found none"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "set", silent)
    assert os.listdir(tmp_path) == ["a.tar.gz"]


def test_the_pancreas_comes_from_zenodo(site, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    obs = {"batch": ["0", "1"], "study": ["Pancreas SS2"] * 2, "cell_type": ["Pancreas Beta"] * 2}
    ad.AnnData(np.eye(2, dtype=np.float32), pd.DataFrame(obs, index=["x", "y"])).write_h5ad(
        tmp_path / "made.h5ad"
    )
    content = (tmp_path / "made.h5ad").read_bytes()
    entry = {"key": "pancreas_normalized.h5ad", "checksum": f"md5:{md5(content)}"}
    site.pages["/api/records/3930949"] = json.dumps({"files": [entry]}).encode()
    site.pages["/records/3930949/files/pancreas_normalized.h5ad"] = content
    assert list(load("hpms2", data_dir=data).adata.obs["batch"]) == ["0", "1"]
    assert list(load("pancreas5", data_dir=data).adata.obs["batch"]) == ["Smart-seq2"] * 2
    assert sum(site.asked.values()) == 2  # the list and the file, once


@pytest.mark.parametrize(
    ("name", "file", "address"),
    [
        ("pbmc4", "pbmc_4_batch", "https://doi.org/10.6084/m9.figshare.24625302.v1"),
        ("mhd6", "mouse_hindbrain_6_batch", "https://doi.org/10.6084/m9.figshare.24625302.v1"),
        (
            "balanced2",
            "pbmc_2_batch_base_balanced",
            "https://doi.org/10.6084/m9.figshare.24625302.v1",
        ),
        ("hpms2", "pancreas_normalized.h5ad", "https://zenodo.org/records/3930949"),
        ("pancreas5", "pancreas.h5ad", "https://zenodo.org/records/3930949"),
    ],
)
def test_offline_says_what_to_put_where(offline, tmp_path, name, file, address):
    with pytest.raises(BadFile) as caught:
        load(name, data_dir=tmp_path)
    said = str(caught.value)
    for words in (f"{name}.h5ad", file, str(tmp_path), address, f"{offline}/", "refused", "there"):
        assert words in said
    assert said.count(". ") == 0  # one sentence
    assert os.listdir(tmp_path) == []


def test_offline_without_a_folder_makes_none(offline, tmp_path, monkeypatch):
    monkeypatch.delenv("SCBATCHPROX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BadFile, match=str(tmp_path / "scbatchprox")):
        load("hpms2")
    assert os.listdir(tmp_path) == []


def test_qm8_is_pinned_to_the_file_we_know(tmp_path):
    real = os.environ.get("SCBATCHPROX_DATA")
    packed = Path(real or tmp_path) / "qm8.csv.gz"
    if not packed.exists():
        pytest.skip("SCBATCHPROX_DATA names no folder with qm8.csv.gz")
    content = gzip.decompress(packed.read_bytes())
    assert ORIGINALS["qm8"].source.checksum == "sha256:" + hashlib.sha256(content).hexdigest()
