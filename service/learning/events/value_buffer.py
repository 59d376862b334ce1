"""The values of records in one buffer, for compiled loops."""

from collections.abc import Iterator, Sequence
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from service.learning.events.value_formats import FORMATS, JSON, ValueFormat

Integers = NDArray[np.int64]


class ValueBuffer(Sequence[bytes | None]):
    """Value i is `data[begins[i]:ends[i]]`, or None if `begins[i]` is below 0.

    The values lie in the buffer in their order, perhaps with other bytes between them.

    `format_numbers` has the number of each value's format; None if all values are JSON.

    >>> values = ValueBuffer.from_values([b"{}", None, b"[1]"])
    >>> list(values), list(values[1:])
    ([b'{}', None, b'[1]'], [None, b'[1]'])
    """

    def __init__(
        self, data: NDArray[np.uint8], begins: Integers, ends: Integers, format_numbers: Integers | None = None
    ) -> None:
        self.data, self.begins, self.ends = data, begins, ends
        self.format_numbers = format_numbers if format_numbers is not None and format_numbers.any() else None

    @classmethod
    def from_values(cls, values: Sequence[bytes | None], formats: Sequence[ValueFormat] = ()) -> Self:
        """A buffer of these values, with a zero after each; a buffer stays as it is. Without formats they are JSON."""
        if isinstance(values, cls):
            return values
        texts = [value or b"" for value in values]
        ends = np.cumsum([*map(len, texts)], dtype=np.int64) + np.arange(len(texts))
        begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        if None in values:
            begins[[value is None for value in values]] = -1
        data = np.frombuffer(b"\0".join([*texts, bytes(8)]), np.uint8)
        return cls(data, begins, ends, np.array([*map(FORMATS.index, formats)]) if formats else None)

    def __len__(self) -> int:
        return len(self.begins)

    def __iter__(self) -> Iterator[bytes | None]:
        data = self.data.data
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            yield None if begin < 0 else bytes(data[begin:end])

    @overload
    def __getitem__(self, i: int) -> bytes | None: ...
    @overload
    def __getitem__(self, i: slice | list[int]) -> Self: ...
    def __getitem__(self, i: int | slice | list[int]) -> bytes | Self | None:
        """Value i, or a buffer of a part of the values."""
        if not isinstance(i, int):
            numbers = None if self.format_numbers is None else self.format_numbers[i]
            return type(self)(self.data, self.begins[i], self.ends[i], numbers)
        begin, end = self.begins.item(i), self.ends.item(i)
        return None if begin < 0 else bytes(self.data.data[begin:end])

    def format_at(self, i: int) -> ValueFormat:
        """The format of value i."""
        return JSON if self.format_numbers is None else FORMATS[self.format_numbers[i]]

    @property
    def only_format(self) -> ValueFormat | None:
        """The format that all values have; None if they have several."""
        if self.format_numbers is None:
            return JSON
        numbers = self.format_numbers[self.begins >= 0]
        return FORMATS[numbers[0]] if len(numbers) and (numbers == numbers[0]).all() else None
