"""The OpenAPI document of this server, made of the models that requests are checked with and answers made of.

Owns the list of routes in words; `app` has the routes, and a test holds that both are the same.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from engine import __version__
from engine.server.bodies import NOT_SERVED, ChatBody, CompletionBody
from engine.server.shapes import Answer, ChatChoice, TextChoice

_REF = "#/components/schemas/{name}"
_SECURITY: list[dict[str, list[str]]] = [{"key": []}]
# What may come from a route that takes a body; every route may answer 400, 401 and 431.
_GENERATION_ERRORS = ("404", "408", "413", "429", "500", "503")
_EVERYWHERE = ("400", "401", "431")
_REQUEST_ID = {
    "description": "the client's X-Request-Id if it is 1 to 64 of A-Z a-z 0-9 . _ -, else a new one",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
# Of each event; its data is a chunk in the form of the answer, an error, or [DONE].
_EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
_HEALTH = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"enum": ["live", "ready", "draining", "failed"]}},
}
_MODELS = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "object", "created", "owned_by", "max_model_len", "vocab_size"],
                "properties": {
                    "id": {"type": "string"},
                    "object": {"const": "model"},
                    "created": {"type": "integer"},
                    "owned_by": {"type": "string"},
                    "max_model_len": {"type": "integer"},
                    "vocab_size": {"type": "integer"},
                },
            },
        },
    },
}


def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    bodies = (CompletionBody, ChatBody)
    _, made = models_json_schema([(body, "validation") for body in bodies], ref_template=_ref("{model}"))
    kinds = [Answer[TextChoice], Answer[ChatChoice]]
    references, answers = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = {**made["$defs"], **answers, "Error": _ERROR, "Health": _HEALTH, "Models": _MODELS}
    for body in bodies:
        _say_what_is_taken(schemas[body.__name__])
    return {
        "openapi": "3.1.0",
        "info": {"title": "advise", "version": __version__},
        "paths": {
            "/v1/completions": {"post": _generation("completions", CompletionBody, references[0])},
            "/v1/chat/completions": {"post": _generation("chat", ChatBody, references[1])},
            "/v1/models": {"get": _get("models", "Models")},
            "/health": {"get": _get("health", "Health", "503")},
            "/health/ready": {"get": _get("ready", "Health", "503")},
            "/health/live": {"get": _get("live", "Health") | {"security": []}},
            "/metrics": {"get": _get("metrics", None, media="text/plain")},
            "/openapi.json": {"get": _get("openapi", None)},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": _SECURITY,
    }


def _ref(name: str) -> str:
    return _REF.replace("{name}", name)


def _say_what_is_taken(schema: dict[str, Any]) -> None:
    """Null stands for the default of every field; fields that are not served may ask for nothing."""
    for name, field in schema["properties"].items():
        if name not in schema["required"] and {"type": "null"} not in field.get("anyOf", ()):
            about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **about}
    for name, nothing in NOT_SERVED.items():
        description = "not served: anything but these values is refused"
        schema["properties"][name] = {"enum": [*nothing, None], "description": description}


def _generation(name: str, body: type[CompletionBody | ChatBody], answer: dict[str, Any]) -> dict[str, Any]:
    content = {
        "application/json": {"schema": answer},
        "text/event-stream": {"schema": _EVENT},
    }
    schema = {"schema": {"$ref": _ref(body.__name__)}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": schema}},
        "responses": {"200": _response("the answer", content), **_errors(*_GENERATION_ERRORS)},
    }


def _get(name: str, schema: str | None, *errors: str, media: str = "application/json") -> dict[str, Any]:
    content = {media: {"schema": {} if schema is None else {"$ref": _ref(schema)}}}
    responses = {"200": _response("the answer", content), **_errors(*errors)}
    if schema == "Health" and "503" in responses:
        responses["503"] = _response("new requests are not taken", content)
    return {"operationId": name, "responses": responses}


def _errors(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _ref("Error")}}}
    return {status: _response("see the error", content) for status in (*_EVERYWHERE, *statuses)}


def _response(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "headers": {"X-Request-Id": _REQUEST_ID}, "content": content}
