"""The official batches are read from archive or folder, and nothing else is."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import pickle
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvarp.data import DataError, cifar10
from fedvarp.data.cifar10_files import Cifar10Images, read_cifar10, unpickle_batch

LABELS = ["plane", "cat"]


class Python2Pickle:
    """Pickles as Python 2 wrote them in 2009, opcode by opcode; Python 3 writes bytes otherwise."""

    @classmethod
    def dump(cls, value: object) -> bytes:
        return b"\x80\x02" + cls.encode(value) + b"."

    @classmethod
    def encode(cls, value: object) -> bytes:
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, bytes):
            return b"T" + struct.pack("<i", len(value)) + value
        if isinstance(value, list):
            return b"](" + b"".join(map(cls.encode, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(cls.encode, value)) + b"t"
        if isinstance(value, dict):
            pairs = (cls.encode(part) for item in value.items() for part in item)
            return b"}(" + b"".join(pairs) + b"u"
        assert isinstance(value, np.ndarray)
        dtype = b"cnumpy\ndtype\n" + cls.encode((b"u1", 0, 1)) + b"R"
        dtype += b"(" + cls.encode(3) + cls.encode(b"|") + b"NNN" + cls.encode(-1) * 2
        dtype += cls.encode(0) + b"tb"
        blank = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        blank += cls.encode((0,)) + cls.encode(b"b") + b"tR"
        state = b"(" + cls.encode(1) + cls.encode(value.shape) + dtype
        return blank + state + cls.encode(False) + cls.encode(value.tobytes()) + b"tb"


def small_batches() -> dict[str, bytes]:
    """Files like the official ones, with four images each."""
    rng = np.random.default_rng(0)
    files = {
        name: Python2Pickle.dump(
            {
                b"batch_label": name.encode(),
                b"labels": [0, 1, 1, 0],
                b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8),
            }
        )
        for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    }
    names = [label.encode() for label in LABELS]
    return files | {"batches.meta": Python2Pickle.dump({b"label_names": names})}


def md5s(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.md5(raw).hexdigest() for name, raw in files.items()}


def as_folder(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


def as_archive(files: dict[str, bytes], archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return archive


def test_folder_and_archives_give_the_same_images(tmp_path: Path) -> None:
    files = small_batches()
    folder = as_folder(files, tmp_path / "a" / "cifar-10-batches-py")
    archive = as_archive(files, tmp_path / "mine.tar.gz")
    (tmp_path / "b").mkdir()
    as_archive(files, tmp_path / "b" / "cifar-10-python.tar.gz")
    (tmp_path / "c").mkdir()
    as_archive(files, tmp_path / "c" / "cifar-10-batches-py.tar.gz")
    expected = np.frombuffer(files["data_batch_2"], dtype=np.uint8)[-len(b"tbu.") - 4 * 3072 :]
    for root in (folder, folder.parent, archive, tmp_path / "b", tmp_path / "c"):
        images = read_cifar10(root, md5s(files))
        assert images.train_pixels.shape == (20, 3, 32, 32)
        assert images.train_pixels.dtype == torch.uint8
        assert images.train_pixels[4:8].flatten().tolist() == expected[: 4 * 3072].tolist()
        assert images.train_labels.tolist() == [0, 1, 1, 0] * 5
        assert images.test_pixels.shape == (4, 3, 32, 32)
        assert images.label_names == tuple(LABELS)
    assert not (tmp_path / "b" / "cifar-10-batches-py").exists()


def test_one_changed_bit_is_noticed(tmp_path: Path) -> None:
    files = small_batches()
    expected = md5s(files)
    files["data_batch_3"] = files["data_batch_3"][:-9] + b"\x00" + files["data_batch_3"][-8:]
    archive = as_archive(files, tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"data_batch_3 .* md5 .*damaged.*download_cifar10"):
        read_cifar10(archive, expected)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = small_batches()
    expected = md5s(files)
    del files["data_batch_4"]
    for root in (as_archive(files, tmp_path / "a.tar.gz"), as_folder(files, tmp_path / "f")):
        with pytest.raises(DataError, match=r"has no data_batch_4\. .*download_cifar10"):
            read_cifar10(root, expected)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.7, 0.99])
def test_a_truncated_archive_is_refused(tmp_path: Path, kept: float) -> None:
    files = small_batches()
    archive = as_archive(files, tmp_path / "a.tar.gz")
    raw = archive.read_bytes()
    archive.write_bytes(raw[: int(len(raw) * kept)])
    with pytest.raises(DataError, match=r"ends early or is damaged.*interrupted download"):
        read_cifar10(archive, md5s(files))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "cifar-10-python.tar.gz"
    page.write_text("<html>Please log in</html>")
    with pytest.raises(DataError, match="ends early or is damaged"):
        cifar10(tmp_path)


def malicious_pickles(witness: Path) -> dict[str, bytes]:
    """Pickles that would create the file ``witness``, or reach for something that could."""
    command = f"touch {witness}".encode()
    name = str(witness).encode()
    string = Python2Pickle.encode
    return {
        "os.system": b"\x80\x02cos\nsystem\n(" + string(command) + b"tR.",
        "builtins.open": b"\x80\x02c__builtin__\nopen\n(" + string(name) + string(b"w") + b"tR.",
        "numpy.save": b"\x80\x02cnumpy\nsave\n(" + string(name) + string(0) + b"tR.",
        "dotted": pickle.dumps(np.ndarray.tofile, protocol=4),
        "inside a dictionary": b"\x80\x02}(" + string(b"data") + b"cos\nsystem\n("
        + string(command) + b"tRu.",
    }  # fmt: skip


@pytest.mark.parametrize("attack", list(malicious_pickles(Path("x"))))
def test_a_malicious_pickle_is_refused_even_with_a_matching_checksum(
    attack: str, tmp_path: Path
) -> None:
    witness = tmp_path / "witness"
    files = small_batches()
    files["data_batch_1"] = malicious_pickles(witness)[attack]
    archive = as_archive(files, tmp_path / "a.tar.gz")
    with pytest.raises(DataError, match=r"data_batch_1 .* cannot be unpickled safely: .* asks for"):
        read_cifar10(archive, md5s(files))
    assert not witness.exists()


def test_the_attack_would_have_worked(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    pickle.loads(malicious_pickles(witness)["os.system"])  # noqa: S301 - the point of the test
    assert witness.exists()


@pytest.mark.parametrize("raw", [b"", b"garbage", b"\x80\x02]."])
def test_other_content_is_refused(raw: bytes) -> None:
    with pytest.raises(DataError, match="download_cifar10"):
        unpickle_batch(raw, "data_batch_1")


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    files = small_batches()
    small = np.zeros((2, 64), dtype=np.uint8)
    files["test_batch"] = Python2Pickle.dump({b"labels": [0, 1], b"data": small})
    with pytest.raises(DataError, match=r"test_batch does not hold 32 x 32 colour images"):
        read_cifar10(as_folder(files, tmp_path / "f"), md5s(files))


def test_real_images(images: Cifar10Images) -> None:
    assert images.train_pixels.shape == (50_000, 3, 32, 32)
    assert images.test_pixels.shape == (10_000, 3, 32, 32)
    assert images.train_labels.bincount().tolist() == [5000] * 10
    assert images.test_labels.bincount().tolist() == [1000] * 10
    assert images.label_names[3] == "cat"


def test_an_archive_that_unpacks_to_far_too_much_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = small_batches()
    archive = as_archive({"junk": bytes(200_000), **files}, tmp_path / "a.tar.gz")
    assert len(read_cifar10(archive, md5s(files)).train_labels) > 0
    monkeypatch.setattr("fedvarp.data.cifar10_files._MOST_BYTES", 100_000)
    with pytest.raises(DataError, match=r"unpacks to more than 100,000 bytes.*fresh copy"):
        read_cifar10(archive, md5s(files))


@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE]
)
def test_a_header_that_unpacks_to_far_too_much_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    """tarfile reads the headers of long names and of pax whole, whatever they say of their size."""
    announced = tarfile.TarInfo("././@LongLink")
    announced.type, announced.size = kind, 2**25
    archive = tmp_path / "a.tar.gz"
    with gzip.open(archive, "wb", compresslevel=1) as file:
        file.write(announced.tobuf(tarfile.GNU_FORMAT) + b"a" * announced.size)
    monkeypatch.setattr("fedvarp.data.cifar10_files._MOST_BYTES", 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"unpacks to more than 1,048,576 bytes.*fresh copy"):
            read_cifar10(archive)
        assert tracemalloc.get_traced_memory()[1] < announced.size / 4
    finally:
        tracemalloc.stop()


def test_headers_that_announce_headers_without_end_are_damage(tmp_path: Path) -> None:
    announced = tarfile.TarInfo("././@LongLink")
    announced.type, announced.size = tarfile.GNUTYPE_LONGNAME, 1
    archive = tmp_path / "a.tar"
    archive.write_bytes((announced.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 3000)
    with pytest.raises(DataError, match="ends early or is damaged"):
        read_cifar10(archive)


@pytest.mark.parametrize("packed", [bytes, bz2.compress, lzma.compress])
def test_archives_that_were_packed_anew_are_read_and_their_damage_is_named(
    tmp_path: Path, packed: Callable[[bytes], bytes]
) -> None:
    files = small_batches()
    archive = as_archive(files, tmp_path / "a.tar.gz")
    raw = packed(gzip.decompress(archive.read_bytes()))
    archive.write_bytes(raw)
    assert read_cifar10(archive, md5s(files)).train_labels.tolist() == [0, 1, 1, 0] * 5
    for damaged in (raw[: len(raw) // 2], raw[:20] + bytes(len(raw) - 20)):
        archive.write_bytes(damaged)
        with pytest.raises(DataError, match="download_cifar10"):
            read_cifar10(archive, md5s(files))
