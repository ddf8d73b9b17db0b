"""What a browser brings back from the provider, before the provider is asked."""

import asyncio

import pytest

from heddle.errors import NotAuthenticated
from heddle.oidc import Attempt, Provider
from heddle.settings import Settings


@pytest.mark.parametrize("state", [None, "", "a", "\xe9", "\udcff", "\0"], ids=repr)
def test_a_state_that_is_not_of_this_attempt(state: str | None) -> None:
    pytest.importorskip("authlib")
    provider = Provider(Settings(oidc_issuer="https://issuer.invalid", oidc_client_id="c", oidc_client_secret="s"))
    given = {"code": "c"} if state is None else {"code": "c", "state": state}
    with pytest.raises(NotAuthenticated, match="started in another browser"):
        asyncio.run(provider.finish(Attempt(), given, "https://heddle.invalid/"))
