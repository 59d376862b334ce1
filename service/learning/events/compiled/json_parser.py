"""The parser: usual values of a buffer to rows in one compiled pass. It accepts a value or declines it.

A usual value is JSON without escapes in names and strings of features, without a repeated name in an object that
matters, without lists among named features, and with numbers whose rounding is certain. The careful reader accepts
whatever this parser accepts, with the same features. Bytes after the end of a value change nothing: a token that runs
past the end leaves an object open, so the value is declined.
"""

import math
from typing import Any

import numpy as np

from service.learning.columns.name_table import PADDING_BYTES, copy_bytes, find, hash_of, probes, same_bytes
from service.learning.events.compiled import json_tokens, path_tree
from service.learning.events.compiled.json_tokens import FALSE, NULL, TRUE, is_nan
from service.learning.events.compiled.path_tree import FEATURES, ID, LABEL, PART, WEIGHT, WHERE
from service.learning.events.compiled.time_parsing import END_EPOCH, FIRST_EPOCH, NO_HOUR, epoch_hour, parse_iso_8601
from service.learning.identity import MAX_VALUE, MAX_WEIGHT
from service.learning.jit import byte_at, compiled, inlined

MAX_NESTING = 16
"""Objects and lists within each other."""
MAX_MEMBERS = 1024
"""Members of the objects that matter, in one value. The table of their names has four times this many slots."""

ABSENT = -math.inf
"""The code of a part that a value does not have."""
NULL_LABEL = -2.0
"""The code of a label that is null, if it may be."""
REQUIRED, NULLABLE, OPTIONAL, IGNORED = -1.0, NULL_LABEL, ABSENT, math.nan
"""The least code of a label: if a value must have one, if it may be null or missing, and if it is not read."""
USUAL, UNUSUAL, UNKNOWN_KEY = range(3)
"""How a call of `parse_values` ended: all values are read; the next one is declined; a name is new."""
_VALUE, _NAME, _AFTER = range(3)
_NODE, _IS_LIST, _OF_FEATURES, _PREFIX, _PREFIX_SIZE = range(5)
LEFT_OUT, CATEGORY, _NOTHING, _REJECTED, _EITHER, UNTYPED, NUMBER, TIME = range(-1, 7)
KINDS = {"category": CATEGORY, None: UNTYPED, "number": NUMBER, "time": TIME}
"""The kind of a name, and what a string is: without a type the strings of all names are one of the first."""
_ends = [*(f".hour={hour}" for hour in range(NO_HOUR)), "", *(f".weekday={day}" for day in range(1, 8))]
_TIME_ENDS, _END_SIZES = np.array(_ends, "S16").view(np.uint8).reshape(-1, 16), np.array([*map(len, _ends)])
"""What follows the name of a time: a row for each hour, one for no hour, and one for each day."""
NEXT, EVENTS, VALUES, SCRATCH, SKIPPED, STATUS, KEY, KEY_SIZE, GENERATION = range(9)
"""The state of `parse_values`: the next value; how many events, features, bytes in `scratch` and skipped values there
are; how it ended; offset and size of the new name; a number that grows with each value."""

_QUOTE, _COLON, _COMMA, _DOT, _EQUALS, _MINUS, _ZERO, _NINE, _SPACE = b'":,.=-09 '
_BRACKET, _BRACKET_END, _BRACE, _BRACE_END = b"[]{}"


@compiled
def _is_new(table: Any, h: np.uint64, generation: np.uint64) -> bool:
    """Whether this hash is new in this generation; adds it to the table."""
    mask = len(table) - 1
    slot = np.int64(h & np.uint64(mask))
    for _ in range(probes(table)):
        if table[slot, 1] != generation:
            table[slot, 0], table[slot, 1] = h, generation
            return True
        if table[slot, 0] == h:
            return False
        slot = (slot + 1) & mask
    return False


