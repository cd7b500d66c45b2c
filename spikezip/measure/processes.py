"""Several processes that measure one network together: who takes which batch, and how sums come together."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import torch

from spikezip.errors import ConfigError, SpikezipError

T = TypeVar("T")
PATIENCE = timedelta(hours=12)  # one process may be done long before another


@dataclass(frozen=True)
class Processes:
    """This process among its kind. Accelerate is imported only where a launcher has started others.

    Example:
        >>> Processes.here()
        Processes(index=0, count=1)
        >>> list(Processes(1, 2).share("abcde"))
        ['b', 'd']
    """

    index: int = 0
    count: int = 1

    @classmethod
    def here(cls, cpu: bool = True) -> "Processes":
        """The group that this process belongs to. One that a launcher has prepared is started; `cpu` says where."""
        if not _started():
            if int(os.environ.get("WORLD_SIZE", "1")) < 2:
                return cls()
            try:
                from accelerate import PartialState
            except ModuleNotFoundError:
                raise ConfigError("measuring with several processes needs accelerate: pip install accelerate") from None
            PartialState(cpu=cpu, timeout=PATIENCE)
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size()) if _started() else cls()

    @property
    def first(self) -> bool:
        return self.index == 0

    def share(self, stream: Iterable[T]) -> Iterator[T]:
        """Every n-th item: those of all processes together are the stream. Each must go through the same stream."""
        return islice(iter(stream), self.index, None, self.count)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order. All must ask."""
        if self.count == 1:
            return [value]
        gathered: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, value)
        return gathered

    @contextmanager
    def together(self) -> Iterator[None]:
        """All processes go on after the block, or none does: who did not fail says what stopped another."""
        try:
            yield
        except BaseException as error:
            self.gather(str(error) or type(error).__name__)
            raise
        said = self.gather(None)
        failed = [(number, problem) for number, problem in enumerate(said) if problem is not None]
        if failed:
            number, problem = failed[0]
            raise SpikezipError(f"process {number} stopped: {problem}")


def leave() -> None:
    """End the group of processes, if there is one, when all of them have come to their end: call it last.

    Who leaves without it may still have an operation under way, whose thread cannot live on while Python ends: the
    process is aborted after its work was done, and a launcher reports a failure.

    Example:
        >>> leave()  # nothing happens: this process is alone
    """
    if _started():
        torch.distributed.destroy_process_group()


def _started() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
