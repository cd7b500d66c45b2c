"""What a measurement that was stopped needs to go on: its sums so far, and of what they are the sums."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.errors import CheckpointError, ConfigError, InputError
from spikezip.measure.processes import Processes
from spikezip.measure.tally import Tally
from spikezip.program.batch import Batch

FORMAT, VERSION = "spikezip-measurement-state", 2  # 2: with the comparison
RESULT = "measurement.json"
_WHAT = {"snn": "another spiking network", "qann": "another QANN", "float": "another float model"}


class Journal:
    """The sums so far; with a folder, also a file that holds them, one for each process.

    `identity` says what is measured and how. A file of another identity is refused: sums of two things are no sum.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], processes: Processes, *, resume: bool, every: int
    ) -> None:
        self.tally, self.digest, self.every = Tally(), "", every
        self.identity = {**identity, "processes": processes.count}
        self.path: Path | None = None
        self._saved = 0
        if folder is None:
            if resume:
                raise ConfigError("resume=True needs the folder of the measurement that was stopped")
            return
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file; a measurement keeps its state in a folder")
        found = set(folder.glob("measuring*.json"))
        if found and not resume:
            raise ConfigError(f"{folder} holds a measurement already; resume it (--resume), or choose another folder")
        count = processes.count
        names = ["measuring.json"] if count == 1 else [f"measuring-{i}-of-{count}.json" for i in range(count)]
        foreign = sorted(found - {folder / name for name in names})
        if foreign:
            raise CheckpointError(
                f"{foreign[0]} was written by another number of processes than the {count} of now; "
                "start as many as then, or choose another folder"
            )
        self.path = folder / names[processes.index]
        if self.path.is_file():
            self._read(self.path)

    def remaining(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, str]]:
        """The batches that are not in the sums yet, each with the digest of all up to it.

        Those that are in are read again, and must be the same: their digest is compared.
        """
        done, digest, number = self.tally.batches, "", 0
        for number, batch in enumerate(batches, start=1):
            digest = chained(digest, batch) if self.path is not None else ""
            if number > done:
                yield batch, digest
            elif number == done and digest != self.digest:
                raise CheckpointError(
                    f"{self.path} is of other data: the first {done} batches are not those that were measured "
                    "(another file, order or batch size?); use what was used, or choose another folder"
                )
        if number < done:
            raise CheckpointError(f"{self.path} is of other data: it has {done} batches, here there are {number}")

    def add(self, tally: Tally, digest: str) -> None:
        self.tally, self.digest = self.tally + tally, digest  # one statement: an interrupt finds both or neither
        if self.tally.batches - self._saved >= self.every:
            self.save()

    def save(self) -> None:
        """Write the file, if something is new. A half-written file never has the name."""
        tally, digest = self.tally, self.digest
        if self.path is None or tally.batches == self._saved:
            return
        content = {
            "format": FORMAT,
            "version": VERSION,
            "identity": self.identity,
            "digest": digest,
            "tally": tally.to_json(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        os.replace(draft, self.path)
        self._saved = tally.batches

    def _read(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise InputError(f"it is {content['format']!r}, version {content['version']!r}")
            identity, self.digest = content["identity"], str(content["digest"])
            self.tally = Tally.from_json(content["tally"], "tally")
        except (OSError, ValueError, KeyError, TypeError) as error:  # InputError is a ValueError
            raise CheckpointError(f"{path} is not the state of a measurement: {error}; choose another folder") from None
        self._saved = self.tally.batches
        for key in dict.fromkeys((*identity, *self.identity)):
            before, now = identity.get(key), self.identity.get(key)
            if before != now:
                what = _WHAT.get(key) or f"another setting: {key} was {before!r}, now it is {now!r}"
                raise CheckpointError(f"{path} is of {what}; measure what was measured, or choose another folder")


def chained(before: str, batch: Batch) -> str:
    """SHA-256 of a batch and of all before it.

    Example:
        >>> import torch
        >>> one, two = torch.zeros(1), torch.ones(1)
        >>> chained(chained("", one), two) == chained(chained("", two), one)
        False
    """
    digest = hashlib.sha256(before.encode())
    for key, value in sorted(batch.items()) if isinstance(batch, Mapping) else [("", batch)]:
        digest.update(str(key).encode())
        _update(digest, value)
    return digest.hexdigest()


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of the class, and of every weight and scale by name."""
    digest = hashlib.sha256(type(network).__name__.encode())
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        _update(digest, value)
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    if not isinstance(value, Tensor):
        digest.update(repr(value).encode())
        return
    digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
    digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