@inlined
def _parse_numbers(
    data: int, i: int, count: int, room: int, before: int, max_name: int, seed: np.uint64, generation: np.uint64,
    table: Any, names: Any, hashes: Any, values: Any, is_number: Any,
) -> tuple[int, int, bool]:  # fmt: skip
    """Read at most `room` features from the name at i on, as long as they are numbers.

    Returns where that ends, or -1 if a name is repeated; the new number of features; and whether another name follows.
    Most events have the names of the last event in the same order. Its features begin at `before`. A name that is equal
    to the last event's in this position needs no hash, and no check that it is new.
    """
    n, equal, more = count, True, True
    while n < count + room and byte_at(data, i) == _QUOTE:
        last = before + n - count
        # The last name must be from `data`, where it stands before i: in `scratch` it may contain a quote.
        equal = (
            equal
            and last < count
            and 0 <= names[last, 0] < i
            and same_bytes(data, i + 1, data, names[last, 0], names[last, 1])
            and byte_at(data, i + 1 + names[last, 1]) == _QUOTE
        )
        if equal:
            size, h = names[last, 1], hashes[last]
        else:
            size = json_tokens.parse_string(data, i + 1, True) - i - 2
            if not 0 <= size <= max_name:
                break
            h = hash_of(data, i + 1, i + 1 + size, seed)
        j = json_tokens.skip_space(data, i + 2 + size)
        if byte_at(data, j) != _COLON:
            break
        j = json_tokens.skip_space(data, j + 1)
        c = byte_at(data, j)
        if c != _MINUS and not _ZERO <= c <= _NINE:
            break
        value, j = json_tokens.parse_number(data, j)
        if j < 0 or not abs(value) <= MAX_VALUE:
            break
        j = json_tokens.skip_space(data, j)
        c = byte_at(data, j)
        if c not in (_COMMA, _BRACE_END):
            break
        names[n, 0], names[n, 1], hashes[n], values[n], is_number[n] = i + 1, size, h, value, True
        n += 1
        if c == _BRACE_END:
            i, more = j, False
            break
        i = json_tokens.skip_space(data, j + 1)
    for k in range(n if equal and not more else count, n):
        if not _is_new(table, hashes[k], generation):
            return -1, n, True
    return i, n, more


@inlined
def is_integer(data: int, begin: int, end: int) -> bool:
    """Whether the number at these bytes is written as an integer."""
    for i in range(begin + 1, end):  # noqa: SIM110 - numba compiles no generators
        if not _ZERO <= byte_at(data, i) <= _NINE:
            return False
    return True


