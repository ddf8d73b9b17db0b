"""Clients that go away in mid-stream and prompts that fill the context leave nothing behind."""

import json
import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.chat import API_KEY, Chat
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
DISCONNECTS = 200 if SOAK else 40
LONG_PROMPT = 30_000 if SOAK else 3_000

pytestmark = [pytest.mark.thorough, pytest.mark.soak]


def leave(process: HeddleProcess, chat: Chat, number: int) -> None:
    """Open a stream, read a random part of it, and go; some leave before the first byte, some half-read."""
    chance = random.Random(number)
    prompt = [{"role": "user", "content": f"{number} " + "rain " * chance.randrange(200)}]
    fields = {
        "messages": prompt,
        "max_tokens": 2000,
        "ignore_eos": True,
        "temperature": 1,
        "n": chance.choice([1, 1, 3]),
    }
    body = json.dumps(chat.body(stream=True, **fields)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {API_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        wanted = chance.choice([0, 1, 1000, 5000])
        while wanted > 0:
            wanted -= len(connection.recv(4096))
        if chance.random() < 0.5:
            # A reset instead of an orderly end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_disconnects_leave_no_blocks(server: HeddleProcess) -> None:
    before = len(server.log())
    with Chat(server.url) as chat:
        alone = chat.token_ids(max_tokens=12, ignore_eos=True)
        aborted = chat.engine()["aborted"]
        with ThreadPoolExecutor(9) as pool:
            gone = [pool.submit(leave, server, chat, number) for number in range(DISCONNECTS)]
            beside = [pool.submit(chat.token_ids, max_tokens=12, ignore_eos=True) for _ in range(DISCONNECTS // 4)]
            for future in gone:
                future.result()
            assert all(future.result() == alone for future in beside)
        figures = chat.until_idle(120)
        assert (figures["running"], figures["waiting"], figures["kv_blocks_used"]) == (0, 0, 0)
        assert figures["aborted"] - aborted >= DISCONNECTS // 2
        assert chat.token_ids(max_tokens=12, ignore_eos=True) == alone
    assert "Traceback" not in server.log()[before:]


def test_a_long_prompt_beside_short_chats(server: HeddleProcess) -> None:
    """All succeed, and the short ones give the tokens that they give alone."""
    with Chat(server.url) as chat:
        alone = chat.token_ids(max_tokens=6, ignore_eos=True)
        prompt = [{"role": "user", "content": "lamp " * LONG_PROMPT}]
        with ThreadPoolExecutor(9) as pool:
            long = pool.submit(chat.answer, messages=prompt, truncate_prompt_tokens=LONG_PROMPT, max_tokens=4)
            short = [pool.submit(chat.token_ids, max_tokens=6, ignore_eos=True) for _ in range(64)]
            assert all(future.result() == alone for future in short)
            usage = long.result()["usage"]
        assert usage["prompt_tokens"] == LONG_PROMPT
        assert chat.until_idle()["kv_blocks_used"] == 0
