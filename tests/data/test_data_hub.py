"""Datasets of the Hub, through a stand-in for the package `datasets`."""

import sys
import types
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spikezip.data import open_data
from spikezip.errors import InputError


class Column:
    """As newer versions hand out a column: a sequence that is no list."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __iter__(self) -> Any:
        return iter(self.values)


class Table:
    def __init__(self, columns: dict[str, list[Any]], names: list[str] | None = None) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: types.SimpleNamespace() for name in columns}
        if names is not None:
            self.features["label"].names = names

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return Column(self.columns[key])
        return {name: values[key] for name, values in self.columns.items()}


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None], Any]:
    held: dict[tuple[str, str | None], Any] = {}

    def load_dataset(name: str, config: str | None = None) -> Any:
        if (name, config) not in held:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return held[name, config]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return held


def pictures(count: int, size: tuple[int, ...] = (32, 32, 3)) -> list[Image.Image]:
    return [Image.fromarray(np.full(size, number, np.uint8)) for number in range(count)]


def test_images(the_hub: dict[tuple[str, str | None], Any]) -> None:
    the_hub["uoft-cs/cifar10", None] = {
        "train": Table({"img": pictures(3), "label": [9, 0, 5]}),
        "test": Table({"img": pictures(2), "label": [1, 2]}),
    }
    data = open_data("cifar10", "uoft-cs/cifar10")
    assert data.train.labels.tolist() == [9, 0, 5]
    assert data.test.__getitems__([1])["pixel_values"].shape == (1, 3, 32, 32)
    assert data.test[1]["pixel_values"].unique().tolist() == [1]

    both = {"img": pictures(2), "fine_label": [99, 3], "coarse_label": [1, 1]}
    the_hub["uoft-cs/cifar100", None] = {"train": Table(both), "test": Table(both)}
    assert open_data("cifar100", "uoft-cs/cifar100").train.labels.tolist() == [99, 3]

    grey = {"image": pictures(2, (28, 28)), "label": [0, 1]}
    the_hub["zalando-datasets/fashion_mnist", None] = {"train": Table(grey), "test": Table(grey)}
    assert open_data("fashion-mnist", "zalando-datasets/fashion_mnist").train[0]["pixel_values"].shape == (1, 28, 28)


def test_imagenet_decodes_when_asked(the_hub: dict[tuple[str, str | None], Any]) -> None:
    def rows(labels: list[int]) -> Table:
        return Table({"image": pictures(len(labels), (40, 60, 3)), "label": labels}, names=["tench", "goldfish"])

    the_hub["ILSVRC/imagenet-1k", None] = {"train": rows([0, 1]), "validation": rows([1]), "test": rows([-1, -1])}
    data = open_data("imagenet", "ILSVRC/imagenet-1k", image_size=8)
    assert data.classes == ("tench", "goldfish")
    assert data.test is data.validation  # the labels of the test split are secret
    assert data.train.__getitems__([1, 0])["pixel_values"][:, 0, 0, 0].tolist() == [1, 0]


def test_text_with_the_splits_that_the_hub_has(the_hub: dict[tuple[str, str | None], Any]) -> None:
    train = Table({"sentence": ["good", "bad"], "label": [1, 0]}, names=["negative", "positive"])
    dev = Table({"sentence": ["fine"], "label": [1]})
    the_hub["nyu-mll/glue", "sst2"] = {
        "train": train,
        "validation": dev,
        "test": Table({"sentence": ["?"], "label": [-1]}),
    }
    data = open_data("sst2", "nyu-mll/glue", config="sst2")
    assert data.train.texts == ["good", "bad"]
    assert data.validation.texts == ["fine"]
    assert data.test is data.validation

    three = {part: Table({"text": [part], "label": [1]}) for part in ("train", "validation", "test")}
    the_hub["someone/mr", None] = three
    assert open_data("mr", "someone/mr").test.texts == ["test"]


def test_text_with_one_split_is_split_here(the_hub: dict[tuple[str, str | None], Any]) -> None:
    rows = {"text": [f"s {n}" for n in range(30)], "label": [n % 2 for n in range(30)]}
    rows["label_text"] = ["objective", "subjective"] * 15
    the_hub["someone/subj", None] = {"train": Table(rows)}
    data = open_data("subj", "someone/subj")
    assert data.test.texts == ["s 15", "s 20", "s 25"]
    assert data.classes == ("objective", "subjective")  # as the Hub numbers them, not as the published file does


def test_errors(the_hub: dict[tuple[str, str | None], Any]) -> None:
    with pytest.raises(
        InputError, match="nobody/nothing: there is no such file or folder, and the Hub does not give it"
    ):
        open_data("mr", "nobody/nothing")
    the_hub["a/b", None] = {"validation": Table({"text": ["x"], "label": [0]})}
    with pytest.raises(InputError, match="a/b has no split 'train'; it has validation"):
        open_data("mr", "a/b")
    the_hub["a/b", None] = {"train": Table({"words": ["x"], "label": [0]})}
    with pytest.raises(
        InputError, match="a/b needs a column sentence or text or content or review; it has words, label"
    ):
        open_data("mr", "a/b")
    the_hub["a/b", None] = {"train": Table({"text": ["x"] * 20, "label": [0, 2] * 10})}
    with pytest.raises(InputError, match=r"a/b \(train\), sample 1: the label 2 is not in 0 … 1"):
        open_data("mr", "a/b")
    the_hub["a/b", None] = {"train": Table({"text": ["x"], "label": ["good"]})}
    with pytest.raises(InputError, match="the column 'label' does not hold whole numbers"):
        open_data("mr", "a/b")
    the_hub["a/b", None] = {"train": Table({"text": ["x"], "label": [0]}, names=["a", "b", "c"])}
    with pytest.raises(InputError, match="has the classes a, b, c; expected 2"):
        open_data("mr", "a/b")
    the_hub["a/b", None] = {"train": Table({"img": pictures(1), "label": [0]})}
    with pytest.raises(InputError, match="a/b has no split 'test'; it has train"):
        open_data("cifar10", "a/b")