@compiled
def parse_values(  # noqa: PLR0915 - a pass over bytes, whose state would be arguments of its parts
    data: int, begins: Any, ends: Any, max_bytes: int, max_values: int, max_name: int, dimension: int,
    strings_are: tuple[int, bool], has_kinds: bool, min_label: float, rules: tuple[bool, bool, bool, bool],
    seed: np.uint64, paths: Any, expected: Any, keys: Any, kinds: Any, table: Any, state: Any, scratch: Any,
    features: Any, events: Any,
) -> None:  # fmt: skip
    """Read values from `state[NEXT]` on, until all are read or one is declined, which changes nothing.

    `rules` are `compiled_readers.Rules`.

    `data` is the address of a buffer that ends with PADDING_BYTES zeros. Offsets of names and ids count from there,
    also of names in `scratch`. `events` is a pair of tables: labels (ABSENT if there is none) and weights; the ends of
    features, the indices of events and of skipped values, and the offsets and sizes of ids (-1 if there is none).
    """
    nodes, path_names, conditions = paths[0], paths[1].ctypes.data, paths[2]
    firsts, numbers, string_ends, string_codes, literals, texts = expected
    strings = texts.ctypes.data
    names, hashes, values, is_number = features
    needs_features, needs_id, skips_others, skips_unlabelled = rules
    figures, positions = events
    text, nan_is_absent = strings_are
    scratch_offset, plain = scratch.ctypes.data - data, not has_kinds
    # For each open object or list: its node, and among features the begin and size in `scratch` of its names' prefix.
    opened = np.empty((MAX_NESTING + 1, 5), np.int64)
    codes = np.empty(len(literals))
    while state[NEXT] < len(begins):
        record = state[NEXT]
        i, end = begins[record], ends[record]
        count, used = state[VALUES], state[SCRATCH]
        state[GENERATION] += 1
        generation = np.uint64(state[GENERATION])
        n = state[EVENTS]
        state[STATUS], positions[4, n] = UNUSUAL, -1
        if i < 0 or end - i > max_bytes:
            return
        codes[:] = ABSENT
        has_features, members, inside, depth, mode, whole = False, 0, 0, 0, _VALUE, False
        # For the value that comes next: its node, whether it is a feature's, its name.
        node, is_feature, name, size, h = 0, False, i, 0, seed
        while True:
            i = json_tokens.skip_space(data, i)
            if i >= end:
                whole = mode == _AFTER and depth == 0
                break
            c = byte_at(data, i)
            if mode == _AFTER:
                if depth == 0:
                    break
                if c == _COMMA:
                    mode = _VALUE if opened[depth, _IS_LIST] else _NAME
                    node, is_feature = -1, False
                elif c == (_BRACKET_END if opened[depth, _IS_LIST] else _BRACE_END):
                    depth -= 1
                else:
                    break
                i += 1
                continue
            if mode == _NAME:
                if c != _QUOTE:
                    break
                node, is_feature = opened[depth, _NODE], opened[depth, _OF_FEATURES] != 0
                if plain and is_feature and opened[depth, _PREFIX_SIZE] == 0 and path_tree.is_leaf(nodes, node):
                    room, begun = min(len(values) - count, MAX_MEMBERS - members, max_values - inside), count
                    before = positions[0, n - 1] if n > 0 and inside == 0 else count
                    i, count, more = _parse_numbers(
                        data, i, count, room, before, max_name, seed, generation, table, names, hashes, values,
                        is_number,
                    )  # fmt: skip
                    members, inside = members + count - begun, inside + count - begun
                    if i < 0:
                        break
                    if count > begun:
                        mode = _NAME if more else _AFTER
                        continue
                matters = is_feature or node >= 0
                name = i + 1
                i = json_tokens.parse_string(data, name, matters)
                if i < 0:
                    break
                size = i - 1 - name
                i = json_tokens.skip_space(data, i)
                if byte_at(data, i) != _COLON:
                    break
                i, mode = i + 1, _VALUE
                if matters:
                    if node >= 0:
                        node = path_tree.child_of(node, data, name, size, nodes, path_names)
                    members += 1
                    inside += is_feature
                    if is_feature and opened[depth, _PREFIX_SIZE] > 0:
                        prefix, prefix_size = opened[depth, _PREFIX], opened[depth, _PREFIX_SIZE]
                        if used + prefix_size + size + PADDING_BYTES > len(scratch):
                            break
                        prefix_end = copy_bytes(data, scratch_offset + prefix, prefix_size, scratch, used)
                        copy_bytes(data, name, size, scratch, prefix_end)
                        name, size = scratch_offset + used, prefix_size + size
                    # The seed tells the names of one object from those of another.
                    h = hash_of(data, name, name + size, seed if is_feature else seed + np.uint64(depth))
                    if members > MAX_MEMBERS or (is_feature and (inside > max_values or size > max_name)):
                        break
                    if not _is_new(table, h, generation):
                        break
                continue
            mode = _AFTER
            part = nodes[node, PART] if node >= 0 else -1
            if FEATURES < part < WHERE:
                is_feature = False  # it is the label, the weight or the id
            if c in (_BRACE, _BRACKET):
                is_list = c == _BRACKET
                if part > FEATURES or depth == MAX_NESTING or (is_list and (depth == 0 or is_feature)):
                    break
                if part == FEATURES:
                    if is_list != (dimension >= 0):
                        break
                    has_features = True
                    if is_list:
                        if count + dimension > len(values):
                            break
                        i = json_tokens.parse_positions(data, i + 1, values, count, dimension, MAX_VALUE)
                        if i < 0:
                            break
                        count += dimension
                        continue
                depth += 1
                opened[depth, _NODE], opened[depth, _IS_LIST] = -1 if is_list else node, is_list
                opened[depth, _OF_FEATURES] = is_feature or part == FEATURES
                opened[depth, _PREFIX], opened[depth, _PREFIX_SIZE] = used, 0
                if is_feature:
                    if used + size + PADDING_BYTES > len(scratch):
                        break
                    used = used + size if name == scratch_offset + used else copy_bytes(data, name, size, scratch, used)
                    scratch[used] = _DOT
                    used += 1
                    opened[depth, _PREFIX_SIZE] = size + 1
                i = json_tokens.skip_space(data, i + 1)
                if i < end and byte_at(data, i) == (_BRACKET_END if is_list else _BRACE_END):
                    depth, i = depth - 1, i + 1
                else:
                    mode = _VALUE if is_list else _NAME
                    if is_list:
                        node, is_feature = -1, False
                continue
            if depth == 0 or part == FEATURES:
                break
            kind = UNTYPED
            if is_feature and has_kinds:
                key = find(keys[0], keys[1], keys[2], keys[3], data, name, size, h)
                if key == 0:
                    state[STATUS], state[KEY], state[KEY_SIZE] = UNKNOWN_KEY, name, size
                    return
                if key < 0:
                    break
                kind = kinds[key]
                is_feature = kind != LEFT_OUT
            start, is_text = i + (c == _QUOTE), c == _QUOTE
            literal, value, becomes, condition = -1, math.nan, kind, conditions[part] if part >= 0 else -1
            if is_text:
                i = json_tokens.parse_string(data, start, is_feature or part >= 0)
                becomes = text if kind == UNTYPED else kind
                if i < 0 or part == WEIGHT or (is_feature and becomes == _REJECTED):
                    break
                last = i - 1
                if part == ID:
                    positions[3, n], positions[4, n] = start, last - start
                for checked in (LABEL if part == LABEL else -1, condition):
                    if checked >= 0:
                        codes[checked] = path_tree.code_of_string(
                            checked, data, start, last - start, firsts, string_ends, strings, string_codes
                        )
                is_absent = (kind != UNTYPED and start == last) or (nan_is_absent and is_nan(data, start, last))
                if not is_feature or is_absent or becomes == _NOTHING:
                    continue
                if becomes != CATEGORY:
                    value, after = json_tokens.parse_number(data, start)
                    if after != last:
                        value, becomes = math.nan, CATEGORY if becomes == _EITHER else becomes
            elif nan_is_absent and is_nan(data, i, i + 3):
                if FEATURES < part < WHERE:
                    break
                i += 3
                continue
            else:
                if c == _MINUS or _ZERO <= c <= _NINE:
                    value, i = json_tokens.parse_number(data, i)
                    if i < 0:
                        break
                else:
                    literal = json_tokens.parse_literal(data, i)
                    if literal < 0:
                        break
                    i += 5 if literal == FALSE else 4
                    value = 1.0 if literal == TRUE else 0.0
                last = i
                if (part == LABEL or condition >= 0) and not abs(value) <= path_tree.MAX_EXACT_INTEGER:
                    break
                for checked in (LABEL if part == LABEL else -1, condition):
                    if checked >= 0 and literal >= 0:
                        codes[checked] = literals[checked, literal]
                    elif checked >= 0:
                        codes[checked] = path_tree.code_of_number(checked, value, firsts, numbers)
                if FEATURES < part < WHERE and part != LABEL:
                    if literal >= 0 or (part == WEIGHT and not 0.0 < value <= MAX_WEIGHT):
                        break
                    codes[part] = value
                    if part == ID:
                        if needs_id and not is_integer(data, start, i):
                            break
                        positions[3, n], positions[4, n] = start, i - start
                if not is_feature or literal == NULL:
                    continue
                if literal < 0 and kind == CATEGORY:
                    # Only an integer, perhaps with .0 after it, is written as its category is.
                    if 2 < last - start < 18 and (c != _MINUS or value < 0.0) and byte_at(data, last - 2) == _DOT:
                        last -= 2 if byte_at(data, last - 1) == _ZERO else 0
                    if not abs(value) <= MAX_VALUE or not is_integer(data, start, last):
                        break
            hour_of_week, fits = parse_iso_8601(data, start, last) if is_text and kind == TIME else 0, True
            if kind == TIME and hour_of_week == 0:
                # A double is at most 512 away from a larger integer.
                doubt = 0 if value < path_tree.MAX_EXACT_INTEGER else 512
                epoch = np.int64(value) if FIRST_EPOCH <= value < END_EPOCH else 0
                hour_of_week = epoch_hour(epoch + doubt)
                if epoch == 0 or epoch_hour(epoch - doubt) != hour_of_week:
                    break
            if becomes in (CATEGORY, TIME):
                for row in (hour_of_week % 32, NO_HOUR + hour_of_week // 32):  # the second is not that of a category
                    if row == NO_HOUR or not fits:
                        continue
                    both = size + (_END_SIZES[row] if kind == TIME else 1 + last - start)
                    fits = both <= max_name and used + both + PADDING_BYTES <= len(scratch) and count < len(values)
                    if fits:
                        names[count, 0], names[count, 1] = scratch_offset + used, both
                        if name != scratch_offset + used:
                            copy_bytes(data, name, size, scratch, used)
                        if kind == TIME:
                            scratch[used + size : used + both] = _TIME_ENDS[row, : both - size]
                        else:
                            scratch[used + size] = _EQUALS
                            copy_bytes(data, start, last - start, scratch, used + size + 1)
                        hashes[count] = hash_of(data, names[count, 0], names[count, 0] + both, seed)
                        fits = _is_new(table, hashes[count], generation)
                        values[count], is_number[count] = 1.0, False
                        count, used = count + 1, used + both
                if not fits:
                    break
                continue
            if not abs(value) <= MAX_VALUE or count == len(values) or (literal >= 0 and kind == NUMBER):
                break
            if name == scratch_offset + used:
                used += size
            names[count, 0], names[count, 1] = name, size
            hashes[count], values[count], is_number[count] = h, value, literal < 0
            count += 1
        if not whole:
            return
        has_label = codes[LABEL] >= min_label or math.isnan(min_label)
        passed_over = (skips_others and not has_features) or (skips_unlabelled and codes[LABEL] < REQUIRED)
        for part in range(WHERE, len(codes)):
            passed_over |= codes[part] != 1.0
        if passed_over:
            positions[2, state[SKIPPED]] = record
            state[SKIPPED] += 1
        elif (needs_features and not has_features) or not has_label or (needs_id and positions[4, n] < 0):
            return
        else:
            positions[0, n + 1], positions[1, n] = count, record
            figures[0, n], figures[1, n] = codes[LABEL], 1.0 if codes[WEIGHT] == ABSENT else codes[WEIGHT]
            state[EVENTS], state[VALUES], state[SCRATCH] = n + 1, count, used
        state[NEXT] += 1
    state[STATUS] = USUAL
