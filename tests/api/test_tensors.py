"""Arrays of torch, jax and cupy: the numbers of numpy arrays, returned as they came, or a clear error."""

import numpy as np
import pytest

from data import make_cells
from scbatchprox import BatchProx, diagnose
from scbatchprox.errors import BadType

KINDS = [
    pytest.param("torch", marks=pytest.mark.torch),
    pytest.param("jax.numpy", marks=pytest.mark.bench),
]


@pytest.fixture
def cells(rng):
    return make_cells(rng, [50, 30], 3)


def library(name):
    return pytest.importorskip(name)


@pytest.mark.parametrize("target", ["moment", "population"])
@pytest.mark.parametrize("name", KINDS)
def test_tensors_give_tensors(cells, name, target):
    xp = library(name)
    Z = cells.Z.astype(np.float32)
    given, labels = xp.asarray(Z), xp.asarray(cells.codes)
    model = BatchProx(target=target)
    refined = model.fit_transform(given, batch=labels)
    expected = BatchProx(target=target).fit_transform(Z, batch=cells.codes)
    assert model.batches_.tolist() == [0, 1]
    for found in (refined, model.transform(given, batch=labels)):
        assert type(found) is type(given)
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(np.asarray(given), Z)
    if target == "moment":
        back = model.inverse_transform(refined, batch=labels)
        assert type(back) is type(given)
        np.testing.assert_allclose(np.asarray(back), Z, atol=1e-5)


@pytest.mark.torch
def test_nothing_is_copied(cells):
    torch = library("torch")
    Z = torch.from_numpy(cells.Z.astype(np.float32))
    out = np.empty((80, 3), np.float32)
    found = BatchProx(target="moment").fit_transform(Z, batch=cells.codes, out=out)
    assert found is out
    # The same memory is both input and output: a copy would not change the tensor.
    refined = BatchProx(target="moment").fit_transform(Z, batch=cells.codes, out=Z.numpy())
    np.testing.assert_array_equal(refined, Z)
    np.testing.assert_array_equal(refined, out)


@pytest.mark.parametrize("name", KINDS)
def test_whole_numbers_become_floats(cells, name):
    xp = library(name)
    Z = (100 * cells.Z).astype(np.int32)
    refined = BatchProx(target="moment").fit_transform(xp.asarray(Z), batch=cells.codes)
    expected = BatchProx(target="moment").fit_transform(Z, batch=cells.codes)
    np.testing.assert_allclose(np.asarray(refined), expected, rtol=1e-6)


@pytest.mark.torch
def test_tensors_as_frames_and_diagnosis(cells):
    torch = library("torch")
    Z = torch.from_numpy(cells.Z)
    frame = BatchProx(target="moment").set_output(transform="pandas").fit(Z, batch=cells.codes)
    assert frame.transform(Z, batch=cells.codes).shape == (80, 3)
    table = diagnose(Z, torch.from_numpy(cells.codes), target="moment")
    assert table.equals(diagnose(cells.Z, cells.codes, target="moment"))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("change", "call"),
    [
        (lambda Z: Z.requires_grad_(), ".detach()"),
        (lambda Z: Z.to("meta"), ".cpu()"),
        (lambda Z: Z.to("meta").requires_grad_(), ".detach().cpu()"),
        (lambda Z: Z.to_sparse(), ".to_dense()"),
        (lambda Z: Z.bfloat16(), ".float()"),
    ],
)
def test_tensors_that_numpy_cannot_read(cells, change, call):
    torch = library("torch")
    Z = change(torch.from_numpy(cells.Z))
    with pytest.raises(BadType) as caught:
        BatchProx(target="moment").fit(Z, batch=cells.codes)
    assert str(caught.value) == (
        "Expected an array in main memory that numpy can read, found a torch Tensor; call "
        f"{call} on it first."
    )


@pytest.mark.torch
def test_labels_that_numpy_cannot_read(cells):
    torch = library("torch")
    with pytest.raises(BadType, match=r"call .cpu\(\) on it first"):
        BatchProx(target="moment").fit(cells.Z, batch=torch.from_numpy(cells.codes).to("meta"))


@pytest.mark.bench
def test_jax_cannot_trace_a_fit(cells):
    jax = library("jax")
    with pytest.raises(BadType, match="found a jax .*Tracer; .*conversion"):
        jax.jit(lambda Z: BatchProx(target="moment").fit_transform(Z, batch=cells.codes))(cells.Z)


class OnGpu:
    """As a cupy array: it names its memory, and refuses to be read by numpy."""

    shape, ndim, dtype = (80, 3), 2, np.dtype(np.float32)
    __cuda_array_interface__ = None

    def __dlpack__(self):
        raise BufferError

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


def test_arrays_on_a_gpu(cells):
    with pytest.raises(BadType, match=r"call .get\(\) on it first\.$"):
        BatchProx(target="moment").fit(OnGpu(), batch=cells.codes)
