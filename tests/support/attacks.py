"""What a hostile client sends: request bytes of each kind, for tests and `benchmarks/abuse.py`.

Every body is made when it is asked for, and is as large as the attack needs: up to 200 MB of headers, 30 MiB of JSON.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import zstandard

Json = Any

MIB = 1024 * 1024
CHAT = "/v1/chat/completions"
MODEL = "heddle-tiny"


def head(path: str, length: int | None, key: str | None = None, method: str = "POST", **headers: str) -> bytes:
    """The first bytes of a request, up to and with the empty line; no `length` leaves the field out."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"Content-Length: {length}"] if length is not None else []
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def request(path: str, body: Json, key: str | None = None, **headers: str) -> bytes:
    """A whole request; a body that is not bytes is written as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(content), key, **headers) + content


def chat(text: str = "hi", **fields: Json) -> Json:
    """A small request for a completion with whatever is added."""
    return {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], **fields}


def grammar_chain(rules: int) -> str:
    """A grammar whose rules each call the next."""
    chain = "\n".join(f'r{number}: "k" r{number + 1}' for number in range(rules))
    return f'start: r0\n{chain}\nr{rules}: "k"'


def schema_chain(definitions: int) -> Json:
    """A JSON Schema whose definitions each refer to the next."""
    found: Json = {
        f"d{number}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{number + 1}"}}}
        for number in range(definitions)
    }
    return {"$ref": "#/$defs/d0", "$defs": found | {f"d{definitions}": {"type": "string"}}}


def wide_schema(properties: int) -> Json:
    """A JSON Schema of very many properties."""
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(properties)}}


def tool(parameters: Json) -> Json:
    """A tool that takes the parameters, and the choice that forces it."""
    function = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return {"tools": [function], "tool_choice": {"type": "function", "function": {"name": "f"}}}


def json_schema(schema: Json) -> Json:
    """The field that asks for an answer by a schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def constrained() -> Iterator[tuple[str, Json]]:
    """Bodies of completions whose constraint is a program for the compiler, by name."""
    yield "grammar chain", chat(structured_outputs={"grammar": grammar_chain(3000)})
    yield "grammar nested", chat(structured_outputs={"grammar": "start: " + "(" * 5000 + '"k"' + ")" * 5000})
    yield "grammar alternatives", chat(structured_outputs={"grammar": "start: " + " | ".join(['"k"+'] * 20_000)})
    yield "schema chain", chat(**json_schema(schema_chain(2000)))
    yield "schema chain, guided", chat(structured_outputs={"json": schema_chain(2000)})
    yield "schema of 20,000 properties", chat(**json_schema(wide_schema(20_000)))
    yield "tool with a schema chain", chat(**tool(schema_chain(2000)))
    yield "choice of 200,000", chat(structured_outputs={"choice": [f"c{number}" for number in range(200_000)]})
    yield "regex .* x 16,000", chat(structured_outputs={"regex": ".*" * 16_000})
    yield "regex repeated", chat(structured_outputs={"regex": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"})


def slow_regex() -> str:
    """A regular expression of 2 kB that takes seconds to compile."""
    return "(?i)" + "[\x00-\uffff]" * 400


def integer_of_29_digits(size: int) -> bytes:
    """JSON of about `size` bytes with one integer that no native parser takes."""
    return b'{"batch":[' + b"{}," * (size // 3) + b"1" * 29 + b"]}"


def empty_rows(project: str, size: int) -> bytes:
    """A table of about `size` bytes of empty rows."""
    rows = b",".join([b"{}"] * (size // 3))
    return b'{"table":{"project_id":"' + project.encode() + b'","rows":[' + rows + b"]}}"


def nested(depth: int) -> bytes:
    """Lists in lists."""
    return b'{"start":' + b"[" * depth + b"]" * depth + b"}"


def many_terms(project: str, count: int) -> Json:
    """A query of very many OR terms."""
    terms = [{"$eq": [{"$getField": "inputs.a"}, {"$literal": f"x{number}"}]} for number in range(count)]
    return {"project_id": project, "query": {"$expr": {"$or": terms}}}


def gzip_bomb(size: int) -> bytes:
    """Zeros that become `size` bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * MIB
    return b"".join(packer.compress(block) for _ in range(size // MIB)) + packer.flush()


def zstd_bomb(size: int) -> bytes:
    """The same for Zstandard."""
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    block = b" " * MIB
    return b"".join(packer.compress(block) for _ in range(size // MIB)) + packer.flush()


def unfinished_gzip(size: int) -> bytes:
    """A packed body of `size` bytes without its end."""
    return gzip.compress(b" " * size)[:-16]


def many_headers(count: int, size: int = 8) -> Iterator[bytes]:
    """Header lines one after the other, after a first line; no empty line ends them."""
    yield b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for number in range(count):
        yield f"x-{number}: {'a' * size}\r\n".encode()
