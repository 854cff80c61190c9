"""Reads JSON bodies: checks the framing, then parses strictly, then applies a schema that names every field.

Bodies of hot routes are read in one pass (`BodyReader.quick`) when the result is certain, and by the strict reader and
the documented schema in all other cases. msgspec decodes such a body into its route's `Struct`, which is narrower than
the schema. The result is what the strict reader and the schema give for the same bytes; whenever that is not certain,
it is None. So the schema stays the one definition, and words every refusal.

msgspec by itself would take the last of two equal names, accept numbers of any length, and read "1.0" among untyped
values. So it is not used for a body with an escape (without escapes every quotation mark opens or closes a text, and a
repeated name shows in their number), with 18 digits in a row, or with a fraction.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from marshmallow import RAISE, Schema, ValidationError, fields

from sentinel.core.errors import BodyTooLarge, InvalidInput, LengthRequired, UnsupportedMediaType
from sentinel.core.moments import moment_of
from sentinel.core.operation import UNSAFE_TEXT, check_identifier, check_text

if TYPE_CHECKING:  # the worker and the commands take the schemas from here and never serve Flask
    from flask import Response

T = TypeVar("T", bound=msgspec.Struct)

MAX_BYTES = 64 * 1024
"""The longest body in bytes; only deliveries of orders may be allowed more."""


def json_body() -> dict[str, Any]:
    """The JSON object of the request that Flask is handling. Raises the refusals of `body_bytes` and `read_object`."""
    from flask import request

    return read_object(body_bytes(request.environ))


def json_response(body: bytes) -> Response:
    """A Flask response: 200 with a JSON body that no cache may store."""
    from flask import Response

    return Response(body, content_type="application/json", headers={"Cache-Control": "no-store"})


def body_bytes(environ: Mapping[str, Any]) -> bytes:
    """A request's raw JSON body. Refuses as `framed_bytes` does, and refuses other media types (415) before anything is read."""
    length = _length(environ, MAX_BYTES)
    require_json_type(environ)
    return _read(environ, length)


def framed_bytes(environ: Mapping[str, Any], max_bytes: int = MAX_BYTES) -> bytes:
    """A request's raw body of any media type. Refuses chunked bodies (411), more than `max_bytes` (413), truncated bodies (400)."""
    return _read(environ, _length(environ, max_bytes))


def _length(environ: Mapping[str, Any], max_bytes: int) -> int:
    # A chunked body beyond a limit is silently cut by the server below us; a declared length cannot be.
    if "HTTP_TRANSFER_ENCODING" in environ:
        raise LengthRequired("send Content-Length; chunked bodies are not accepted")
    declared = environ.get("CONTENT_LENGTH") or ""
    if not (declared.isascii() and declared.isdigit()):
        raise LengthRequired("send Content-Length")
    length = int(declared[:20])
    if length > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
    return length


def require_json_type(environ: Mapping[str, Any]) -> None:
    """Raise `UnsupportedMediaType` unless the headers declare plain JSON in UTF-8."""
    if not _is_json_type(environ.get("CONTENT_TYPE", "")):
        raise UnsupportedMediaType("Content-Type must be application/json; a charset in it must be utf-8")
    if environ.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("Content-Encoding must not be sent: encoded bodies are not accepted")


def _read(environ: Mapping[str, Any], length: int) -> bytes:
    data: bytes = environ["wsgi.input"].read(length)
    if len(data) != length:
        raise InvalidInput.of("body", "is shorter than its Content-Length")
    return data


@lru_cache(maxsize=64)
def _is_json_type(sent: str) -> bool:
    media_type, _, parameters = sent.lower().partition(";")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", parameters)
    return media_type.strip() == "application/json" and (charset is None or charset[1] in ("utf-8", "utf8"))


def load(schema: Schema, value: Mapping[str, Any]) -> dict[str, Any]:
    """Validate `value` with a schema that is made once and reused. Raises `InvalidInput` with the broken rule per field path."""
    quick = _quick_load(schema, value)
    if quick is not None:
        return quick
    try:
        loaded: dict[str, Any] = schema.load(value)
    except ValidationError as error:
        found = dict(_flat(error.messages, ""))
        first = next(iter(found))
        raise InvalidInput(f"{first}: {found[first]}", errors=found) from None
    return loaded


