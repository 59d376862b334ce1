"""Requests for predictions, and their answers: what HTTP routes exchange with scoring.

The features in a request's body are read by the same rules as events. msgspec reads a small body of plain numbers,
which is fastest for one instance; the careful reader reads any other small body. A thread reads a large body in pieces,
so that no step holds the interpreter for long: a compiled scan finds the elements of its list, and the compiled reader
reads them. The careful reader reads elements that it declines.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType, defstruct
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from service.errors import Rejected
from service.learning.events.compiled.compiled_readers import RowReader
from service.learning.events.compiled.path_tree import TOO_DEEP, MemberSpan, UnsupportedError, scan
from service.learning.events.event_reader import EventReader
from service.learning.events.flatten import Features, Flattener, name_fits
from service.learning.events.json_values import MAX_DEPTH, WHITE, Path, quoted_name, to_pointer, type_name
from service.learning.events.read_events import Event, FeatureRows
from service.learning.events.value_formats import ParsedValues, ValueBuffer, text_values
from service.learning.identity import MAX_CLASSES, MAX_VALUE, Label, Mode

POINTERS = {"features": "/features", "event": "/event", "instances": "/instances/{}/features", "events": "/events/{}"}
"""The pointer of an instance by the request's input field: the features of one event, one whole record, or a list."""
LIST_FIELDS = ("instances", "events")

LARGE_BODY_BYTES = 32 << 10
"""Bytes of the largest body that is read in one turn of the event loop."""
PIECE_BYTES = 512 << 10
"""Bytes of a larger body that are read in one step."""
PIECE_INSTANCES = 20
"""Instances that are read in one step if the compiled reader does not read them. They take a millisecond."""
MAX_INSTANCE_BYTES = 1 << 20
"""Bytes of one instance, and of a body without its list of instances; more if `max_record_bytes` is more."""
ENCODED_AT_ONCE = 20
"""Predictions or contributions that are encoded to JSON in one call."""
_INPUT_FIELDS = tuple(POINTERS)
_NAMES = ", ".join(f"'{name}'" for name in _INPUT_FIELDS)
_PATHS: tuple[Path, ...] = tuple((name,) for name in _INPUT_FIELDS)
_STRING_OR_NAN = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|NaN', re.DOTALL)
_LIST = re.compile(rb"[ \t\n\r]*\[(.*)\][ \t\n\r]*", re.DOTALL)
_IDLE_READERS: WeakKeyDictionary[Flattener, dict[str, RowReader]] = WeakKeyDictionary()
"""Compiled readers that no request uses, by the name of their list, so that a request need not make new buffers."""


PredictedLabel = Annotated[Label, Meta(examples=[1], description="a boolean, a number or text")]
Probability = Annotated[float, Meta(examples=[0.93], description="of the positive label, with rule logistic-delta")]


class Contribution(msgspec.Struct, forbid_unknown_fields=True):
    """One term of the score."""

    name: Annotated[str, Meta(examples=["clicks"])]
    value: Annotated[float, Meta(examples=[2.0])]
    weight: Annotated[float, Meta(examples=[1.5])]
    product: Annotated[float, Meta(examples=[3.0])]
    scaled: Annotated[float, Meta(description="the scaled value that the weight was multiplied by")] | UnsetType = UNSET


