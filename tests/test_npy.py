"""Files that lie: nothing is believed, nothing is unpickled, every failure is one line."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file

from attnviz.errors import InputError
from attnviz.npy import map_npy, names_in_npz, read_npy, read_npz, read_safetensors


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(*members: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("npy")


@given(
    arrays.arrays(
        st.sampled_from(["<f4", ">f8", "?", "<i8", "<U3", "<f2"]),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
    ),
    st.booleans(),
)
def test_what_numpy_writes_is_read(folder: Path, array: np.ndarray, by_columns: bool) -> None:
    array = np.asfortranarray(array) if by_columns else array
    path = folder / "a.npy"
    path.write_bytes(npy(array))
    (folder / "a.npz").write_bytes(npz(("one.npy", npy(array)), how=zipfile.ZIP_DEFLATED))
    for back in (read_npy(path), read_npz(folder / "a.npz", at_most=1)["one"]):
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()
        assert back.flags.writeable
    back = map_npy(path)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert array.size == 0 or not back.flags.writeable


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_give_an_array_or_one_line(folder: Path, noise: bytes, place: int) -> None:
    sound = npz(("a.npy", npy(np.arange(5.0))), ("b.npy", npy(np.arange(3))))
    for data in (noise, sound[:place], sound[:place] + noise + sound[place + len(noise) :]):
        for name, read in (("n.npy", read_npy), ("n.npz", lambda p: read_npz(p, at_most=2))):
            (folder / name).write_bytes(data)
            try:
                read(folder / name)
            except InputError as error:
                failure = str(error)
            else:
                continue
            assert len(failure.splitlines()) == 1


def broken(change: str) -> bytes:
    """An archive that is wrong in one way."""
    data = bytearray(npz(("a.npy", npy(np.arange(5.0))), ("b.npy", npy(np.arange(3)))))
    second, central = data.rindex(b"PK\x03\x04"), data.index(b"PK\x01\x02")
    last = data.rindex(b"PK\x01\x02")
    if change == "two of a name":
        data = bytearray(bytes(data).replace(b"b.npy", b"a.npy"))
    elif change == "password":
        for flags in (second + 6, last + 8, 6, central + 8):
            data[flags] |= 1
    elif change == "compression":
        for method in (8, central + 10):
            data[method] = 99
    elif change == "checksum":
        data[second - 1] ^= 1
    elif change == "longer":  # the directory says more than there is
        for size in (central + 20, central + 24):
            data[size : size + 4] = (10**6).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("two of a name", "holds two arrays of one name"),
        (
            "password",
            "is an archive that cannot be read: File 'a.npy' is encrypted, password required for "
            "extraction",
        ),
        (
            "compression",
            "is an archive that cannot be read: That compression method is not supported",
        ),
        (
            "checksum",
            "is no .npz archive, or a damaged one: Bad CRC-32 for file 'a.npy'",
        ),
        (
            "longer",
            "is damaged: shape [5] of float64 takes 40 bytes, and 999872 are there",
        ),
    ],
)
def test_broken_archives(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(broken(change))
    with pytest.raises(InputError) as caught:
        read_npz(path, at_most=2)
    assert str(caught.value) == message


def test_an_archive_of_more_arrays_than_expected(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(npz(*((f"{i}.npy", b"") for i in range(3))))
    with pytest.raises(InputError) as caught:
        read_npz(path, at_most=2)
    assert str(caught.value) == "holds 3 arrays; 2 at most are expected"


def test_an_archive_that_ends_before_its_array(tmp_path: Path) -> None:
    """Header and directory agree, but the compressed stream is shorter than both say."""
    array = npy(np.zeros(1000))
    data = bytearray(npz(("a.npy", array[:500]), how=zipfile.ZIP_DEFLATED))
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = len(array).to_bytes(4, "little")
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"^is damaged: it ends too early$"):
        read_npz(path, at_most=1)


def test_arrays_of_a_large_file_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is where the directory says; what is compressed is read as ever."""
    parts = {
        "a": np.arange(30.0).reshape(5, 6),
        "ü" * 40: np.asfortranarray(np.ones((3, 7), "<f2")),
    }
    np.savez(tmp_path / "s.npz", **parts)
    np.savez_compressed(tmp_path / "c.npz", **parts)
    (tmp_path / "mixed.npz").write_bytes((tmp_path / "s.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "mixed.npz", "a") as archive:
        extra = zipfile.ZipInfo("x.npy")
        extra.extra = b"\x99\x99\x04\x00abcd"  # a field that the directory need not repeat
        archive.writestr(extra, npy(np.arange(11)))
    save_file({"a": parts["a"], "b": np.arange(7, dtype=np.uint8)}, tmp_path / "s.safetensors")
    small = read_npz(tmp_path / "s.npz", at_most=2)
    tensors = read_safetensors(tmp_path / "s.safetensors")
    assert all(array.flags.writeable for array in (*small.values(), *tensors.values()))

    monkeypatch.setattr("attnviz.npy.MAPPED_FROM", 1)
    for name, is_mapped in (("s", True), ("c", False), ("mixed", True)):
        large = read_npz(tmp_path / f"{name}.npz", at_most=3)
        for key, array in parts.items():
            np.testing.assert_array_equal(large[key], array)
            assert large[key].dtype == array.dtype
            assert large[key].flags.writeable is not is_mapped
    np.testing.assert_array_equal(large["x"], np.arange(11))
    assert list(read_npz(tmp_path / "mixed.npz", 3, {"x"})) == ["x"]
    assert names_in_npz(tmp_path / "mixed.npz", 3) == [*parts, "x"]
    large = read_safetensors(tmp_path / "s.safetensors")
    np.testing.assert_array_equal(large["a"], parts["a"])
    np.testing.assert_array_equal(large["b"], np.arange(7))
    assert not large["a"].flags.writeable
    assert list(read_safetensors(tmp_path / "s.safetensors", {"b"})) == ["b"]


def test_a_mapped_archive_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.npy.MAPPED_FROM", 1)
    path = tmp_path / "a.npz"
    path.write_bytes(broken("longer"))
    with pytest.raises(InputError, match=r"^is damaged: shape \[5\] of float64 takes 40 bytes, "):
        read_npz(path, at_most=2)


@example(b"\x87", 508)  # a place before the begin
@given(st.binary(max_size=200), st.integers(0, 700))
def test_any_bytes_in_a_mapped_archive_give_arrays_or_one_line(
    folder: Path, noise: bytes, place: int
) -> None:
    sound = npz(("a.npy", npy(np.arange(5.0))), ("b.npy", npy(np.arange(3))))
    path = folder / "mapped.npz"
    path.write_bytes(sound[:place] + noise + sound[place + len(noise) :])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnviz.npy.MAPPED_FROM", 1)
        try:
            found = read_npz(path, at_most=2)
        except InputError as error:
            failure = str(error)
        else:
            assert all(array.tobytes() is not None for array in found.values())
            return
    assert len(failure.splitlines()) == 1


def test_more_axes_than_numpy_has(tmp_path: Path) -> None:
    header = f"{{'descr': '|b1', 'fortran_order': False, 'shape': {(1,) * 70}}}\n".encode()
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\1")
    with pytest.raises(InputError) as caught:
        read_npy(path)
    assert str(caught.value) == (
        "has a shape that NumPy cannot hold: maximum supported dimension for an ndarray is "
        "currently 64, found 70"
    )
