"""The registry of datasets, the fixed order, and what importing it loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from spikezip.data import Data, Split, collate, names, open_data
from spikezip.data.images import Images
from spikezip.data.order import hold_out, shuffled
from spikezip.errors import ConfigError, InputError


def write_sst5(folder: Path, count: int = 50) -> Path:
    for part in ("train", "dev", "test"):
        lines = [f"{number % 5} {part} sentence {number}\n" for number in range(count)]
        (folder / f"stsa.fine.{part}").write_text("".join(lines))
    return folder


def test_the_order_is_the_same_everywhere() -> None:
    assert shuffled(10, 0) == [7, 4, 9, 3, 8, 2, 6, 0, 5, 1]
    assert shuffled(10, 1) == [7, 4, 8, 6, 5, 2, 3, 0, 9, 1]
    assert sorted(shuffled(1000, 3)) == list(range(1000))


def test_held_out_samples_are_apart() -> None:
    most, held = hold_out(10_662, 0)
    assert (len(most), len(held)) == (9_596, 1_066)
    assert held[:5] == [15, 36, 44, 46, 76]
    assert sorted(most + held) == list(range(10_662))
    assert hold_out(10_662, 1)[1] != held


def test_an_unknown_dataset_is_named_with_those_like_it() -> None:
    with pytest.raises(ConfigError, match=r"no dataset 'cifar-10'; did you mean .*cifar10.* There are: cifar10, "):
        open_data("cifar-10", ".")
    with pytest.raises(ConfigError, match=r"no dataset 'zzz'; There are: cifar10, "):
        open_data("zzz", ".")


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="imagenet has no option 'size'; it takes image_size"):
        open_data("imagenet", tmp_path, size=224)
    with pytest.raises(ConfigError, match="mr has no option 'image_size'; it takes none"):
        open_data("mr", tmp_path, image_size=224)


def test_limit_keeps_the_same_samples(tmp_path: Path) -> None:
    write_sst5(tmp_path)
    whole, data = open_data("sst5", tmp_path), open_data("sst5", tmp_path, limit=20)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [20, 20, 20]
    assert data.train.texts == [whole.train.texts[index] for index in shuffled(50, 0)[:20]]
    assert data.train.labels.tolist() == [int(text.split()[-1]) % 5 for text in data.train.texts]
    assert "only 20 samples" in data.note
    assert len(open_data("sst5", tmp_path, limit=1000).train) == 50
    with pytest.raises(ConfigError, match="limit is 0"):
        open_data("sst5", tmp_path, limit=0)


def test_a_limited_split_of_images_hands_out_its_own_samples() -> None:
    pixels = torch.arange(6, dtype=torch.uint8)[:, None, None, None].expand(6, 1, 2, 2)
    part = Images(pixels, torch.arange(6)).take([4, 1, 5])
    assert len(part) == 3
    batch = part.__getitems__([2, 0])
    assert batch["labels"].tolist() == [5, 4]
    assert batch["pixel_values"][:, 0, 0, 0].tolist() == [5, 4]
    assert part[1]["labels"] == 1


def test_a_loader_takes_whole_batches() -> None:
    split = Images(torch.arange(5, dtype=torch.uint8)[:, None, None, None], torch.arange(5))
    loader = DataLoader(split, batch_size=2, collate_fn=collate)
    assert [batch["labels"].tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert [batch["pixel_values"].flatten().tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_validation_stays_test(tmp_path: Path) -> None:
    (tmp_path / "subj.all").write_text("".join(f"{number % 2} s {number}\n" for number in range(40)))
    data = open_data("subj", tmp_path, limit=3)
    assert isinstance(data, Data)
    assert isinstance(data.test, Split)
    assert data.validation is data.test


def test_missing_package_for_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("cifar10", "fashion-mnist", "imagenet", "sst2"):
        with pytest.raises(InputError, match=r"someone/something: .* needs datasets: pip install datasets"):
            open_data(name, "someone/something")


def test_importing_loads_no_optional_package() -> None:
    code = """
import sys, json, torch
from transformers import PreTrainedModel
before = set(sys.modules)  # what torch or transformers load by themselves is not ours to forbid
import spikezip.data
optional = {"datasets", "kornia", "tonic", "typer", "rich", "PIL", "triton", "matplotlib", "torchvision"}
ours = [name for name in sys.modules if name.startswith("spikezip.data.")]
print(json.dumps([sorted(optional & (set(sys.modules) - before)), sorted(ours)]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    optional, ours = json.loads(run.stdout)
    assert not optional
    assert "spikezip.data.base" in ours
    assert not {"spikezip.data.cifar", "spikezip.data.image_folder", "spikezip.data.tonic"} & set(ours)


def test_every_registered_image_and_text_dataset_can_be_imported(tmp_path: Path) -> None:
    for name in names():
        if name not in ("cifar10-dvs", "events", "tonic"):  # tested with the event datasets
            with pytest.raises(InputError, match=str(tmp_path)):
                open_data(name, tmp_path)  # an empty folder
