"""Requests for texts of a given form: a JSON schema, a regular expression or one of several texts.

OpenAI's ``response_format``, and what maps to the same of vLLM's and llama.cpp's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgecompile.server.errors import BadRequest, Unprocessable
from edgecompile.server.protocol.documents import kind, required
from edgecompile.server.protocol.fields import Fields

#: The fields that ``read_grammar`` reads.
FIELDS = "response_format guided_json guided_regex guided_choice json_schema structured_outputs"
_FORMAT = Fields("type json_schema schema")
_SCHEMA = Fields("name description schema strict")
_OUTPUTS = Fields("json regex choice json_object", "", {"disable_fallback": (False,)})
#: llama.cpp's field, and those of vLLM before it had structured_outputs.
_GUIDES = {
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
}
_OBJECT: dict[str, Any] = {"type": "object"}


def read_grammar(document: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``make_grammar`` that a request asks for; none where its text is free.

    Raises:
        BadRequest: a field isn't what it must be, or there are several.
        Unprocessable: a form of answers isn't done here.
    """
    found: dict[str, dict[str, Any]] = {}
    form = document.get("response_format")
    if form is not None:
        found["response_format"] = _read_format(form)
    for field, name in _GUIDES.items():
        if document.get(field) is not None:
            found[field] = _read_guide(field, name, document[field])
    outputs = document.get("structured_outputs")
    if outputs is not None:
        if not isinstance(outputs, dict):
            raise BadRequest(f"structured_outputs must be an object, not {kind(outputs)}")
        _OUTPUTS.check(outputs, "structured_outputs.")
        for name, value in outputs.items():
            if value is not None and (value is not False or name != "json_object"):
                field = f"structured_outputs.{name}"
                found[field] = _read_guide(field, name, value)
    asked = {field: grammar for field, grammar in found.items() if grammar}
    if len(asked) > 1:
        raise BadRequest(" and ".join(asked) + " don't go together")
    return next(iter(asked.values()), {})


def _read_format(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"response_format must be an object, not {kind(value)}")
    _FORMAT.check(value, "response_format.")
    form = required(value, "type")
    if form not in ("text", "json_object", "json_schema"):
        raise Unprocessable(f"response_format.type {form!r:.80} isn't supported")
    for key, goes in (("json_schema", "json_schema"), ("schema", "json_object")):
        if form != goes and value.get(key) is not None:
            raise BadRequest(f"response_format.{key} goes with the type {goes}, not with {form}")
    if form == "text":
        return {}
    if form == "json_object":  # llama.cpp's may have a schema
        schema = value.get("schema")
        if not isinstance(schema, dict | None):
            raise BadRequest(
                f"response_format.schema must be a JSON schema, an object, not {kind(schema)}"
            )
        return {"json_schema": schema or _OBJECT}
    schema = value.get("json_schema")
    if not isinstance(schema, dict):
        raise BadRequest("response_format.json_schema must be an object with a schema")
    _SCHEMA.check(schema, "response_format.json_schema.")
    if not isinstance(schema.get("schema"), (dict, bool)):
        raise BadRequest("response_format.json_schema.schema must be a JSON schema, an object")
    return {"json_schema": schema["schema"]}


def _read_guide(field: str, name: str, value: Any) -> dict[str, Any]:
    if name == "regex":
        if not isinstance(value, str):
            raise BadRequest(f"{field} must be a regular expression, not {kind(value)}")
        return {"regex": value}
    if name == "choice":
        if (
            not isinstance(value, list)
            or not value
            or any(not isinstance(item, str) or not item for item in value)
        ):
            raise BadRequest(f"{field} must be a list of texts")
        return {"choice": value}
    if name == "json_object":
        if value is not True:
            raise BadRequest(f"{field} must be true or false")
        return {"json_schema": _OBJECT}
    if not isinstance(value, (dict, str)):
        raise BadRequest(f"{field} must be a JSON schema, not {kind(value)}")
    return {"json_schema": value}
