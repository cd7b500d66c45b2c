"""What a dataset is to the rest of the library: named splits that hand out whole batches."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

IMAGES, TEXT, FRAMES = "images", "text", "frames"


class Split(Dataset[dict[str, Any]], ABC):
    """Samples in a fixed order.

    A `DataLoader` asks `__getitems__` for a whole batch at once, so that a batch of arrays costs one indexing and not
    one Python call per sample; its `collate_fn` has nothing left to do (`collate`).
    """

    labels: Tensor  # class numbers, int64, one per sample

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        """The batch of these samples: model inputs (before `Pixels` and `Augment`), and "labels"."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def take(self, indices: Sequence[int]) -> "Split":
        """These samples of the split, in this order, as a split."""
        return Part(self, indices)


class Part(Split):
    """Some samples of another split; nothing is copied but their labels."""

    def __init__(self, whole: Split, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, list(indices)
        self.labels = whole.labels[self.indices]

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        return self.whole.__getitems__([self.indices[index] for index in indices])


def collate(batch: dict[str, Any]) -> dict[str, Any]:
    """The `collate_fn` for a `DataLoader` over a `Split`: the batch is whole already."""
    return batch


@dataclass(frozen=True)
class Data:
    """A dataset, opened.

    Args:
        kind: "images" (uint8 `pixel_values`, [B, C, H, W]), "frames" (events binned into channels, float32
            `pixel_values`) or "text" (a split of `texts` until it is tokenised).
        validation: what is looked at during training. `test`: what is reported. Where a benchmark has only one of the
            two, both are the same object.
        note: how the splits were made; written into the run folder.
        mean, std: per channel, for pixels in 0 … 1.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    note: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
