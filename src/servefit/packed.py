"""Very many records of one kind in little memory: what many of them share is held once, the rest of each as a few dozen bytes,
in a temporary file where they are more than a few pages.

A record is built anew each time it is looked at, equal to the one that went in, to the bit. So none of them is a known
object: two looks at one place give two records that are equal and not the same, and `id()` says nothing.
"""

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from servefit.spill import Column, Ranked

T = TypeVar("T")

_FORM_BITS = 24
_FORM = (1 << _FORM_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What all records of one form have in common."""

    shared: dict[str, Any]
    own: tuple[str, ...]
    """Names of the fields that each has of its own, in the order in which their values are held."""
    keys: tuple[tuple[str, tuple[Any, ...]], ...]
    """Those of them that are dictionaries, with their keys: only the values are held."""


class Store(Generic[T]):
    """Records that are added one by one and never changed. `make` builds one from its fields `names`.

    Fields in `shared` have few values each (words), and those are held once. All fields are plain values: numbers, text,
    None, and tuples and dictionaries of them. Each record takes 8 bytes and some 9 a float, 5 an integer; `folder` is where
    the file would lie.
    """

    def __init__(
        self,
        make: Callable[..., T],
        names: Iterable[str],
        *,
        shared: frozenset[str] = frozenset(),
        folder: Path | None = None,
    ) -> None:
        self._make = make
        self._names = tuple(names)
        self._shared = tuple(name in shared for name in self._names)
        self._values = attrgetter(*self._names)
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._forms: list[_Form] = []
        self._bytes: Column[int] = Column("B", folder)
        self._index: Column[int] = Column("Q", folder)
        """Of each record where its bytes end, and in the low bits the number of its form."""

    @property
    def folder(self) -> Path | None:
        """Where its file would lie."""
        return self._bytes.folder

    @property
    def on_disk(self) -> bool:
        """Whether there is a file."""
        return self._bytes.on_disk

    def __len__(self) -> int:
        return len(self._index)

    def add(self, record: T) -> None:
        """Hold one more."""
        form: list[Any] = []
        own: list[Any] = []
        for shared, value in zip(self._shared, self._values(record), strict=True):
            if shared or value is None or value is True or value is False:
                form.append(value)
            elif type(value) is dict:
                form.append(tuple(value))
                own.append(tuple(value.values()))
            else:
                form.append(...)
                own.append(value)
        key = tuple(form)
        number = self._numbers.get(key)
        if number is None:
            number = self._new(key)
        self._bytes.cut(self._start(len(self)))  # what is left of an `add` that Ctrl-C cut off
        self._bytes.add_bytes(marshal.dumps(tuple(own)))
        self._index.append(len(self._bytes) << _FORM_BITS | number)

    def at(self, place: int) -> T:
        """The record that was added `place`-th, from 0."""
        known = self._index[place]
        form = self._forms[known & _FORM]
        values = marshal.loads(self._bytes[self._start(place) : known >> _FORM_BITS])  # noqa: S302 - what `add` made
        own = dict(zip(form.own, values, strict=True))
        for name, keys in form.keys:
            own[name] = dict(zip(keys, own[name], strict=True))
        return self._make(**form.shared, **own)

    def having(self, places: Sequence[int], name: str, value: object) -> Sequence[int]:
        """Those of the places whose shared field `name` is `value`; no record is built for it."""
        fits = [form.shared[name] == value for form in self._forms]
        if all(fits):
            return places
        index = self._index
        return self.few(place for place in places if fits[index[place] & _FORM])

    def few(self, places: Iterable[int]) -> Sequence[int]:
        """These places, in little memory whatever their number."""
        out: Column[int] = Column("I", self.folder)
        for place in places:
            out.append(place)
        if len(out) and out[-1] - out[0] + 1 == len(out):  # they rise
            return range(out[0], out[-1] + 1)
        return cast("Sequence[int]", out)

    def _start(self, place: int) -> int:
        return self._index[place - 1] >> _FORM_BITS if place else 0

    def _new(self, key: tuple[Any, ...]) -> int:
        fields = list(zip(self._names, self._shared, key, strict=True))
        common = {name: value for name, shared, value in fields if shared or value is None or isinstance(value, bool)}
        own = [(name, value) for name, _, value in fields if name not in common]
        self._forms.append(_Form(
            shared=common, own=tuple(name for name, _ in own), keys=tuple((n, v) for n, v in own if v is not ...)
        ))  # fmt: skip
        number = self._numbers[key] = len(self._forms) - 1
        assert number <= _FORM, "the shared fields hold words, of which there are few"
        return number


class Packed(Sequence[T]):
    """Some of the records of a store, in order, read like a tuple of them and equal to it.

    `through` is a change that each goes through when it is looked at; it leaves the shared fields that are asked for alone.
    """

    def __init__(
        self, store: Store[T], places: Sequence[int] | None = None, *, through: Callable[[T], T] | None = None
    ) -> None:
        self._store = store
        self._places = range(len(store)) if places is None else places
        self._through = through

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Packed[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Packed[T]":
        """One record, or some of them, packed as they are."""
        if isinstance(index, slice):
            return self._of(self._places[index])
        return self._look(self._places[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._store.at if self._through is None else self._look, self._places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | Packed):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a tuple of rows with dictionaries has none

    def __repr__(self) -> str:
        return f"<{len(self)} records, packed>"

    def where(self, name: str, value: object) -> "Packed[T]":
        """Those whose shared field `name` is `value`."""
        return self._of(self._store.having(self._places, name, value))

    def chosen(self, test: Callable[[T], bool]) -> "Packed[T]":
        """Those that pass the test."""
        return self._of(self._store.few(place for place in self._places if test(self._look(place))))

    @property
    def folder(self) -> Path | None:
        """Where the file would lie."""
        return self._store.folder

    @property
    def on_disk(self) -> bool:
        """Whether they lie in a file."""
        return self._store.on_disk

    def _of(self, places: Sequence[int]) -> "Packed[T]":
        return Packed(self._store, places, through=self._through)

    def _look(self, place: int) -> T:
        record = self._store.at(place)
        return record if self._through is None else self._through(record)


def chosen(records: Sequence[T], test: Callable[[T], bool]) -> Sequence[T]:
    """Those of the records that pass the test: packed where they are packed, else a tuple.

    >>> chosen([1, 2, 3, 4], lambda n: n % 2 == 0)
    (2, 4)
    """
    return records.chosen(test) if isinstance(records, Packed) else tuple(filter(test, records))


def numbers(records: Sequence[Any]) -> "array[float] | Ranked":
    """An empty place for a few numbers of each of the records, to be ranked: an array, or on disk where the records are."""
    return Ranked(records.folder) if isinstance(records, Packed) and records.on_disk else array("d")
