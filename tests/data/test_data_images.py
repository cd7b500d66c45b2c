"""CIFAR, Fashion-MNIST and folders of pictures, read from small files in the published form."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spikezip.data import open_data
from spikezip.data.image_folder import middle_box, random_box
from spikezip.errors import ConfigError, InputError

RNG = np.random.default_rng(0)
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def batch(count: int, classes: int) -> tuple[np.ndarray, list[int]]:
    return RNG.integers(0, 256, (count, 3072), dtype=np.uint8), RNG.integers(0, classes, count).tolist()


def python2_pickle(data: np.ndarray, **lists: list[int]) -> bytes:
    """A batch as Python 2 wrote it: protocol 2, byte strings, numpy under its old name."""
    out = io.BytesIO()
    out.write(b"\x80\x02}")

    def string(text: bytes) -> bytes:
        return b"T" + len(text).to_bytes(4, "little") + text

    def integer(number: int) -> bytes:
        return b"J" + number.to_bytes(4, "little", signed=True)

    for key, numbers in lists.items():
        out.write(string(key.encode()) + b"](" + b"".join(integer(number) for number in numbers) + b"es")
    out.write(string(b"data"))
    out.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b") + b"tR")
    out.write(b"(" + integer(1) + integer(data.shape[0]) + integer(data.shape[1]) + b"\x86")
    out.write(b"cnumpy\ndtype\n(" + string(b"u1") + integer(0) + integer(1) + b"tR")
    out.write(b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb")
    out.write(b"\x89" + string(data.tobytes()) + b"tbs.")
    return out.getvalue()


def write_cifar10(folder: Path, pickled: bool = True) -> tuple[np.ndarray, list[int]]:
    folder.mkdir()
    pixels, labels = [], []
    for name in BATCHES:
        images, numbers = batch(4, 10)
        if pickled:
            (folder / name).write_bytes(python2_pickle(images, labels=numbers))
        else:
            raw = b"".join(bytes([label]) + image.tobytes() for label, image in zip(numbers, images, strict=True))
            (folder / f"{name}.bin").write_bytes(raw)
        pixels.append(images)
        labels += numbers
    return np.concatenate(pixels).reshape(-1, 3, 32, 32), labels


@pytest.mark.parametrize("pickled", [True, False])
def test_cifar10_as_published(tmp_path: Path, pickled: bool) -> None:
    name = f"cifar-10-batches-{'py' if pickled else 'bin'}"
    pixels, labels = write_cifar10(tmp_path / name, pickled)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / name, name)
    for source in (tmp_path, tmp_path / name, tmp_path / "cifar.tar.gz"):
        data = open_data("cifar10", source)
        assert (len(data.train), len(data.test)) == (20, 4)
        assert data.validation is data.test
        assert torch.equal(data.train.__getitems__(range(20))["pixel_values"], torch.from_numpy(pixels[:20]))
        assert torch.equal(data.test.__getitems__(range(4))["pixel_values"], torch.from_numpy(pixels[20:]))
        assert data.train.labels.tolist() + data.test.labels.tolist() == labels
        assert data.classes[3] == "cat"


def test_a_python_3_pickle_is_read_too(tmp_path: Path) -> None:
    for protocol in (2, 4):
        for name, size in (("train", 6), ("test", 2)):
            images, numbers = batch(size, 100)
            content = {"data": images, "fine_labels": numbers, "coarse_labels": [0] * size}
            (tmp_path / name).write_bytes(pickle.dumps(content, protocol))
        data = open_data("cifar100", tmp_path)
        assert (len(data.train), data.test.labels.tolist()) == (6, numbers)


def test_cifar100_binary_has_two_labels(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.bin").write_bytes(bytes([19, 99]) + bytes(3072) + bytes([3, 42]) + bytes([255]) * 3072)
    data = open_data("cifar100", tmp_path)
    assert data.train.labels.tolist() == [99, 42]
    assert [data.classes[label] for label in data.train.labels] == ["worm", "leopard"]
    assert data.train[1]["pixel_values"].min() == 255


@pytest.mark.parametrize("channels_last", [True, False])
def test_cifar_npz(tmp_path: Path, channels_last: bool) -> None:
    images = RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    stored = images.transpose(0, 2, 3, 1) if channels_last else images
    labels = np.arange(6)[:, None]
    np.savez(tmp_path / "c.npz", x_train=stored[:4], y_train=labels[:4], x_test=stored[4:], y_test=labels[4:])
    data = open_data("cifar10", tmp_path / "c.npz")
    assert torch.equal(data.train.__getitems__([0, 3])["pixel_values"], torch.from_numpy(images[[0, 3]]))
    assert data.test.labels.tolist() == [4, 5]


def test_a_pickle_with_a_program_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "c")

    class Program:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path(tmp_path / "harm").write_text, ("done",))

    for content in (Program(), {"data": Program(), "labels": [1]}):
        (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps(content))
        with pytest.raises(InputError, match=r"data_batch_2 names .*not read"):
            open_data("cifar10", tmp_path / "c")
    assert not (tmp_path / "harm").exists()


def test_cifar_errors_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    write_cifar10(folder)
    good = (folder / "data_batch_3").read_bytes()
    images, numbers = batch(4, 10)
    for content, words in (
        (good[:100], "data_batch_3 is damaged"),
        (b"", "data_batch_3 is damaged"),
        (pickle.dumps([1]), "data_batch_3 is not a CIFAR batch"),
        (pickle.dumps({"data": images}), "data_batch_3 is not a batch of cifar10: there is no 'labels'"),
        (
            pickle.dumps({"data": images[:, :9], "labels": numbers}),
            r"data_batch_3: the images are uint8 and \[N, 3072\]",
        ),
        (pickle.dumps({"data": images, "labels": [0, 1, 2, 10]}), "sample 11: the label 10 is not in 0 … 9"),
        (pickle.dumps({"data": images, "labels": [0, 1]}), "20 images, but 18 labels"),
    ):
        (folder / "data_batch_3").write_bytes(content)
        with pytest.raises(InputError, match=words):
            open_data("cifar10", folder)
    (folder / "data_batch_3").unlink()
    with pytest.raises(InputError, match="holds no file 'data_batch_3'"):
        open_data("cifar10", folder)
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(b"no tar"))
    with pytest.raises(InputError, match=r"cut.tar.gz is neither a folder nor"):
        open_data("cifar10", tmp_path / "cut.tar.gz")


def test_binary_and_npz_errors(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "c", pickled=False)
    (tmp_path / "c" / "data_batch_5.bin").write_bytes(bytes(3000))
    with pytest.raises(InputError, match=r"data_batch_5.bin holds 3,000 bytes.*multiple of 3,073"):
        open_data("cifar10", tmp_path / "c")
    (tmp_path / "bad.npz").write_bytes(b"PK not")
    with pytest.raises(InputError, match=r"bad.npz is not an .npz archive"):
        open_data("cifar10", tmp_path / "bad.npz")
    np.savez(tmp_path / "part.npz", x_train=np.zeros(3))
    with pytest.raises(InputError, match=r"part.npz needs an array 'y_train'; it holds x_train"):
        open_data("cifar10", tmp_path / "part.npz")
    arrays = {"y_train": np.zeros(2, int), "y_test": np.zeros(2, int)}
    for images, words in (
        (np.zeros((2, 3, 8, 8), np.float32), "images are uint8"),
        (np.zeros((2, 5, 8, 8), np.uint8), "neither 1 nor 3 channels"),
        (np.zeros((0, 3, 8, 8), np.uint8), "holds no images"),
    ):
        np.savez(tmp_path / "x.npz", x_train=images, x_test=images, **arrays)
        with pytest.raises(InputError, match=words):
            open_data("cifar10", tmp_path / "x.npz")


def write_idx(path: Path, array: np.ndarray, zipped: bool = False) -> None:
    raw = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    path.write_bytes(gzip.compress(raw) if zipped else raw)


@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist(tmp_path: Path, zipped: bool) -> None:
    images = {part: RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8) for part in ("train", "t10k")}
    end = ".gz" if zipped else ""
    for part, pixels in images.items():
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{end}", pixels, zipped)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{end}", np.array([9, 0, 1], np.uint8), zipped)
    data = open_data("fashion-mnist", tmp_path)
    assert torch.equal(data.test.__getitems__([2])["pixel_values"], torch.from_numpy(images["t10k"][2:])[:, None])
    assert data.classes[data.train.labels[0]] == "ankle boot"
    assert open_data("mnist", tmp_path).classes[9] == "9"

    file = tmp_path / f"train-images-idx3-ubyte{end}"
    good = file.read_bytes()
    for content, words in ((good[:-5], "damaged|promises"), (b"\0\0\x0d\3", "not an IDX file"), (b"", "not an IDX")):
        file.write_bytes(content)
        with pytest.raises(InputError, match=f"{file.name}.*({words})"):
            open_data("fashion-mnist", tmp_path)
    file.unlink()
    with pytest.raises(InputError, match="holds neither train-images-idx3-ubyte nor"):
        open_data("fashion-mnist", tmp_path)


def write_pictures(root: Path, parts: tuple[str, ...] = ("train", "val")) -> None:
    for part in parts:
        for number, name in enumerate(("n01", "n02")):
            (root / part / name).mkdir(parents=True)
            for picture in range(3):
                pixels = np.full((40, 60, 3), 100 * number + picture, np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{picture}.png")


def test_image_folder(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    data = open_data("imagenet", tmp_path, image_size=16)
    assert data.classes == ("n01", "n02")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.validation is data.test
    assert "2 classes, 6/6 pictures" in data.note
    assert "1,000" in data.note
    found = data.test.__getitems__([5, 0])
    assert found["pixel_values"].shape == (2, 3, 16, 16)
    assert found["pixel_values"].dtype == torch.uint8
    assert found["pixel_values"][:, 0, 3, 3].tolist() == [102, 0]
    assert found["labels"].tolist() == [1, 0]
    assert "1,000" not in open_data("image-folder", tmp_path).note


def test_a_test_folder_of_its_own(tmp_path: Path) -> None:
    write_pictures(tmp_path, ("train", "validation", "test"))
    data = open_data("image-folder", tmp_path)
    assert data.validation is not data.test
    assert str(data.test.pictures[0]).startswith(str(tmp_path / "test"))


def test_evaluation_cuts_the_middle_as_if_resized_first(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    pixels = np.zeros((112, 224, 3), np.uint8)
    pixels[:, :, 0] = np.arange(224)  # the column
    pixels[:, :, 1] = np.arange(112)[:, None]  # the row
    Image.fromarray(pixels).save(tmp_path / "val" / "n01" / "0.png")
    picture = open_data("imagenet", tmp_path, image_size=98).test[0]["pixel_values"]
    # The shorter side 112 · 224/256 = 98: nothing is resized, the middle 98 × 98 is cut out.
    assert torch.equal(picture, torch.from_numpy(pixels[7:105, 63:161].transpose(2, 0, 1).copy()))
    assert middle_box(224, 112) == (63, 7, 161, 105)


def test_random_crops_follow_torch(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    noise = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "train" / "n01" / "0.png")
    train = open_data("imagenet", tmp_path, image_size=16).train
    state = torch.get_rng_state()
    first = train.__getitems__([0, 0])["pixel_values"]
    assert not torch.equal(first[0], first[1])
    torch.set_rng_state(state)
    assert torch.equal(train.__getitems__([0, 0])["pixel_values"], first)


def test_random_boxes_keep_their_bounds() -> None:
    for width, height in ((500, 375), (10, 400), (400, 10), (1, 1)):
        for _ in range(200):
            left, top, right, bottom = random_box(width, height)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            if (width, height) == (500, 375):
                assert 0.07 < (right - left) * (bottom - top) / (width * height) <= 1
                assert 0.74 < (right - left) / (bottom - top) < 1.35


def test_image_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a folder 'train' and a folder 'val'"):
        open_data("imagenet", tmp_path)
    write_pictures(tmp_path)
    with pytest.raises(ConfigError, match="image_size is 0"):
        open_data("imagenet", tmp_path, image_size=0)
    (tmp_path / "val" / "n03").mkdir()
    with pytest.raises(InputError, match="the class 'n03' is only in one of 'train' and 'val'"):
        open_data("imagenet", tmp_path)
    (tmp_path / "train" / "n03").mkdir()
    with pytest.raises(InputError, match="n03 holds no picture"):
        open_data("imagenet", tmp_path)
    (tmp_path / "train" / "n03").rmdir()
    (tmp_path / "val" / "n03").rmdir()
    (tmp_path / "val" / "n01" / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"0.png cannot be opened as an image"):
        open_data("imagenet", tmp_path).test[0]
