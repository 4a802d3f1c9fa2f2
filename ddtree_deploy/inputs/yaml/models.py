"""What input files may say, as pydantic models: `fit` makes one of a document, or says what is wrong."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from ddtree_deploy.inputs.yaml.document import Document, suggest
from ddtree_deploy.inputs.yaml.nodes import Loc, kind_of
from ddtree_deploy.inputs.yaml.values import (
    parse_duration,
    parse_name,
    parse_positive,
    parse_size,
    parse_user,
)

M = TypeVar("M", bound=BaseModel)
Duration = Annotated[float, BeforeValidator(parse_duration)]
Timeout = Annotated[float, BeforeValidator(parse_positive)]
Size = Annotated[int, BeforeValidator(parse_size)]
Name = Annotated[str, AfterValidator(parse_name)]
User = Annotated[str, AfterValidator(parse_user)]
# "" is the default: none of its own.
NameOrNone = Annotated[str, AfterValidator(lambda value: value and parse_name(value))]
UserOrNone = Annotated[str, AfterValidator(lambda value: value and parse_user(value))]

_SECRET = {"api_key"}  # never repeat a key that somebody wrote into the file


class Model(BaseModel):
    """Base of all input models: unknown keys refused, no silent conversions, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


def fit(doc: Document, model: type[M], loc: Loc = (), data: Any = None, fallback: Loc | None = None) -> M:
    """Fit `data` (default: what is at `loc`) to `model`. Raises InputError for the first problem.

    fallback: where a value may come from when it is not at `loc` (inherited defaults).
    """
    if data is None:
        data = doc.data
        for part in loc:
            data = data[part]
    if not isinstance(data, dict):
        raise doc.error(loc, f"expected a mapping, got {kind_of(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        problems = []
        for item in exc.errors(include_url=False):
            where = (*loc, *item["loc"])
            if fallback is not None and where not in doc.lines:
                inherited = (*fallback, *item["loc"])
                where = inherited if inherited in doc.lines else where
            text = _message(doc, model, item, where)
            # A misspelt key is missing as well: say that it is misspelt.
            problems.append((doc.line(where) or 0, item["type"] != "extra_forbidden", where, text))
        problems.sort(key=lambda p: p[:2])
        *_, where, text = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise doc.error(where, text + more) from None


def _message(doc: Document, model: type[BaseModel], item: Any, where: Loc) -> str:
    kind, value, ctx = item["type"], item.get("input"), item.get("ctx", {})
    if kind == "missing":
        return f"missing key {item['loc'][-1]!r}"
    if kind == "extra_forbidden":
        name = str(item["loc"][-1])
        return f"unknown key {name!r}{suggest(name, _fields_at(model, item['loc'][:-1]))}"
    if kind == "value_error":
        return str(ctx["error"])
    if kind == "too_short":
        return "must not be empty"
    if kind == "literal_error":
        return f"{_shown(doc, value, where)} is not one of {ctx['expected'].replace(' or ', ', ')}"
    expected = {
        "string_type": "text",
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "a list",
        "tuple_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
    }.get(kind)
    if expected is None:
        text = str(item["msg"]).replace("Input should", "must")
        return f"{text[:1].lower()}{text[1:]}, got {_shown(doc, value, where)}"
    if expected == "text" and not isinstance(value, dict | list | type(None)):
        raw = doc.texts.get(where, str(value))
        return f'expected text, but YAML reads {raw} as {kind_of(value)}; write "{raw}" in quotes'
    return f"expected {expected}, got {_shown(doc, value, where)}"


def _shown(doc: Document, value: Any, where: Loc) -> str:
    if isinstance(value, dict | list) or value is None:
        return kind_of(value)
    if _SECRET & set(where):
        return "text that is not shown here"
    raw = doc.texts.get(where, str(value))
    return repr(raw) if isinstance(value, str) else f"{raw} ({kind_of(value)})"


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Names of the keys that the model allows at `loc`."""
    current: Any = model
    for part in loc:
        fields = {field.alias or name: field for name, field in current.model_fields.items()}
        if isinstance(part, str) and part in fields:
            current = _model_in(fields[part].annotation)
        if current is None:
            return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
