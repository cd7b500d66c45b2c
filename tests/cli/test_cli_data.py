"""What `--data` names, as batches of a model."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from shell import fails

import spikezip
from spikezip.cli import data
from spikezip.errors import InputError


@pytest.fixture(scope="module")
def vit(home: Path) -> transformers.PreTrainedModel:
    return transformers.ViTForImageClassification.from_pretrained(home / "vit")


@pytest.fixture(scope="module")
def bert(home: Path) -> transformers.PreTrainedModel:
    return transformers.BertForSequenceClassification.from_pretrained(home / "bert")


def test_images_are_normalised_and_floats_are_not(
    home: Path, tmp_path: Path, vit: transformers.PreTrainedModel
) -> None:
    images = np.full((3, 16, 16, 3), 255, np.uint8)
    (batch,) = data.batches(data.Samples(images=images), vit, home / "vit", 4)
    assert batch["pixel_values"].shape == (3, 3, 16, 16)
    assert batch["pixel_values"][0, :, 0, 0].tolist() == pytest.approx([3.0, 2.5, 2.0])
    (batch,) = data.batches(data.Samples(images=images), vit, tmp_path, 4)  # no image processor there
    assert batch["pixel_values"].unique().tolist() == [1.0]
    floats = np.random.default_rng(0).normal(size=(3, 3, 16, 16))
    (batch,) = data.batches(data.Samples(images=floats), vit, home / "vit", 4)
    assert torch.equal(batch["pixel_values"], torch.tensor(floats, dtype=torch.float32))
    (batch,) = data.batches(data.Samples(images=floats[:, 0]), vit, home / "vit", 4)
    assert batch["pixel_values"].shape == (3, 3, 16, 16)


def test_a_folder_of_pictures(home: Path, tmp_path: Path, vit: transformers.PreTrainedModel) -> None:
    image = pytest.importorskip("PIL.Image")
    for i in range(3):
        image.new("RGB", (20, 30), (i, 0, 255)).save(tmp_path / f"{i}.png")
    sizes = [len(batch["pixel_values"]) for batch in data.batches(data.read(str(tmp_path)), vit, tmp_path, 2)]
    assert sizes == [2, 1]
    (tmp_path / "3.png").write_text("not a picture")
    with pytest.raises(InputError, match=r"3\.png cannot be opened"):
        list(data.batches(data.read(str(tmp_path)), vit, tmp_path, 2))


def test_folders_of_pictures_are_classes(tmp_path: Path, vit: transformers.PreTrainedModel) -> None:
    """A folder that is named as the model names a class, or by its number, is that class."""
    image = pytest.importorskip("PIL.Image")
    names = [vit.config.id2label[number] for number in range(2)]
    for folders, expected in ((names, [0, 0, 1]), (["0000", "0003"], [0, 0, 3])):
        there = tmp_path / folders[0]
        for folder, count in zip(folders, (2, 1), strict=True):
            (there / folder).mkdir(parents=True)
            for number in range(count):
                image.new("RGB", (8, 8)).save(there / folder / f"{number}.png")
        samples = data.read(str(there))
        assert data.label_tensor(samples.labels or (), vit.config).tolist() == expected
        assert samples.without_labels().labels is None
    with pytest.raises(InputError, match="labels such as 'cats' are neither numbers nor among"):
        data.label_tensor(["cats", "dogs"], vit.config)
    for folder in ("a", "a/b"):  # pictures beside a folder, and one folder alone: these are no classes
        (tmp_path / "plain" / folder).mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8)).save(tmp_path / "plain" / folder / "0.png")
    assert data.read(str(tmp_path / "plain")).labels is None


def test_sentences_are_padded_and_cut(home: Path, tmp_path: Path, bert: transformers.PreTrainedModel) -> None:
    (tmp_path / "s.txt").write_text("a good film\n\n" + "very " * 50 + "bad\n")
    (batch,) = data.batches(data.read(str(tmp_path / "s.txt")), bert, home / "bert", 4)
    assert batch["input_ids"].shape == (2, 12)
    assert batch["attention_mask"].sum(dim=1).tolist() == [5, 12]
    assert "labels" not in batch


def test_tables_keep_quotation_marks_and_take_class_names(
    home: Path, tmp_path: Path, bert: transformers.PreTrainedModel
) -> None:
    (tmp_path / "t.tsv").write_text('label\ttext\nLABEL_1\t"so good\nLABEL_0\tbad" film\n')
    samples = data.read(str(tmp_path / "t.tsv"))
    assert samples.texts == ['"so good', 'bad" film']
    (batch,) = data.batches(samples, bert, home / "bert", 4)
    assert batch["labels"].tolist() == [1, 0]
    (tmp_path / "t.csv").write_text('\ufefflabel,review\n1,"good, very good"\n', encoding="utf-8")
    assert data.read(str(tmp_path / "t.csv")) == data.Samples(texts=["good, very good"], labels=["1"])


def test_data_that_cannot_be_read(home: Path, tmp_path: Path) -> None:
    def problem(name: str, content: bytes | None = None) -> str:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as error:
            data.read(str(tmp_path / name))
        return str(error.value)

    assert "no such file" in problem("absent.txt")
    assert "not one of .txt, .tsv, .csv, .npz" in problem("x.parquet", b"")
    assert "its first line names a, b" in problem("x.csv", b"a,b\n1,2\n")
    assert "line 3: there is no 'text'" in problem("y.tsv", b"label\ttext\n1\tgood\n0\n")
    assert "holds no samples" in problem("x.txt", b"\n\n")
    assert "cannot be read" in problem("latin.txt", "café".encode("latin-1"))
    assert "not an .npz archive" in problem("x.npz", b"hello")
    np.savez(tmp_path / "z.npz", z=[1])
    assert "it holds z" in problem("z.npz")
    np.savez(tmp_path / "int.npz", x=np.zeros((2, 3, 4, 4), int))
    assert "not int64 [2, 3, 4, 4]" in problem("int.npz")
    np.savez(tmp_path / "short.npz", x=np.zeros((2, 3, 4, 4)), y=[1])
    assert "2 samples, but 1 labels" in problem("short.npz")


def test_data_that_does_not_fit_the_model(home: Path, tmp_path: Path) -> None:
    text, images = home / "dev.tsv", home / "images.npz"
    assert "not text" in fails("verify", home / "vit-qann", "--data", text)
    assert "not images" in fails("verify", home / "bert-qann", "--data", images)
    (tmp_path / "labels.csv").write_text("text,label\na film,odd\n")
    assert "'odd'" in fails("simulate", home / "bert-snn", "--data", tmp_path / "labels.csv")
    spikezip.save(spikezip.load(home / "bert-qann"), tmp_path / "bare")
    assert "holds no tokenizer" in fails("verify", tmp_path / "bare", "--data", text)
