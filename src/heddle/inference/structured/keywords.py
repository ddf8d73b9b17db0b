"""What each keyword of JSON Schema does to an answer."""

ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""Say nothing about which values are valid; taken as they are. So do all names that begin with `x-`."""

REFUSED = {
    "$dynamicAnchor": "dynamic references are not supported; use $ref",
    "$dynamicRef": "dynamic references are not supported; use $ref",
    "$recursiveAnchor": "dynamic references are not supported; use $ref",
    "$recursiveRef": "dynamic references are not supported; use $ref",
    "additionalItems": "use prefixItems and items of draft 2020-12",
    "contains": "it cannot be enforced while text is generated",
    "dependencies": "it cannot be enforced; use anyOf of two object schemas",
    "dependentRequired": "it cannot be enforced; use anyOf of two object schemas",
    "dependentSchemas": "it cannot be enforced; use anyOf of two object schemas",
    "divisibleBy": "use multipleOf",
    "else": "it cannot be enforced; use anyOf",
    "extends": "use allOf",
    "id": "use $id at the root",
    "if": "it cannot be enforced; use anyOf",
    "maxContains": "it cannot be enforced while text is generated",
    "minContains": "it cannot be enforced while text is generated",
    "not": "it cannot be enforced; say what is allowed",
    "nullable": "it is not a keyword of JSON Schema; add 'null' to type",
    "then": "it cannot be enforced; use anyOf",
}
"""Refused wherever they stand, with what to do."""
