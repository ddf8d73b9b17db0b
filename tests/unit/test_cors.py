"""What pages of other origins are told, and which settings allow them."""

import pytest

from heddle.app import served_routes
from heddle.auth import check_origin
from heddle.errors import Forbidden
from heddle.http.middleware import answer_preflight, cors_headers
from heddle.settings import BadSetting, Settings, load

APP, OTHER = b"https://app.example.com", b"https://other.example.com"
NAMED = Settings(cors_origins=f"{APP.decode()},http://localhost:3000")
ANY = Settings(cors_origins="any", auth="on")


def asked(origin: bytes, **more: bytes) -> dict[bytes, bytes]:
    """The headers of a preflight."""
    named = {name.replace("_", "-").encode(): value for name, value in more.items()}
    return {b"host": b"127.0.0.1:8470", b"origin": origin, b"access-control-request-method": b"POST", **named}


def test_off_by_default() -> None:
    assert cors_headers(asked(APP), Settings()) == []
    assert answer_preflight("OPTIONS", asked(APP), Settings()) is None


def test_only_named_origins_are_told_anything() -> None:
    assert dict(cors_headers(asked(APP), NAMED))[b"access-control-allow-origin"] == APP
    assert (b"vary", b"Origin") in cors_headers(asked(APP), NAMED)
    assert cors_headers(asked(OTHER), NAMED) == []
    assert answer_preflight("OPTIONS", asked(OTHER), NAMED) is None


@pytest.mark.parametrize("settings", [NAMED, ANY])
def test_credentials_of_the_browser_are_never_allowed(settings: Settings) -> None:
    answer = answer_preflight("OPTIONS", asked(APP), settings)
    assert answer is not None and "access-control-allow-credentials" not in answer.headers
    assert b"access-control-allow-credentials" not in dict(cors_headers(asked(APP), settings))


def test_any_is_a_star() -> None:
    assert dict(cors_headers(asked(OTHER), ANY))[b"access-control-allow-origin"] == b"*"


def test_a_preflight_allows_the_headers_that_it_names() -> None:
    wanted = b"authorization,content-type,openai-project,x-stainless-lang"
    answer = answer_preflight("OPTIONS", asked(APP, access_control_request_headers=wanted), NAMED)
    assert answer is not None and answer.status_code == 204
    assert answer.headers["access-control-allow-headers"].encode() == wanted
    assert "POST" in answer.headers["access-control-allow-methods"]
    strange = answer_preflight("OPTIONS", asked(APP, access_control_request_headers=b"a\r\nb: c"), NAMED)
    assert strange is not None and "access-control-allow-headers" not in strange.headers


def test_only_a_preflight_is_answered() -> None:
    plain = {b"origin": APP}
    assert answer_preflight("OPTIONS", plain, NAMED) is None
    assert answer_preflight("POST", asked(APP), NAMED) is None


def test_a_named_origin_may_write_without_keys_and_no_other() -> None:
    headers = {b"host": b"127.0.0.1:8470", b"origin": APP, b"sec-fetch-site": b"cross-site"}
    check_origin("POST", headers, NAMED)
    with pytest.raises(Forbidden, match="cors-origins"):
        check_origin("POST", headers | {b"origin": OTHER}, NAMED)


def test_any_origin_may_not_use_what_the_browser_adds() -> None:
    basic = {b"host": b"h", b"origin": APP, b"authorization": b"Basic dTpw"}
    with pytest.raises(Forbidden, match="Bearer"):
        check_origin("POST", basic, ANY)
    check_origin("POST", basic | {b"authorization": b"Bearer k"}, ANY)


@pytest.mark.parametrize("value", ["https://a.b/path", "a.b", "https://", "any,https://a.b", "", "null"])
def test_what_is_no_origin_is_no_setting(value: str) -> None:
    with pytest.raises(BadSetting, match="cors_origins"):
        load({"cors_origins": value}, {})


def test_spellings() -> None:
    assert load({"cors_origins": "HTTPS://App.Example.com/, http://localhost:3000"}, {}).named_origins == {
        APP,
        b"http://localhost:3000",
    }
    assert load({"cors_origins": "*", "auth": "on"}, {}).cors_origins == "any"


def test_any_needs_keys() -> None:
    with pytest.raises(BadSetting, match="auth on"):
        load({"cors_origins": "any"}, {})


def test_a_preflight_allows_the_method_of_every_route() -> None:
    answer = answer_preflight("OPTIONS", asked(APP), NAMED)
    assert answer is not None
    allowed = set(answer.headers["access-control-allow-methods"].split(", "))
    assert {method for route in served_routes() for method in route.methods} <= allowed
