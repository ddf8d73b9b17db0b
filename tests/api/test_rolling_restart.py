"""Two servers on one ClickHouse and one PostgreSQL behind a balancer: each is restarted, and no request fails."""

from pathlib import Path

import httpx
import pytest

from tests.support import scale
from tests.support.balancer import Balancer
from tests.support.server import HeddleProcess
from tests.support.traffic import Traffic, stored, until

pytestmark = pytest.mark.thorough


@pytest.mark.skipif(scale.missing() is not None, reason=scale.missing() or "")
def test_servers_are_restarted_one_after_the_other_without_a_failed_request(tmp_path: Path) -> None:
    settings = scale.settings_of("clickhouse", tmp_path / "data") | {"shutdown_drain": "1"}
    servers = [HeddleProcess(tmp_path / "data", **settings).start() for _ in range(2)]
    try:
        with Balancer([server.url for server in servers]) as balancer:
            until(lambda: httpx.get(f"{balancer.url}/health", timeout=60).status_code == 200)
            with Traffic(balancer.url, 4) as traffic:
                for server in servers:
                    traffic.more(10)
                    assert server.terminate() == 0
                    traffic.more(10)
                    server.start()
                    until(lambda server=server: server.is_ready())  # type: ignore[misc]
                traffic.more(10)
            assert traffic.failures == []
            for server in servers:
                assert stored(server.url) == traffic.acknowledged
                assert "Traceback" not in server.log()
    finally:
        for server in servers:
            server.kill()
