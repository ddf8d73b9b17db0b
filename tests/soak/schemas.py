"""JSON Schemas to sample answers for: written by hand after what people send, and made from a seed.

`BOUNDED` ones have a longest valid value of some hundred characters; the others have none.
"""

import random
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A schema, and whether its values have a longest one."""

    name: str
    schema: Schema
    bounded: bool


def closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """An object schema without other properties; all required unless said otherwise."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


PERSON = closed(
    {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
        "address": closed({"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}),
    }
)
CAT = closed({"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}})
DOG = closed({"kind": {"const": "dog"}, "good": {"type": "boolean"}})

BOUNDED: dict[str, Schema] = {
    "person": PERSON,
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "const-string": {"const": "yes"},
    "const-number": {"const": 3.25},
    "const-object": {"const": {"a": [1, None, True], "b": "x"}},
    "const-negative": {"const": -17},
    "enum-mixed": {"enum": ["red", 1, 2.5, None, True, [1, 2], {"k": "v"}]},
    "enum-with-type": {"type": "string", "enum": ["low", "mid", "high"]},
    "enum-quotes": {"enum": ['say "hi"', "back\\slash", "tab\tand\nline", "/"]},
    "enum-unicode": {"enum": ["größe", "日本", "😀", "Ω"]},
    "short-string": {"type": "string", "maxLength": 8},
    "exact-length": {"type": "string", "minLength": 4, "maxLength": 4},
    "pattern-digits": {"type": "string", "pattern": "^[0-9]{3}-[a-c]{2}$"},
    "pattern-classes": {"type": "string", "pattern": r"^\d{2}\w{3}\s?\S{2}$"},
    "pattern-negated": {"type": "string", "pattern": r"^\D{2}\W[^a-z\d]{2}$"},
    "pattern-alternatives": {"type": "string", "pattern": "^(?:cat|dog|bird)s?$"},
    "pattern-lazy": {"type": "string", "pattern": "^a{1,3}?b+?$", "maxLength": 9},
    "pattern-unanchored": {"type": "string", "pattern": "[A-Z]", "maxLength": 6},
    "pattern-dot": {"type": "string", "pattern": "^.{2,4}$"},
    "pattern-and-length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "pattern-escapes": {"type": "string", "pattern": r"^\$[0-9]{1,3}\.[0-9]{2}(?: \(net\))?$"},
    "integer-range": {"type": "integer", "minimum": -5, "maximum": 5},
    "integer-exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
    "integer-multiple": {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 7},
    "integer-fractional-bounds": {"type": "integer", "minimum": 0.5, "maximum": 9.5},
    "number-range": {"type": "number", "minimum": 0, "maximum": 1},
    "number-exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "number-negative": {"type": "number", "minimum": -1.5, "exclusiveMaximum": -0.25},
    "number-decimal-bounds": {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.3},
    "number-halves": {"type": "number", "minimum": -4, "maximum": 4, "multipleOf": 0.5},
    "number-multiple": {"type": "number", "minimum": 0, "maximum": 60, "multipleOf": 3},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email", "maxLength": 40},
    "hostname": {"type": "string", "format": "hostname", "maxLength": 40},
    "uri": {"type": "string", "format": "uri", "maxLength": 40},
    "json-pointer": {"type": "string", "format": "json-pointer", "maxLength": 20},
    "int32": {"type": "integer", "format": "int32"},
    "format-and-pattern": {"type": "string", "format": "date", "pattern": "^20"},
    "empty-array": {"type": "array", "maxItems": 0},
    "array-of-arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
        "minItems": 2,
        "maxItems": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}, {"const": "z"}],
        "items": False,
    },
    "tuple-required": {
        "type": "array",
        "prefixItems": [{"const": 1}, {"const": 2}],
        "items": {"const": 3},
        "minItems": 2,
        "maxItems": 5,
    },
    "optional-properties": closed({name: {"type": "boolean"} for name in "abcd"}, required=["c"]),
    "no-properties": closed({}),
    "at-least-one": closed({name: {"type": "null"} for name in "abc"}, required=[], minProperties=1),
    "unicode-keys": closed({"größe": {"enum": [1, 2]}, "naïve key": {"type": "null"}, 'q"uote': {"type": "boolean"}}),
    "required-elsewhere": {
        "type": "object",
        "required": ["x", "y"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "typed-map": {
        "type": "object",
        "patternProperties": {"^[a-c][0-9]$": {"type": "integer", "minimum": 0, "maximum": 9}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "enum-keys": {
        "type": "object",
        "propertyNames": {"enum": ["en", "de", "fr"]},
        "additionalProperties": {"type": "string", "maxLength": 6},
    },
    "pattern-keys": {
        "type": "object",
        "propertyNames": {"pattern": "^k[0-9]$"},
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    "nullable": {"type": ["string", "null"], "maxLength": 5},
    "type-list": {"type": ["integer", "boolean", "null"], "minimum": 0, "maximum": 9},
    "number-or-string": {"type": ["number", "string"], "minimum": 0, "maximum": 9, "maxLength": 4},
    "any-of": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string", "maxLength": 4}]},
    "any-of-with-siblings": {"type": "integer", "minimum": 0, "anyOf": [{"maximum": 5}, {"maximum": 50}]},
    "one-of-types": {"oneOf": [{"type": "null"}, {"type": "boolean"}, {"type": "string", "maxLength": 3}]},
    "one-of-ranges": {
        "oneOf": [
            {"type": "integer", "minimum": 0, "maximum": 9},
            {"type": "integer", "minimum": 20, "maximum": 29},
        ]
    },
    "one-of-constants": {"oneOf": [{"const": "a"}, {"const": "b"}, {"enum": ["c", "d"]}]},
    "one-of-discriminated": {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
        "$defs": {"Cat": CAT, "Dog": DOG},
    },
    "all-of-ranges": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}, {"multipleOf": 3}]},
    "all-of-lengths": {"type": "string", "allOf": [{"minLength": 2}, {"maxLength": 4}]},
    "all-of-reference": {
        "allOf": [{"$ref": "#/$defs/small"}, {"exclusiveMinimum": 2}],
        "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
    "references": {
        **closed({"first": {"$ref": "#/$defs/point"}, "second": {"$ref": "#/$defs/point"}}),
        "$defs": {"point": closed({"x": {"$ref": "#/$defs/axis"}, "y": {"$ref": "#/$defs/axis"}})}
        | {"axis": {"type": "integer", "minimum": -9, "maximum": 9}},
    },
    "reference-escapes": {
        "$ref": "#/$defs/a~1b%20c",
        "$defs": {"a/b c": {"type": "integer", "minimum": 1, "maximum": 3}},
    },
    "reference-with-sibling": {
        "$ref": "#/$defs/word",
        "maxLength": 3,
        "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
    },
    "root-id": {
        "$id": "https://example.org/root",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/definitions/flag",
        "definitions": {"flag": {"type": "boolean", "default": False}},
    },
    "deep": closed({"a": closed({"b": closed({"c": closed({"d": closed({"e": {"enum": ["bottom"]}})})})})}),
    "annotations": closed(
        {
            "title": {"type": "boolean", "title": "T", "description": "d", "default": True, "examples": [False]},
            "type": {"type": "null", "$comment": "a property named like a keyword", "deprecated": True},
        },
        title="Annotated",
    ),
    "order": closed(
        {
            "id": {"type": "string", "pattern": "^ORD-[0-9]{4}$"},
            "paid": {"type": "boolean"},
            "currency": {"enum": ["EUR", "USD"]},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": closed(
                    {
                        "sku": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
                        "quantity": {"type": "integer", "minimum": 1, "maximum": 20},
                        "price": {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.25},
                    }
                ),
            },
        }
    ),
    "never-extra": {"type": "object", "properties": {"a": {"const": 1}, "b": False}, "additionalProperties": False},
}

UNBOUNDED: dict[str, Schema] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "anything": {},
    "object": {"type": "object"},
    "array": {"type": "array"},
    "positive": {"type": "number", "exclusiveMinimum": 0},
    "multiple": {"type": "number", "multipleOf": 0.25},
    "even": {"type": "integer", "multipleOf": 2},
    "open-object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "extra-strings": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string", "maxLength": 3},
    },
    "pattern-and-rest": {
        "type": "object",
        "properties": {"x_a": {"type": "boolean"}},
        "patternProperties": {"^x_": {"type": ["boolean", "null"]}, "^n_": {"type": "integer"}},
        "additionalProperties": {"type": "string", "maxLength": 2},
    },
    "list-of-people": {"type": "array", "items": PERSON},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": closed(
                {
                    "value": {"type": "integer", "minimum": 0, "maximum": 9},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                }
            )
        },
    },
    "linked": closed(
        {"head": {"type": "boolean"}, "tail": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    ),
    "expression": {
        "$defs": {
            "term": {
                "oneOf": [
                    {"type": "integer", "minimum": 0, "maximum": 9},
                    closed({"op": {"enum": ["+", "*"]}, "terms": {"type": "array", "items": {"$ref": "#/$defs/term"}}}),
                ]
            }
        },
        "$ref": "#/$defs/term",
    },
    "all-of-objects": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "non-empty-map": {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1},
    "no-type-bounds": {"minimum": 5, "maxLength": 3, "maxItems": 2},
}

