"""The text benchmarks: MR, Subj, SST-2, SST-5, ChnSentiCorp, Waimai."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikezip.data import hub
from spikezip.data.base import TEXT, Data, Split
from spikezip.data.images import check_labels
from spikezip.data.order import hold_out
from spikezip.data.text_files import TEXT_COLUMNS, Labelled, read_lines, read_table
from spikezip.errors import InputError

LABEL_COLUMNS = ("label", "labels")


class Texts(Split):
    """Sentences with their labels; `tokenize` turns them into what a model takes.

    Example:
        >>> Texts(["so good", "so bad"], torch.tensor([1, 0])).take([1]).texts
        ['so bad']
    """

    def __init__(self, texts: Sequence[str], labels: Tensor) -> None:
        self.texts, self.labels = list(texts), labels

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        chosen = [int(index) for index in indices]
        return {"texts": [self.texts[index] for index in chosen], "labels": self.labels[chosen]}

    def take(self, indices: Sequence[int]) -> "Texts":
        return Texts([self.texts[index] for index in indices], self.labels[list(indices)])


@dataclass(frozen=True)
class _Corpus:
    name: str
    classes: tuple[str, ...]
    files: tuple[str, ...]  # train, validation, test; or train, validation; or one for all
    counts: tuple[int, ...]  # published
    encoding: str | None = None  # of `label text` lines; None: a table


_SIGNS = ("negative", "positive")
_MR = _Corpus("mr", _SIGNS, ("rt-polarity.all",), (10_662,), "latin-1")
_SUBJ = _Corpus("subj", ("subjective", "objective"), ("subj.all",), (10_000,), "latin-1")
_SST2 = _Corpus("sst2", _SIGNS, ("train.tsv", "dev.tsv"), (67_349, 872))
_SST5 = _Corpus(
    "sst5",
    ("very negative", "negative", "neutral", "positive", "very positive"),
    ("stsa.fine.train", "stsa.fine.dev", "stsa.fine.test"),
    (8_544, 1_101, 2_210),
    "utf-8",
)
_CHNSENTICORP = _Corpus("chnsenticorp", _SIGNS, ("ChnSentiCorp_htl_all.csv",), (7_766,))
_WAIMAI = _Corpus("waimai", _SIGNS, ("waimai_10k.csv",), (11_987,))


def open_mr(source: str | Path, *, seed: int = 0) -> Data:
    """Sentences of film reviews (Pang and Lee 2005): a file `rt-polarity.all` of `label text` lines, in latin-1.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lines = "".join(f"{n % 2} sentence {n}\\n" for n in range(20))
        ...     _ = Path(folder, "rt-polarity.all").write_text(lines)
        ...     data = open_mr(folder)
        >>> len(data.train), data.test.texts
        (18, ['sentence 15', 'sentence 18'])
    """
    return _open(_MR, source, seed)


def open_subj(source: str | Path, *, seed: int = 0) -> Data:
    """Subjective or objective sentences (Pang and Lee 2004): a file `subj.all`, in the same form."""
    return _open(_SUBJ, source, seed)


def open_sst2(source: str | Path, *, seed: int = 0, config: str | None = None) -> Data:
    """The Stanford Sentiment Treebank, two classes, as in GLUE: `train.tsv` and `dev.tsv` with a header.

    The labels of GLUE's test set are secret, so validation and test are both the development set. From the Hub:
    "stanfordnlp/sst2", or "nyu-mll/glue" with `config="sst2"`.
    """
    return _open(_SST2, source, seed, config)


def open_sst5(source: str | Path, *, seed: int = 0) -> Data:
    """The Stanford Sentiment Treebank, five classes: `stsa.fine.train`, `.dev` and `.test`, `label text` lines."""
    return _open(_SST5, source, seed)


def open_chnsenticorp(source: str | Path, *, seed: int = 0) -> Data:
    """Chinese hotel reviews: a file `ChnSentiCorp_htl_all.csv` with the columns `label` and `review`."""
    return _open(_CHNSENTICORP, source, seed)


def open_waimai(source: str | Path, *, seed: int = 0) -> Data:
    """Chinese reviews of take-away food: a file `waimai_10k.csv` with the columns `label` and `review`."""
    return _open(_WAIMAI, source, seed)


def _open(corpus: _Corpus, source: str | Path, seed: int, config: str | None = None) -> Data:
    path = Path(source)
    if path.exists():
        parts, classes = _from_files(corpus, path), corpus.classes
    else:
        parts, classes = _from_hub(corpus, str(source), config)
    published = "/".join(f"{count:,}" for count in corpus.counts)
    read = "/".join(f"{len(part):,}" for part in parts)
    note = f"{corpus.name}: {read} sentences{', as published' if read == published else f' (published: {published})'}."
    if len(parts) == 1:
        train_indices, test_indices = hold_out(len(parts[0]), seed)
        if not test_indices:
            raise InputError(f"{source} holds {len(parts[0])} sentences, too few to hold a tenth of them out")
        parts = [parts[0].take(train_indices), parts[0].take(test_indices)]
        seen = set(parts[0].texts)
        note += (
            f" It has no split of its own: the tenth whose SHA-256 of '{seed}:index' (index from 0) is smallest is "
            f"held out ({len(parts[0]):,}/{len(parts[1]):,}); {sum(text in seen for text in parts[1].texts):,} of its "
            "texts also occur among the others."
        )
    if len(parts) == 2:
        note += " Validation and test are the same sentences."
    return Data(
        name=corpus.name,
        kind=TEXT,
        classes=classes,
        train=parts[0],
        validation=parts[1],
        test=parts[-1],
        note=note,
    )


def _from_files(corpus: _Corpus, path: Path) -> list[Texts]:
    if path.is_dir():
        files = [path / name for name in corpus.files]
    elif len(corpus.files) == 1:
        files = [path]
    else:
        raise InputError(f"{path} is a file; {corpus.name} is a folder with {', '.join(corpus.files)}")
    for file in files:
        if not file.is_file():
            raise InputError(f"{path} holds no {file.name}; {corpus.name} is {', '.join(corpus.files)}")
    return [_texts(_read(corpus, file)) for file in files]


def _read(corpus: _Corpus, file: Path) -> Labelled:
    if corpus.encoding is None:
        return read_table(file, len(corpus.classes))
    return read_lines(file, len(corpus.classes), corpus.encoding)


def _from_hub(corpus: _Corpus, source: str, config: str | None) -> tuple[list[Texts], tuple[str, ...]]:
    """The splits that the Hub has; where it has only "train", the one to be split here."""
    splits = hub.load(source, config)
    names = ("train", *hub.held(splits, LABEL_COLUMNS, source))
    classes = hub.class_names(splits["train"], LABEL_COLUMNS, corpus.classes, source)
    return [_hub_texts(splits, name, corpus, source) for name in names], classes


def _hub_texts(splits: Mapping[str, Any], name: str, corpus: _Corpus, source: str) -> Texts:
    split = splits[name]
    labels = hub.class_numbers(split, LABEL_COLUMNS, source)
    check_labels(np.array(labels), len(corpus.classes), f"{source} ({name})")
    return _texts((list(split[hub.column(split, TEXT_COLUMNS, source)]), labels))


def _texts(labelled: Labelled) -> Texts:
    return Texts(labelled[0], torch.tensor(labelled[1]))
