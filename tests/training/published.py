"""Tiny datasets in the forms in which the real ones are published, and tiny networks as the Hub holds the real ones.

Every shipped recipe can so be run in seconds: what stands in its file is kept, but for sizes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from data.event_files import noise, write
from data.test_data_images import python2_pickle, write_idx
from PIL import Image

from spikezip.data.cifar_names import CIFAR10

SIZE = 32  # pixels per side
SYNSETS = ("n01440764", "n01443537", "n01484850")
ENGLISH = "a film that is a joy and a bore , though it never tries too hard ."
CHINESE = "房间很好服务也不错就是早餐太差送得慢"


# ---- data: a function per dataset that fills a folder ----


def cifar10(folder: Path) -> None:
    """Pickles, as Python 2 wrote them."""
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        (folder / name).write_bytes(python2_pickle(pixels, labels=rng.integers(0, 10, 4).tolist()))


def cifar100(folder: Path) -> None:
    """The binary version: coarse label, fine label, pixels."""
    rng = np.random.default_rng(1)
    for name, count in (("train.bin", 16), ("test.bin", 4)):
        labels = rng.integers(0, (20, 100), (count, 2), dtype=np.uint8)
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())


def fashion_mnist(folder: Path) -> None:
    rng = np.random.default_rng(2)
    for part, count in (("train", 16), ("t10k", 4)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", pixels, zipped=True)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", rng.integers(0, 10, count, dtype=np.uint8), zipped=True)


def imagenet(folder: Path) -> None:
    """Folders of JPEGs, of many shapes, and one of them grey."""
    rng = np.random.default_rng(3)
    for part, count in (("train", 6), ("val", 2)):
        for synset in SYNSETS:
            (folder / part / synset).mkdir(parents=True)
            for number in range(count):
                shape = (int(rng.integers(40, 90)), int(rng.integers(40, 90)), 3)
                pixels = rng.integers(0, 256, shape if number else shape[:2], dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / synset / f"{synset}_{number}.JPEG")


def cifar10_dvs(folder: Path) -> None:
    """Ten recordings per class: the fewest of which one is held out."""
    for label, name in enumerate(CIFAR10):
        for number in range(10):
            records = noise(seed=10 * label + number, events=60, duration=1_200_000)
            write(folder / name / f"cifar10_{name}_{number}.aedat", records)


def events(folder: Path) -> None:
    for session in (1, 2):
        for label, name in enumerate(("Box", "Mug")):
            records = noise(seed=10 * session + label, events=1600, duration=2_000_000)  # ten windows of 200 ms
            write(folder / f"session{session}" / f"{name}.aedat.gz", records)


def english(count: int, classes: int) -> Iterator[tuple[int, str]]:
    rng = np.random.default_rng(count)
    for number in range(count):
        yield number % classes, " ".join(rng.choice(ENGLISH.split(), int(rng.integers(3, 12))))


def lines(path: Path, count: int, classes: int, encoding: str) -> None:
    path.write_text("".join(f"{label} {text} café\n" for label, text in english(count, classes)), encoding)


def mr(folder: Path) -> None:
    lines(folder / "rt-polarity.all", 40, 2, "latin-1")


def subj(folder: Path) -> None:
    lines(folder / "subj.all", 40, 2, "latin-1")


def sst2(folder: Path) -> None:
    for name, count in (("train.tsv", 32), ("dev.tsv", 6)):
        rows = "".join(f"{text} \t{label}\n" for label, text in english(count, 2))
        (folder / name).write_text(f"sentence\tlabel\n{rows}", "utf-8")


def sst5(folder: Path) -> None:
    for part, count in (("train", 32), ("dev", 5), ("test", 6)):
        lines(folder / f"stsa.fine.{part}", count, 5, "utf-8")


def reviews(path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = [f'{number % 2},"{"".join(rng.choice(list(CHINESE), 6 + number))},很“好”!"\n' for number in range(40)]
    path.write_text("label,review\n" + "".join(rows), "utf-8")


def chnsenticorp(folder: Path) -> None:
    reviews(folder / "ChnSentiCorp_htl_all.csv")


def waimai(folder: Path) -> None:
    reviews(folder / "waimai_10k.csv")


DATA: dict[str, Callable[[Path], None]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion-mnist": fashion_mnist,
    "imagenet": imagenet,
    "cifar10-dvs": cifar10_dvs,
    "events": events,
    "mr": mr,
    "subj": subj,
    "sst2": sst2,
    "sst5": sst5,
    "chnsenticorp": chnsenticorp,
    "waimai": waimai,
}

# ---- networks: a function per network that a recipe starts from ----

TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IMAGE: dict[str, Any] = {"image_size": SIZE, "patch_size": 8}


def vit(folder: Path) -> None:
    """A ViT with a head for the classes of ImageNet, which here are few."""
    config = transformers.ViTConfig(**TINY, **IMAGE, num_labels=len(SYNSETS))
    transformers.ViTForImageClassification(config).save_pretrained(folder)


def mae(folder: Path) -> None:
    """A masked autoencoder: a decoder, and no head."""
    decoder = {f"decoder_{key}": value for key, value in TINY.items()}
    config = transformers.ViTMAEConfig(**TINY, **IMAGE, **decoder)
    transformers.ViTMAEForPreTraining(config).save_pretrained(folder)


def swin(folder: Path) -> None:
    """Two stages, the first with a shifted window. It has a drop path of its own, 0.1, as the published one."""
    config = transformers.SwinConfig(
        image_size=SIZE,
        patch_size=4,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        num_labels=len(SYNSETS),
    )
    assert config.drop_path_rate == 0.1
    transformers.SwinForImageClassification(config).save_pretrained(folder)


def roberta(folder: Path, masked: bool = True) -> None:
    """With its head for masked words and no pooler; a byte-level tokenizer as `vocab.json` and `merges.txt`."""
    words = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words.train_from_iterator([ENGLISH] * 20, vocab_size=300, show_progress=False, special_tokens=special)
    folder.mkdir(exist_ok=True)
    words.save_model(str(folder))
    config = transformers.RobertaConfig(
        **TINY, vocab_size=words.get_vocab_size(), max_position_embeddings=34, type_vocab_size=1
    )
    made = transformers.RobertaForMaskedLM(config) if masked else transformers.RobertaModel(config)
    made.save_pretrained(folder)


def granite(folder: Path) -> None:
    """A bare RoBERTa, with a pooler that no head reads."""
    roberta(folder, masked=False)


def bert(folder: Path, letters: str = CHINESE, masked: bool = True) -> None:
    """A BERT with its head for masked words, and a `vocab.txt`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *dict.fromkeys(letters), *(f"##{letter}" for letter in dict.fromkeys(letters))]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    config = transformers.BertConfig(**TINY, vocab_size=len(words), max_position_embeddings=32)
    made = transformers.BertForMaskedLM(config) if masked else transformers.BertModel(config)
    made.save_pretrained(folder)