REFUSED: dict[str, Schema | bool] = {
    "never": False,
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 1}},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    "propertyNames-length": {"type": "object", "propertyNames": {"maxLength": 3}},
    "propertyNames-mixed": {"properties": {"abcd": {}}, "propertyNames": {"pattern": "^a$"}},
    "dynamicRef": {"$dynamicRef": "#node"},
    "nullable": {"type": "string", "nullable": True},
    "typing-error": {"type": "string", "minLenght": 3},
    "unknown-format": {"type": "string", "format": "phone"},
    "unknown-type": {"type": "strin"},
    "overlapping-oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "overlapping-patterns": {
        "type": "object",
        "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}},
    },
    "hundredths": {"type": "number", "multipleOf": 0.01},
    "minProperties": {"type": "object", "minProperties": 3},
    "look-ahead": {"type": "string", "pattern": "^(?=a)"},
    "back-reference": {"type": "string", "pattern": r"^(a)\1$"},
    "broken-pattern": {"type": "string", "pattern": "(("},
    "remote-reference": {"$ref": "https://example.org/other.json"},
    "dangling-reference": {"$ref": "#/$defs/nowhere"},
    "self-reference": {"$ref": "#"},
    "endless": {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    "empty-range": {"type": "integer", "minimum": 5, "maximum": 3},
    "empty-length": {"type": "string", "minLength": 5, "maxLength": 2},
    "empty-enum": {"enum": []},
    "huge-constant": {"const": 12345678901234567890},
    "huge-bound": {"type": "integer", "minimum": 1e30},
    "control-character": {"enum": ["\x01"]},
    "draft-4-bound": {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
    "list-items": {"type": "array", "items": [{"type": "integer"}]},
    "inner-id": {"properties": {"a": {"$id": "https://example.org/a"}}},
    "negative-length": {"type": "string", "minLength": -1},
    "text-length": {"type": "string", "maxLength": "5"},
    "properties-list": {"properties": ["a"]},
    "circular-sibling": {"type": "object", "properties": {"a": {"$ref": "#", "type": "object"}}},
}


class Maker:
    """Schemas from a seed; every choice is the generator's."""

    def __init__(self, seed: int, bounded: bool) -> None:
        self.random = random.Random(f"{seed}/{bounded}")
        self.bounded = bounded
        self.definitions: Schema = {}

    def document(self) -> Schema:
        """A whole schema with its definitions."""
        root = self.random.choice([self.an_object, self.an_object, self.an_array, self.a_choice])(3)
        return {**root, "$defs": self.definitions} if self.definitions else root

    def schema(self, depth: int) -> Schema:
        """Any schema, `depth` levels above its leaves."""
        makers = [self.a_string, self.a_number, self.an_integer, self.a_constant, self.a_flag]
        if depth > 0:
            makers += [self.an_object, self.an_array, self.a_choice, self.a_reference, self.a_merge]
        return self.random.choice(makers)(depth - 1)

    def a_string(self, _depth: int) -> Schema:
        pick = self.random.randrange(5)
        low = self.random.randrange(4)
        if pick == 0:
            name = self.random.choice(["date", "time", "date-time", "ipv4", "uuid", "ipv6", "duration"])
            return {"type": "string", "format": name}
        if pick == 1:
            patterns = ["^[a-z]{2,4}$", r"^\d{3}$", "^(?:on|off)$", r"^[A-Z]\w{1,3}$", "^#[0-9a-f]{6}$", r"^v\d\.\d$"]
            return {"type": "string", "pattern": self.random.choice(patterns)}
        if pick == 2 and not self.bounded:
            return {"type": "string", "minLength": low}
        return {"type": ["string", "null"] if pick == 3 else "string", "minLength": low, "maxLength": low + 6}

    def a_number(self, _depth: int) -> Schema:
        low = self.random.choice([-10, -0.5, 0, 0.125, 1, 2.75])
        made: Schema = {"type": "number", self.random.choice(["minimum", "exclusiveMinimum"]): low}
        if self.bounded or self.random.random() < 0.5:
            made[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.choice([1, 3.5, 100])
        if self.random.random() < 0.3:
            made["multipleOf"] = self.random.choice([0.25, 0.5, 1])
        return made

    def an_integer(self, _depth: int) -> Schema:
        low = self.random.randrange(-50, 50)
        made: Schema = {"type": "integer", "minimum": low}
        if self.bounded or self.random.random() < 0.5:
            made["maximum"] = low + self.random.randrange(9, 200)
        if self.random.random() < 0.3:
            made["multipleOf"] = self.random.choice([2, 3, 5])
        return made

    def a_constant(self, _depth: int) -> Schema:
        values: list[Any] = ["red", "grün", "two words", 7, -1, 2.5, None, True, ["a", 1], {"k": None}]
        if self.random.random() < 0.3:
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, self.random.randrange(1, 5))}

    def a_flag(self, _depth: int) -> Schema:
        return {"type": self.random.choice(["boolean", "null", "boolean"])}

    def an_object(self, depth: int) -> Schema:
        words = ["id", "name", "größe", "is ok", "a", "b", "type", "items", "kind_2"]
        names = self.random.sample(words, self.random.randrange(1, 4))
        made: Schema = {"type": "object", "properties": {name: self.schema(depth) for name in names}}
        made["required"] = [name for name in names if self.random.random() < 0.7]
        rest: list[Any] = [False] if self.bounded else [False, True, self.a_flag(0), None]
        extra = self.random.choice(rest)
        if extra is not None:
            made["additionalProperties"] = extra
        if self.random.random() < 0.15:
            made["patternProperties"] = {"^x-[0-9]$": self.a_flag(0)}
            if self.bounded:
                made = {**made, "required": names, "maxProperties": len(names) + 2}
        return made

    def an_array(self, depth: int) -> Schema:
        low = self.random.randrange(3)
        made: Schema = {"type": "array", "items": self.schema(depth), "minItems": low}
        if self.bounded or self.random.random() < 0.5:
            made["maxItems"] = low + self.random.randrange(1, 3)
        if self.random.random() < 0.25:
            made["prefixItems"] = [self.a_flag(0), self.an_integer(0)]
        return made

    def a_choice(self, depth: int) -> Schema:
        if self.random.random() < 0.4:
            kinds = [self.a_flag(0), {"type": "string", "maxLength": 4}, self.an_integer(0)]
            return {"oneOf": [{"type": "array", "items": kinds[0], "maxItems": 2}, *kinds[1:]]}
        return {"anyOf": [self.schema(depth) for _ in range(self.random.randrange(2, 4))]}

    def a_reference(self, depth: int) -> Schema:
        name = f"part_{len(self.definitions)}"
        self.definitions[name] = True
        if self.bounded or self.random.random() < 0.5:
            self.definitions[name] = self.schema(depth)
        else:
            again: Schema = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}
            self.definitions[name] = closed({"value": self.schema(0), "next": again})
        return {"$ref": f"#/$defs/{name}", "description": "described"}

    def a_merge(self, depth: int) -> Schema:
        if self.random.random() < 0.5:
            return {"allOf": [self.an_integer(0) | {"multipleOf": 1}, {"type": ["integer", "null"]}]}
        made = self.an_object(depth)
        first, *others = made["properties"]
        return {"allOf": [made, {"required": [first]}, {"type": "object"}], "title": str(len(others))}


def cases(count: int = 200) -> list[Case]:
    """The first `count` cases: those written by hand, then made ones, two of three bounded."""
    written = [Case(name, schema, True) for name, schema in BOUNDED.items()]
    written += [Case(name, schema, False) for name, schema in UNBOUNDED.items()]
    made = [
        Case(f"made-{seed}", Maker(seed, seed % 3 > 0).document(), seed % 3 > 0)
        for seed in range(max(0, count - len(written)))
    ]
    return [*written, *made][:count]


def sample(count: int, total: int = 200) -> list[Case]:
    """`count` of the cases, spread evenly."""
    every = cases(total)
    return [every[index * len(every) // count] for index in range(count)]