def _quick_load(schema: Schema, value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Validate field by field without `Schema.load`: what passes here passes there too, and None means that it must be called."""
    loaded: dict[str, Any] = {}
    known = schema.load_fields
    try:
        for name, member in value.items():
            loaded[name] = known[name].deserialize(member, name, value)
    except (KeyError, ValidationError):
        return None
    if any(one.required and name not in loaded for name, one in known.items()):
        return None
    return loaded


def _flat(messages: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(messages, Mapping):
        return [
            pair
            for key, inner in messages.items()
            for pair in _flat(inner, path if key == "_schema" else f"{path}.{key}" if path else str(key)[:100])
        ]
    text = messages[0] if isinstance(messages, list) and messages else messages
    return [(path or "body", str(text).rstrip("."))]


class StrictSchema(Schema):
    """Base of request schemas: a field that is not named is refused."""

    class Meta:
        """Unknown fields are an error."""

        unknown = RAISE


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its null members, which mean "absent" on this wire."""
    return {key: member for key, member in value.items() if member is not None}


class Identifier(fields.String):
    """ASCII identifier of bounded length; with `least=0` it may be empty. `means` is its description in the OpenAPI document."""

    def __init__(self, *, most: int = 200, least: int = 1, means: str = "", **rest: Any) -> None:
        pattern = "^[A-Za-z0-9._:/@-]+$" if least else "^[A-Za-z0-9._:/@-]*$"
        told = {"pattern": pattern, "minLength": least, "maxLength": most}
        super().__init__(metadata={**told, **({"description": means} if means else {})}, **rest)
        self.most, self.least = most, least

    def _deserialize(self, value: Any, attr: str | None, data: Any, **rest: Any) -> str:
        if value == "" and not self.least:
            return ""
        try:
            return check_identifier(value, "", self.most)
        except InvalidInput as error:
            raise ValidationError(next(iter(error.errors.values()))) from None


class UtcMoment(fields.AwareDateTime):
    """A time with a zone (RFC 3339), as the same moment in UTC. `means` is its description in the OpenAPI document."""

    def __init__(self, *, means: str = "", **rest: Any) -> None:
        super().__init__(metadata={"description": means} if means else {}, **rest)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **rest: Any) -> datetime:
        try:
            return moment_of(value, "")
        except InvalidInput as error:
            raise ValidationError(next(iter(error.errors.values()))) from None


