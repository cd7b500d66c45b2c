"""The paper's feature-map figure as a document: images or words, and where a network looks at chosen steps."""

import binascii
import math
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spikezip.errors import InputError
from spikezip.measure.document import Settings
from spikezip.measure.plain import Document, Plain, body_of

FORMAT, VERSION = "spikezip-attention", 1


@dataclass(frozen=True)
class Picture(Plain):
    """An image: bytes `[height, width, channels]`, in base64.

    Example:
        >>> Picture.of(torch.tensor([[[0], [255]]], dtype=torch.uint8))
        Picture(height=1, width=2, channels=1, bytes='AP8=')
    """

    height: int
    width: int
    channels: int
    bytes: str

    def check(self) -> None:
        if self.channels not in (1, 3) or min(self.height, self.width) < 1:
            raise InputError(f"an image is [H, W, 1 or 3], not {[self.height, self.width, self.channels]}")
        try:
            found = len(b64decode(self.bytes, validate=True))
        except binascii.Error as error:
            raise InputError(f"bytes: not base64: {error}") from None
        wanted = self.height * self.width * self.channels
        if found != wanted:
            raise InputError(
                f"bytes: expected {wanted:,} for {[self.height, self.width, self.channels]}, not {found:,}"
            )

    @classmethod
    def of(cls, image: Tensor) -> "Picture":
        """From bytes `[H, W, 1 or 3]`."""
        height, width, channels = image.shape
        return cls(height, width, channels, b64encode(image.contiguous().numpy().tobytes()).decode("ascii"))

    def tensor(self) -> Tensor:
        """The bytes `[H, W, 1 or 3]`."""
        flat = torch.frombuffer(bytearray(b64decode(self.bytes)), dtype=torch.uint8)
        return flat.view(self.height, self.width, self.channels)


@dataclass(frozen=True)
class AttentionSample(Plain):
    """One input, and the attention on it. It is an image, with its grid of patches, or a text in tokens.

    Attributes:
        index: its place in the data, counted from 0.
        label, answer: the class that it has, and the one that the network ends with; None where there is none.
        t_eq: steps up to its last spike; None if the run ended before.
        top: the QANN's largest weight. The others are shares of it, rounded to 4 decimals.
        weights: for each of the document's steps, the attention accumulated so far, on every patch or token.
        qann: the QANN's.
        grid: height and width in patches.
    """

    index: int
    label: str | None
    answer: str | None
    t_eq: int | None
    top: float
    weights: tuple[tuple[float, ...], ...]
    qann: tuple[float, ...]
    picture: Picture | None = None
    grid: tuple[int, ...] | None = None
    tokens: tuple[str, ...] = ()

    def check(self) -> None:
        if (self.picture is None) != (self.grid is None) or (self.picture is None) != bool(self.tokens):
            raise InputError("expected a picture and its grid, or tokens")
        if self.grid is not None and (len(self.grid) != 2 or min(self.grid) < 1):
            raise InputError(f"grid: expected height and width in patches, not {list(self.grid)}")
        places = len(self.tokens) if self.grid is None else math.prod(self.grid)
        for name, values in (
            *((f"weights[{i}]", values) for i, values in enumerate(self.weights)),
            ("qann", self.qann),
        ):
            if len(values) != places:
                raise InputError(f"{name}: expected {places} weights, one for each place, not {len(values)}")

    @property
    def said(self) -> str:
        """What the input is and what the network says, in a line each, as far as they are known.

        Example:
            >>> AttentionSample(0, "cat", "dog", 9, 1.0, ((0.5,),), (1.0,), tokens=("miaow",)).said.splitlines()
            ['cat', 'SNN: dog']
        """
        return "\n".join(filter(None, (self.label, None if self.answer is None else f"SNN: {self.answer}")))


@dataclass(frozen=True)
class AttentionDocument(Document):
    """What the figure shows: images (or one text) of a data set, and where one network looks after each of some steps.

    Attributes:
        map: which attention it is: a site, averaged over heads, or "rolled out" over all layers.
        source: whose: "the class token", …
        steps: after which the attention is shown.

    Example:
        >>> import tempfile
        >>> sample = AttentionSample(3, "good", "good", 9, 0.25, ((0.5, 0.0),), (1.0, 0.5), tokens=("so", "fine"))
        >>> document = AttentionDocument(
        ...     name="tiny",
        ...     class_="BertForSequenceClassification",
        ...     parameters=10,
        ...     levels=16,
        ...     data="dev.tsv",
        ...     map="layer.0.attention.p",
        ...     source="the first token",
        ...     steps=(8,),
        ...     settings=Settings("equilibrium"),
        ...     device="cpu",
        ...     samples=(sample,),
        ... )
        >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ...     path = document.save(file.name)
        ...     AttentionDocument.load(path) == document
        True
        >>> [label.get_text() for label in document.figure().axes[0].get_yticklabels()]
        ['T = 8', 'QANN']
    """

    name: str
    class_: str
    parameters: int
    levels: int
    data: str | None
    map: str
    source: str
    steps: tuple[int, ...]
    settings: Settings
    device: str
    samples: tuple[AttentionSample, ...]
    command: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        if not self.steps or min(self.steps) < 1 or len(set(self.steps)) < len(self.steps):
            raise InputError(f"steps: expected whole numbers from 1, each once, not {list(self.steps)}")
        indices = [sample.index for sample in self.samples]
        if not indices or len(set(indices)) < len(indices):
            raise InputError(f"samples: expected at least one, and each once, not {indices}")
        if any(sample.picture is None for sample in self.samples) and len(self.samples) > 1:
            raise InputError("samples: a text stands alone")
        for sample in self.samples:
            if len(sample.weights) != len(self.steps):
                found = len(sample.weights)
                raise InputError(f"sample {sample.index} has weights for {found} steps, not for {len(self.steps)}")

    def only(self, indices: Sequence[int]) -> "AttentionDocument":
        """With these samples, in this order."""
        known = {sample.index: sample for sample in self.samples}
        for index in indices:
            if index not in known:
                raise InputError(f"there is no sample {index} in {self.name!r}; there is {', '.join(map(str, known))}")
        return replace(self, samples=tuple(known[index] for index in indices))

    def figure(self) -> Any:
        """A matplotlib figure."""
        from spikezip.show.feature_map import draw

        return draw(self)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the name and version of the format."""
        plain = super().to_json()
        plain = {"class" if key == "class_" else key: value for key, value in plain.items()}
        return {"format": FORMAT, "version": VERSION, **plain}

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> "AttentionDocument":
        rest = body_of(data, FORMAT, VERSION, "attention document", "spikezip attention", "write it again")
        if "class" in rest:
            rest["class_"] = rest.pop("class")
        return super().from_json(rest, where)
