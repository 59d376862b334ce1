"""What the settings file says is of its setting's type: in a file "8000" is no number, nor "a,b" a list.

The environment has only text, so that settings read it; and what is said there hides what the file says.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from service.settings.model import ModelSettings


def mistyped(section: type[BaseModel], table: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[Any]:
    """What in a table of the file is no setting of this section, or not of its type: pydantic's errors."""
    for name, value in table.items():
        at, field = (*place, name), section.model_fields.get(name)
        inner, by_name = tables(section, name)
        if field is None:
            yield {"type": "extra_forbidden", "loc": at, "msg": "", "input": value}
        elif inner and not (
            isinstance(value, dict) and all(isinstance(one, dict) for one in value.values() if by_name)
        ):
            yield {"type": "dict_type", "loc": at, "msg": "Input should be a table", "input": value}
        elif inner and by_name:
            for key, one in value.items():
                yield from mistyped(inner, one, (*at, key))
        elif inner:
            yield from mistyped(inner, value, at)
        else:
            # What it takes, where that is more than what it becomes.
            wider = (one.json_schema_input_type for one in field.metadata if isinstance(one, BeforeValidator))
            takes: Any = next((one for one in wider if one is not PydanticUndefined), field.annotation)
            try:  # as JSON: a list may become a tuple
                TypeAdapter[Any](takes).validate_json(json.dumps(value, default=str), strict=True)
            except ValidationError as error:
                first = error.errors()[0]  # of a union one is enough
                yield {**first, "loc": (*at, *first["loc"])}


def tables(section: type[BaseModel], name: str) -> tuple[type[BaseModel] | None, bool]:
    """What the table of this name holds, or each of its tables by name; None where it is a value."""
    if name == "model":
        return ModelSettings, False
    kind = section.model_fields[name].annotation if name in section.model_fields else None
    by_name = get_origin(kind) is dict
    inner = get_args(kind)[1] if by_name else kind
    return (inner, by_name) if isinstance(inner, type) and issubclass(inner, BaseModel) else (None, False)
