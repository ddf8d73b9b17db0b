"""Formats of JSON Schema as patterns of the whole text.

Where a validator demands more than the grammar of the format (days of a month, lengths), the patterns do too; where
a format allows rare forms (years before 1000, leap seconds, punycode), they are left out: what is generated is valid,
not everything valid can be generated.
"""

_LEAP_YEAR = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:[1-9][0-9]{{3}}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})"

_NUMBER = "[0-9]{1,6}"
_DAYS = f"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"
_HOURS = f"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"

_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,29}"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_MAILBOX = rf"{_ATOM}{{1,32}}(?:\.{_ATOM}{{1,15}}){{0,2}}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]"
_GROUP = f"{_HEX}{{1,4}}"

_PATH_CHARACTER = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_SEGMENTS = f"(?:/{_PATH_CHARACTER}*)*"
_ROOTED = f"(?:/(?:{_PATH_CHARACTER}+{_SEGMENTS})?)"
_AUTHORITY = f"//{_HOST}(?::[0-9]{{1,4}})?"
_TAIL = rf"(?:\?(?:{_PATH_CHARACTER}|[/?])*)?(?:#(?:{_PATH_CHARACTER}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}{_SEGMENTS}|{_ROOTED}|{_PATH_CHARACTER}+{_SEGMENTS}){_TAIL}"


def _ipv6() -> str:
    forms = [f"(?:{_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        left = f"(?:{_GROUP}:){{{before - 1}}}{_GROUP}" if before else ""
        room = 7 - before - 1
        right = f"(?:{_GROUP}(?::{_GROUP}){{0,{room}}})?" if room >= 0 else ""
        forms.append(f"{left}::{right}")
    return "|".join(forms)


FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|{_NUMBER}W)",
    "email": f"{_MAILBOX}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": _ipv6(),
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": _URI,
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*",
}
# The wider formats are met by what the narrower ones allow.
FORMATS["idn-email"] = FORMATS["email"]
FORMATS["idn-hostname"] = FORMATS["hostname"]
FORMATS["iri"] = FORMATS["uri-reference"] = FORMATS["iri-reference"] = FORMATS["uri"]

INTEGER_FORMATS = {"int32": 2**31, "int64": 2**63}
"""Formats of OpenAPI on integers: values from -limit to limit - 1."""

HINTS = frozenset({"float", "double", "password"})
"""Formats that every number or text meets."""
