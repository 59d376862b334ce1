"""The values of records in one buffer, for compiled loops."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from service.learning.events.content_types import FORMS

Integers = NDArray[np.int64]


class ValueBuffer(Sequence[bytes | None]):
    """Value i is `data[begins[i]:ends[i]]`, or None if `begins[i]` is below 0. Its form is `forms[i]`, or JSON.

    The values are in order; other bytes may stand between them.

    >>> values = ValueBuffer.of([b"{}", None, b"[1]"])
    >>> list(values), list(values[1:])
    ([b'{}', None, b'[1]'], [None, b'[1]'])
    """

    def __init__(
        self, data: NDArray[np.uint8], begins: Integers, ends: Integers, forms: Integers | None = None
    ) -> None:
        self.data, self.begins, self.ends, self.forms = data, begins, ends, forms

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Self:
        """A buffer of these values, with a zero after each."""
        texts = [value or b"" for value in values]
        ends = np.cumsum([*map(len, texts)], dtype=np.int64) + np.arange(len(texts))
        begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        if None in values:
            begins[[value is None for value in values]] = -1
        kinds = [value.__class__ for value in texts]
        forms = None if kinds.count(bytes) == len(kinds) else np.array([*map(FORMS.index, kinds)])
        return cls(np.frombuffer(b"\0".join([*texts, bytes(8)]), np.uint8), begins, ends, forms)

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, i: int) -> bytes | None: ...
    @overload
    def __getitem__(self, i: slice) -> Self: ...
    def __getitem__(self, i: int | slice) -> bytes | Self | None:
        if isinstance(i, slice):
            forms = None if self.forms is None else self.forms[i]
            return type(self)(self.data, self.begins[i], self.ends[i], forms)
        form = bytes if self.forms is None else FORMS[self.forms[i]]
        begin = self.begins[i]
        return None if begin < 0 else form(self.data[begin : self.ends[i]].data)

    def __iter__(self) -> Iterator[bytes | None]:
        data, forms = self.data.data, repeat(0) if self.forms is None else self.forms.tolist()
        places = zip(self.begins.tolist(), self.ends.tolist(), forms, strict=False)
        return (None if begin < 0 else FORMS[form](data[begin:end]) for begin, end, form in places)