class Text(fields.String):
    """Free text that a person sees as it is: no control, zero-width or direction-changing characters."""

    def __init__(self, *, most: int = 2000, least: int = 0, **rest: Any) -> None:
        super().__init__(metadata={"minLength": least, "maxLength": most}, **rest)
        self.most, self.least = most, least

    def _deserialize(self, value: Any, attr: str | None, data: Any, **rest: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("must be a text")
        if len(value.strip()) < self.least:
            raise ValidationError(
                "must not be empty" if self.least == 1 else f"must have at least {self.least} characters"
            )
        try:
            return check_text(value, "", self.most)
        except InvalidInput as error:
            raise ValidationError(next(iter(error.errors.values()))) from None


class ErrorText(fields.String):
    """The text of a caller's exception: cut and cleaned instead of refused, so that the message that carries it is not lost."""

    def __init__(self, *, most: int, **rest: Any) -> None:
        super().__init__(metadata={"description": f"What is behind {most} characters is cut off."}, **rest)
        self.most = most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **rest: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("must be a text")
        return UNSAFE_TEXT.sub("\N{REPLACEMENT CHARACTER}", value[: self.most])


class StrictBoolean(fields.Boolean):
    """true or false; not 1, not "yes"."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **rest: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError("must be true or false")
        return value


class JsonObject(fields.Dict):
    """A JSON object of any content; the code that uses it checks its rules."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **rest: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError("must be an object")
        return value


MAX_DEPTH = 16
_MAX_DIGITS = 17

# A string ends at its closing quotation mark or at the end of the text. The possessive quantifiers never backtrack, so
# no quotation mark inside an unclosed string begins another search, and the time is proportional to the text.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKET = re.compile(r"[\[\]{}]")


def read_object(body: bytes, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Parse bytes as a JSON object. Raises `InvalidInput` with the broken rule, and `BodyTooLarge` above `max_bytes`."""
    text, value = _decoded(body, max_bytes, _decoder)
    if _ESCAPED_SURROGATE.search(text):
        check_unicode(value)
    return value


def read_report(body: bytes) -> dict[str, Any]:
    """Parse the report of an effect's outcome as a JSON object; no number or text in it is a reason to lose the report.

    A number with a fraction, an exponent or many digits is kept as it was written, as `msgspec.Raw`; half of a pair of
    surrogates becomes its six-character escape. Raises all other refusals of `read_object`.
    """
    text, value = _decoded(body, MAX_BYTES, _report_decoder)
    if _ESCAPED_SURROGATE.search(text):
        value = _escaped(value)
    return value


def _decoded(body: bytes, max_bytes: int, decoder: json.JSONDecoder) -> tuple[str, dict[str, Any]]:
    if len(body) > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput.of("body", "must be UTF-8") from None
    check_depth(text)
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidInput.of("body", f"is not JSON: {error.msg.lower()} at character {error.pos}") from None
    except RecursionError:
        raise InvalidInput.of("body", f"is nested deeper than {MAX_DEPTH}") from None
    if not isinstance(value, dict):
        raise InvalidInput.of("body", "must be a JSON object")
    return text, value


def check_depth(text: str) -> None:
    """Raise `InvalidInput` when a JSON text is nested deeper than `MAX_DEPTH`; brackets within its strings do not count."""
    # Almost every body has fewer brackets than the limit has levels; only the others are worth a scan.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise InvalidInput.of("body", f"is nested deeper than {MAX_DEPTH}")


def check_unicode(value: Any, path: str = "", whole: str = "body") -> None:
    """Raise `InvalidInput` for half of a pair of surrogates; it names the field, or `whole` for the value itself.

    JSON can express half a pair, but it is no character: it could be neither stored nor sent in an answer.
    """
    if isinstance(value, str):
        if not _is_unicode(value):
            raise InvalidInput.of(path or whole, "contains half a surrogate pair, which is not a character")
    elif isinstance(value, dict):
        for name, member in value.items():
            if not _is_unicode(name):
                raise InvalidInput.of(path or whole, "has a name with half a surrogate pair, which is not a character")
            check_unicode(member, f"{path}.{name}"[:200] if path else name[:100], whole)
    elif isinstance(value, list):
        for place, member in enumerate(value):
            check_unicode(member, f"{path}.{place}"[:200], whole)


def _escaped(value: Any) -> Any:
    """The value with every half of a pair of surrogates replaced by its escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(name): _escaped(member) for name, member in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise InvalidInput.of(twice[:100] if _is_unicode(twice) else "body", "appears twice in one object")
    return found


def _fraction(text: str) -> Decimal:
    if "e" in text or "E" in text or len(text) > _MAX_DIGITS + 8:
        raise InvalidInput.of("body", "numbers must have no exponent and at most 17 digits")
    return Decimal(text)


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS + 1:
        raise InvalidInput.of("body", "integers must have at most 17 digits")
    return int(text)


def _as_written(text: str) -> msgspec.Raw:
    return msgspec.Raw(text)


def _integer_as_written(text: str) -> int | msgspec.Raw:
    return msgspec.Raw(text) if len(text) > _MAX_DIGITS + 1 else int(text)


def _constant(text: str) -> Any:
    raise InvalidInput.of("body", f"{text} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_fraction, parse_int=_integer, parse_constant=_constant
)
_report_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_as_written, parse_int=_integer_as_written, parse_constant=_constant
)

_TO_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_MANY_DIGITS = b"0" * 18


class BodyReader(Generic[T]):
    """Reads one route's body as a `shape` (a Struct that forbids unknown fields and omits defaults), or refuses it.

    `of_object` is the documented path from a JSON object to the shape; it raises the refusals. `is_sure` returns
    whether the schema certainly accepts every value of a decoded shape unchanged. `read_object` parses the JSON object
    for `of_object`.
    """

    def __init__(
        self,
        shape: type[T],
        of_object: Callable[[Mapping[str, Any]], T],
        is_sure: Callable[[T], bool],
        read_object: Callable[[bytes], dict[str, Any]] = read_object,
    ) -> None:
        self.of_object, self.read_object = of_object, read_object
        self._decode = msgspec.json.Decoder(shape, float_hook=_refuse_fraction).decode
        self._encode = msgspec.json.Encoder().encode
        self._is_sure = is_sure

    def read(self, body: bytes) -> T:
        """The body as a shape. Raises the refusals of the strict reader and of the schema."""
        quick = self.quick(body)
        return self.of_object(self.read_object(body)) if quick is None else quick

    def quick(self, body: bytes, depth: int = MAX_DEPTH) -> T | None:
        """The body as a shape if the schema certainly accepts it, else None; `depth` is the most opening brackets it may have."""
        return self._quick(body, depth) if _is_plain(body) else None

    def _quick(self, body: bytes, depth: int) -> T | None:
        """As `quick`, of a body that is plain, or of a part of one, which is then plain too."""
        if body.count(b"{") + body.count(b"[") > depth:
            return None
        try:
            found = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, _Fraction):
            return None
        # A body with a repeated name, or a member that is null, has fewer quotation marks when it is encoded again.
        return found if self._encode(found).count(b'"') == body.count(b'"') and self._is_sure(found) else None

    def quick_batch(self, body: bytes) -> list[T] | None:
        """The requests of a batch (`{"requests": […]}`) if the schema certainly accepts each, else None."""
        if not _is_plain(body):
            return None
        try:
            parts = [bytes(part) for part in _batch.decode(body).requests]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if body.count(b'"') != 2 + sum(part.count(b'"') for part in parts):
            return None
        found = []
        for part in parts:
            one = self._quick(part, MAX_DEPTH - 2)
            if one is None:
                return None
            found.append(one)
        return found


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    requests: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=64)]


_batch = msgspec.json.Decoder(_Batch)


class _Fraction(Exception):
    """A number with a fraction or an exponent."""


def _refuse_fraction(text: str) -> Any:
    raise _Fraction(text)


def _is_plain(body: bytes) -> bool:
    return len(body) <= MAX_BYTES and b"\\" not in body and _MANY_DIGITS not in body.translate(_TO_ZEROS)