class LabelScore(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A label and its score."""

    label: PredictedLabel
    score: float


_CONTRIBUTIONS = (
    "with ?explain=true, largest first; with three labels and more each weight is the label's less the runner-up's; "
    "a hashed feature's weight has the sign of its hash"
)
Contributions = Annotated[list[Contribution], Meta(description=_CONTRIBUTIONS)]
TopScores = Annotated[list[LabelScore], Meta(description="with three labels or more: the ?top=10 largest, in order")]
RunnerUp = Annotated[Label, Meta(examples=[2], description="with ?explain=true: the label with the next score")]


class Prediction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The predicted label, the score w·x that it comes from, the numbers of unknown and of missing features.

    With three labels and more each label has a score. The first label with the largest score is predicted.
    """

    label: PredictedLabel
    score: float
    unknown_features: int
    missing_features: Annotated[int, Meta(description="usual in events, and not in these features")]
    probability: Probability | UnsetType = UNSET
    scores: TopScores | UnsetType = UNSET
    runner_up: RunnerUp | UnsetType = UNSET
    contributions: Contributions | UnsetType = UNSET


class Instances(msgspec.Struct, gc=False):
    """The instances of a request, or a piece of them; their features are checked."""

    features: Sequence[Features] | FeatureRows
    pointer: str
    """The JSON pointer of an instance, with `{}` in place of its index if the request has a list of instances."""


class Asked(NamedTuple):
    """An instance as it was sent: features and an id next to them, or a whole record."""

    pointer: str
    """The JSON pointer of the instance in the request."""
    value: msgspec.Raw
    id: msgspec.Raw
    """Empty if there is none next to the features."""
    is_event: bool


class PredictParameters(BaseModel, extra="forbid"):
    """How a request wants its predictions: the query parameters of `/v1`."""

    explain: bool = Field(False, description="add what each feature contributes to the score")
    top: int = Field(10, ge=1, le=MAX_CLASSES, description="the number of scores, with three labels and more")
    candidate: str | None = Field(None, description="the candidate that answers")


class ScoringRequest(Protocol):
    """A request for predictions in some protocol, and the answer to it."""

    ids_are_valid: bool
    """Whether `read` has found that each id is a text or an integer."""

    @property
    def is_large(self) -> bool:
        """Whether a thread reads and answers it."""

    def read(self, flattener: Flattener) -> Instances:
        """All instances of a request that is not large, without compiled rows; raises Rejected."""

    def read_pieces(self, flattener: Flattener, by_rows: bool) -> Iterator[Instances]:
        """The instances in pieces, for a thread; `by_rows` allows compiled rows. Raises Rejected."""

    def asked(self) -> Sequence[Asked]:
        """All instances as they were sent; the request was read."""

    def answer(
        self, predictions: list[Prediction], model: str, version: int, ahead: int, candidate: str | None
    ) -> bytes:
        """The body of the response. It may change the predictions, which nothing else reads.

        They are by the state of a model that learned `ahead` events since the accepted snapshot of this `version`.
        `candidate` answered, or the model itself if it is None.
        """

    def fault(self, rejected: Rejected) -> Rejected:
        """The error, in the words of the protocol."""


class PredictionResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The model and the version that answered, with the members of a `Prediction` or, for a list, `predictions`."""

    model: str
    version: Annotated[int, Meta(description="the accepted snapshot")]
    ahead: Annotated[int, Meta(description="how many events were learned beyond it")]
    predictions: list[Prediction] | UnsetType = UNSET
    """The answers to `instances` or `events`, in their order."""
    label: PredictedLabel | UnsetType = UNSET
    score: float | UnsetType = UNSET
    unknown_features: int | UnsetType = UNSET
    missing_features: int | UnsetType = UNSET
    probability: Probability | UnsetType = UNSET
    scores: TopScores | UnsetType = UNSET
    runner_up: RunnerUp | UnsetType = UNSET
    contributions: Contributions | UnsetType = UNSET
    candidate: Annotated[str, Meta(description="the candidate that answered, if one did")] | UnsetType = UNSET


_FEATURES = "an object for a model of named or hashed features, a list of numbers for a positional one"
_RawFeatures = Annotated[msgspec.Raw, Meta(description=_FEATURES)]
_RawId = Annotated[msgspec.Raw, Meta(description="text or a whole number; read only if predictions are logged")]
_RawObject = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]


class Instance(msgspec.Struct, gc=False):
    """The features of an event, and its id."""

    features: _RawFeatures
    id: _RawId | UnsetType = UNSET


class PredictRequest(msgspec.Struct, gc=False):
    """A request has exactly one of `features`, `event`, `instances` and `events`; `id` belongs to `features`."""

    features: _RawFeatures | UnsetType = UNSET
    id: _RawId | UnsetType = UNSET
    event: _RawObject | UnsetType = UNSET
    """A whole record, with features where the model's settings say."""
    instances: list[Instance] | UnsetType = UNSET
    """At most `http.max_instances`, as of `events`."""
    events: list[_RawObject] | UnsetType = UNSET


_decode_request = msgspec.json.Decoder(PredictRequest).decode


class V1Request(msgspec.Struct, gc=False):
    """A request for predictions to `/v1`, and the answer to it."""

    body: bytes
    max_instances: int
    input_field: str = ""
    """The member that has the instances, once they are read."""
    ids_are_valid: bool = False
    """Whether `read` has found that each id is a text or an integer."""

    @property
    def is_large(self) -> bool:
        """Whether a thread reads the body in pieces."""
        return len(self.body) > LARGE_BODY_BYTES

    def read(self, flattener: Flattener) -> Instances:
        """All instances of a body that is not large; raises Rejected. Only msgspec looks at ids."""
        body, identity = self.body, flattener.identity
        if not flattener.excluded and not flattener.reads_by_name:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                decode = _decoder(identity.features, identity.dimension, identity.max_features, identity.max_name_bytes)
                request = decode(body)
                many = request.instances is not UNSET
                single = [request.features] if request.features is not UNSET else []
                instances = [instance.features for instance in request.instances] if many else single
                # If the body has as many colons as members and ids, no name is repeated or unknown, or has a colon.
                colons = 1 + (len(instances) if many else 0)
                certain = many == (not single) and len(instances) <= self.max_instances
                if ids := [e.id for e in (request, *(request.instances if many else ())) if e.id is not UNSET]:
                    colons += len(ids) + sum(str(each).count(":") for each in ids)
                    certain = certain and b"\\" not in body
                if identity.features != "positional":
                    colons += sum(map(len, instances))
                    # In plain ASCII a name has as many bytes as characters, which the decoder counts.
                    if not body.isascii() or b"\\" in body:
                        certain = certain and all(name_fits(name, identity) for row in instances for name in row)
                if certain and body.count(b":") == colons:
                    self.input_field, self.ids_are_valid = "instances" if many else "features", True
                    return Instances(instances, POINTERS[self.input_field])
        return self._read_carefully(body, flattener)

    def _read_carefully(self, body: bytes, flattener: Flattener) -> Instances:
        """All instances of this body, by the careful reader; raises Rejected for the first rule that is broken."""
        commas = np.empty(self.max_instances, np.int64)
        values = text_values(body, (*_PATHS, ("event", *flattener.path)), commas=commas, model=flattener.identity)
        members = {name: m for name, m in zip(_INPUT_FIELDS, values.values, strict=False) if m is not UNSET}
        if not members:
            raise Rejected("missing-field", f"expected one of {_NAMES}", "/features")
        if len(members) > 1:
            raise Rejected("wrong-type", f"expected only one of {_NAMES}, got {len(members)}")
        ((name, member),) = members.items()
        kind = type_name(values.scalar(_INPUT_FIELDS.index(name)))
        if name not in LIST_FIELDS:
            if name == "event" and kind != "an object":
                raise Rejected("wrong-type", f"expected an object, got {kind}", "/event")
            i, pointer = (0, "/features") if name == "features" else (-1, "/event" + to_pointer(flattener.path))
            instances = [_features(values, i, pointer, flattener)]
        else:
            if kind != "a list":
                raise Rejected("wrong-type", f"'{name}' must be a list, got {kind}", f"/{name}")
            check_count(member.items, name, self.max_instances)
            spans = enumerate(zip(*edges(body, member, commas), strict=True))
            instances = [_element(body[begin:end], name, i, flattener) for i, (begin, end) in spans]
        if values.not_finite is not None:
            raise values.not_finite
        self.input_field = name
        return Instances(instances, POINTERS[name])

    def read_pieces(self, flattener: Flattener, by_rows: bool) -> Iterator[Instances]:
        """The instances in pieces, for a thread; `by_rows` allows compiled rows. Raises Rejected."""
        body, commas = self.body, np.empty(self.max_instances, np.int64)
        max_bytes = max(MAX_INSTANCE_BYTES, flattener.identity.max_record_bytes)
        scan_end, spans, repeated_path = scan(body, _PATHS, commas)
        if scan_end == TOO_DEEP:
            raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
        members = dict(zip(_INPUT_FIELDS, spans, strict=True))
        name, many = next(((name, members[name]) for name in LIST_FIELDS if members[name]), ("", None))
        listed = many and many.items and repeated_path is None and _LIST.fullmatch(body, many.begin, many.end)
        begin, end = listed.span(1) if listed else (0, 0)
        rest = body[:begin] + body[end:]
        _check_size(len(rest), max_bytes, "")
        instances = self._read_carefully(rest, flattener)
        if many is None or not listed:
            yield instances
            return
        check_count(many.items, name, self.max_instances)
        begins, ends = edges(body, many, commas)
        largest = int(np.argmax(ends - begins))
        _check_size(int(ends[largest] - begins[largest]), max_bytes, f"/{name}/{largest}")

        def careful(i: int) -> Features:
            return _element(body[begins[i] : ends[i]], name, i, flattener)

        idle = _IDLE_READERS.setdefault(flattener, {})
        reader = idle.pop(name, None) if by_rows else None
        if by_rows and reader is None and EventReader.compiled:
            with suppress(UnsupportedError):
                reader = RowReader.for_instances(flattener, _path_in(name, flattener), max_bytes)
        data = np.frombuffer(body, np.uint8)
        first = 0
        while first < many.items:
            last = max(first + 1, int(np.searchsorted(ends, begins[first] + PIECE_BYTES)))
            if reader is None:
                last = min(last, first + PIECE_INSTANCES)
                yield Instances([careful(i) for i in range(first, last)], POINTERS[name])
            else:
                values = ValueBuffer(data, begins[first:last], ends[first:last])
                rows = reader.read(values, lambda i, n=first: Event(careful(n + i), 0.0, 1.0, None))  # type: ignore[misc]
                yield Instances(rows.features, POINTERS[name])
            first = last
        if reader is not None and not flattener.reads_by_name:  # if it does, a reader keeps names
            idle[name] = reader

    def asked(self) -> list[Asked]:
        """All instances as they were sent; the request was read."""
        empty = msgspec.Raw()
        try:
            body = _decode_request(self.body)
        except msgspec.DecodeError:  # there is a NaN, which this model reads as it does the string
            body = _decode_request(_STRING_OR_NAN.sub(lambda match: match[1] or b'"NaN"', self.body))
        field, value = self.input_field, getattr(body, self.input_field)
        if field in ("event", "events"):
            events = value if field == "events" else [value]
            return [Asked(POINTERS[field].format(i), each, empty, is_event=True) for i, each in enumerate(events)]
        instances, pointer = (value, "/instances/{}") if field == "instances" else ([body], "")
        rows = enumerate(instances)
        return [Asked(pointer.format(i), each.features, each.id or empty, is_event=False) for i, each in rows]

    def answer(
        self, predictions: list[Prediction], model: str, version: int, ahead: int, candidate: str | None
    ) -> bytes:
        """The JSON of the answer. It may change the predictions, which nothing else reads.

        They are by the state of a model that learned `ahead` events since the accepted snapshot of this `version`.
        `candidate` answered, or the model itself if it is None.
        """
        for prediction in predictions:
            if prediction.contributions:
                prediction.contributions = _encoded(prediction.contributions)
        answered_by = UNSET if candidate is None else candidate
        if self.input_field in LIST_FIELDS:
            many = _encoded(predictions)
            return msgspec.json.encode(PredictionResponse(model, version, ahead, many, candidate=answered_by))
        members = model, version, ahead, UNSET, *msgspec.structs.astuple(predictions[0]), answered_by
        return msgspec.json.encode(PredictionResponse(*members))

    def fault(self, rejected: Rejected) -> Rejected:
        """The fault of a request. If its body is not JSON, the message speaks of the body."""
        if rejected.reason != "not-json" or rejected.detail.startswith("nested"):
            return rejected
        if not self.body.strip(WHITE):
            return Rejected("not-json", f"the body is empty; expected an object with one of {_NAMES}")
        why = rejected.detail.removeprefix("JSON is malformed: ")
        why = why.replace("Input data was truncated", "it ends too early")
        return Rejected("not-json", f"the body is not JSON: {why[0].lower()}{why[1:]}", rejected.pointer)


def _encoded(rows: Sequence[msgspec.Struct]) -> Any:
    """The JSON of a list, encoded in parts so that no step holds the interpreter for long; a short list itself."""
    if len(rows) <= ENCODED_AT_ONCE:
        return rows
    parts = [msgspec.json.encode(rows[i : i + ENCODED_AT_ONCE])[1:-1] for i in range(0, len(rows), ENCODED_AT_ONCE)]
    return msgspec.Raw(b"[%b]" % b",".join(parts))


@lru_cache
def _decoder(mode: Mode, dimension: int, max_features: int, max_name_bytes: int) -> Callable[[bytes], Any]:
    """The decoder of a small body for models with these limits."""
    number = Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]
    if mode == "positional":
        features: Any = Annotated[list[number], Meta(min_length=dimension, max_length=dimension)]
    else:
        name = Annotated[str, Meta(max_length=max_name_bytes)]
        features = Annotated[dict[name, number], Meta(max_length=max_features)]
    own_id = ("id", str | int | UnsetType, UNSET)
    instance: Any = defstruct("Instance", [("features", features), own_id])
    members = [("features", features | UnsetType, UNSET), ("instances", list[instance] | UnsetType, UNSET), own_id]
    return msgspec.json.Decoder(defstruct("Request", members)).decode


