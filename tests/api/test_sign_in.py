"""What comes back from a sign-in that this server did not begin."""

import httpx
import pytest

from tests.support.server import HeddleProcess


@pytest.mark.parametrize("kept", ["", "A", "AA", "AAAAA", "Lw", "_" * 2799, "_" * 2801])
def test_made_up_cookies_lead_to_the_first_page(server: HeddleProcess, kept: str) -> None:
    cookie = {"Cookie": f"heddle_sign_in={'x' * 43}.{kept}"}
    answer = httpx.get(f"{server.url}/_ui/sign_in/callback?code=a&state=b", headers=cookie)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?sign_in=failed")
