"""The checksum of saved files."""

import hashlib
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scbatchprox import Adapter, BatchProx
from scbatchprox.errors import BadValue
from scbatchprox.io import store


@pytest.fixture
def path(tmp_path, rng):
    where = tmp_path / "model.safetensors"
    BatchProx(target="moment").fit(rng.normal(size=(60, 3)), batch=["a", "b", "é"] * 20).save(where)
    return where


def header_of(path):
    with safe_open(path, framework="np") as file:
        return file.metadata()


class TestChecksum:
    @pytest.mark.parametrize("load", [BatchProx.load, Adapter.load])
    @pytest.mark.parametrize("what", ["tensor", "batches", "params", "name", "new entry"])
    def test_changed_files_are_refused(self, path, load, what):
        raw = path.read_bytes()
        if what == "tensor":
            changed = bytearray(raw)
            changed[-3] ^= 1
            path.write_bytes(changed)
        elif what == "batches":
            path.write_bytes(raw.replace(rb"[\"a\", \"b\"", rb"[\"a\", \"c\""))
        elif what == "params":
            path.write_bytes(raw.replace(rb"\"mu\": 0.001", rb"\"mu\": 0.002"))
        elif what == "name":
            swapped = raw.replace(b'"scale"', b'"?"').replace(b'"shift"', b'"scale"')
            path.write_bytes(swapped.replace(b'"?"', b'"shift"'))
        else:
            save_file(load_file(path), path, header_of(path) | {"note": "x"})
        assert path.read_bytes() != raw
        with pytest.raises(BadValue, match=r"found .*model\.safetensors, .*its checksum does not"):
            load(path)

    def test_as_documented(self, path):
        """Computed from the file by the definition in docs/file-format.md."""
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
        entries = header.pop("__metadata__")
        expected = entries.pop("sha256")
        types = {"F64": "float64", "I64": "int64"}
        content = json.dumps(entries, sort_keys=True).encode() + b"\n"
        for name, tensor in sorted(header.items()):
            begin, end = tensor["data_offsets"]
            described = [name, types[tensor["dtype"]], tensor["shape"]]
            content += json.dumps(described).encode() + b"\n" + data[begin:end]
        assert hashlib.sha256(content).hexdigest() == expected

    def test_files_without_one_load(self, path):
        before = BatchProx.load(path)
        header = header_of(path)
        del header["sha256"]
        save_file(load_file(path), path, header)
        np.testing.assert_array_equal(BatchProx.load(path).scale_, before.scale_)

    @pytest.mark.parametrize(
        "value",
        [
            np.arange(6.0).reshape(2, 3).T,
            np.arange(3, dtype=">i8"),
            np.float32(2.0),
            np.empty((0, 4)),
        ],
        ids=["transposed", "big-endian", "scalar", "empty"],
    )
    def test_any_array_can_be_read_back(self, tmp_path, value):
        store.save(tmp_path / "x", "upstream", {"x": np.asarray(value)}, np.empty(0, str), {})
        found = store.load(tmp_path / "x", ("upstream",)).tensors["x"]
        np.testing.assert_array_equal(found, np.atleast_1d(value))