def _element(raw: bytes, name: str, i: int, flattener: Flattener) -> Features:
    """The features of element i of a list; raises Rejected."""
    pointer, path = f"/{name}/{i}", _path_in(name, flattener)
    try:
        values = text_values(raw, (path,), flattener.identity, pointer)
    except Rejected as rejected:
        if rejected.reason not in {"not-json", "trailing-bytes"}:
            raise
        # In the body an element is followed by a comma or the end of the list, so the text around it is not at fault.
        raise Rejected("not-json", f"{rejected.detail}, in instance {i}") from None
    features = _features(values, 0, pointer + to_pointer(path), flattener)
    if values.not_finite is not None:
        raise values.not_finite
    return features


def _features(values: ParsedValues, i: int, pointer: str, flattener: Flattener) -> Features:
    """The features of value i, which stands at `pointer`; raises Rejected."""
    value = values.whole(i, flattener.identity.max_features, pointer)
    if value is UNSET:
        raise Rejected("missing-field", f"{quoted_name(pointer)} is missing", pointer)
    return flattener.flatten(value, pointer)


def _path_in(name: str, flattener: Flattener) -> Path:
    """The path to the features in an element of the list of this name."""
    return ("features",) if name == "instances" else flattener.path


def edges(body: bytes, member: MemberSpan, commas: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The begin and end of each element of a list; `commas` has the positions of the list's commas."""
    begin = body.index(b"[", member.begin) + 1
    end = body.rindex(b"]", begin, member.end)
    inner = commas[: max(member.items - 1, 0)]
    begins, ends = np.concatenate([[begin], inner + 1]), np.concatenate([inner, [end]])
    return begins[: member.items], ends[: member.items]


def _check_size(size: int, limit: int, pointer: str) -> None:
    if size > limit:
        raise Rejected("too-large", f"{size} bytes in one piece; the limit is {limit}", pointer)


def check_count(count: int, name: str, limit: int) -> None:
    """Raise Rejected if the list of this name has more items than the limit."""
    if count > limit:
        raise Rejected("too-large", f"{count} items; the limit is {limit} (http.max_instances)", name and f"/{name}")