def minilm(folder: Path) -> None:
    bert(folder, letters="abcdefghijklmnopqrstuvwxyz,.", masked=False)


def m3e(folder: Path) -> None:
    bert(folder, masked=False)


# By what the recipe names; its own recipes name none, and say in their names what they want.
NETWORKS: dict[str, Callable[[Path], None]] = {
    "WinKawaks/vit-small-patch16-224": vit,
    "facebook/vit-mae-base": mae,
    "facebook/vit-mae-large": mae,
    "microsoft/swin-tiny-patch4-window7-224": swin,
    "FacebookAI/roberta-base": roberta,
    "FacebookAI/roberta-large": roberta,
    "hfl/chinese-roberta-wwm-ext": bert,
    "hfl/chinese-roberta-wwm-ext-large": bert,
    "cifar10-vit-taught-longer": vit,
    **{f"{data}-granite": granite for data in ("sst2", "mr", "subj", "sst5")},
    **{f"{data}-minilm": minilm for data in ("sst2", "mr", "subj", "sst5")},
    **{f"{data}-m3e": m3e for data in ("chnsenti", "waimai")},
}


def made(root: Path, make: Callable[[Path], None]) -> Path:
    """The folder that this function fills; filled once."""
    folder = root / make.__name__
    if not folder.exists():
        folder.mkdir(parents=True)
        torch.manual_seed(0)
        make(folder)
    return folder


# ---- sizes ----


def sizes(recipe: Any) -> dict[str, Any]:
    """What a recipe must be told to be small, by dotted key."""
    found: dict[str, Any] = {"precision": "float32", "workers": 0}  # bf16 is for GPUs
    if recipe.data.image_size is not None:
        found["data.image_size"] = SIZE
    if recipe.data.max_length is not None:
        found["data.max_length"] = 16
    if "bins" in recipe.data.options:
        found["data.options.size"] = SIZE
    if recipe.model.type == "swin":
        found |= {"model.config.embed_dim": 16, "model.config.depths": [2, 1, 1], "model.config.num_heads": [2, 4, 4]}
    elif recipe.model.type == "regnet":
        small = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "groups_width": 8}
        found |= {f"model.config.{key}": value for key, value in small.items()}
    elif recipe.model.type is not None or "patch_size" in recipe.model.config:
        small = {"image_size": SIZE, "patch_size": 8, **TINY}
        found |= {f"model.config.{key}": value for key, value in small.items()}
    batch = 30 if recipe.data.name == "cifar10-dvs" else 8  # at least two steps, the first of them with a rate of 0
    for name in ("finetune", "relu", "qat"):
        stage = getattr(recipe.stages, name)
        if stage is None:
            continue
        found |= {
            f"stages.{name}.epochs": 1.0,
            f"stages.{name}.batch_size": batch,
            f"stages.{name}.warmup_epochs": 0.5,
            f"stages.{name}.evaluate_every": 1.0,
        }
        if stage.micro_batch_size is not None:
            found[f"stages.{name}.micro_batch_size"] = batch // 2  # accumulated, as on fewer GPUs than the paper's
    if recipe.data.name == "imagenet":
        found["data.options.image_size"] = SIZE  # pictures are cut to it when they are decoded
    if recipe.stages.quantize is None:  # a teacher
        return found
    return found | {"stages.quantize.batches": 1, "stages.quantize.batch_size": 8, "stages.verify.samples": 4}
