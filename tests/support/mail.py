"""A mail server that takes every mail, or refuses some for a while."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks as much of SMTP as a mail needs."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.mails: list[EmailMessage] = []
        self.receivers: list[list[str]] = []
        self.refuse = 0
        """How many mails are not taken yet."""
        self.greets_forever = False
        self.refused: dict[str, int] = {}
        """How many times each receiver is not taken yet."""
        self.farewell = "221 bye"

    @property
    def address(self) -> str:
        """As the setting `smtp` has it."""
        return f"smtp://127.0.0.1:{self.server_address[1]}"


class _Session(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        """One connection."""
        while self.server.greets_forever:
            try:
                self._say("220-" + "so much to say " * 500)
            except OSError:
                return
        self._say("220 ready")
        receivers: list[str] = []
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"EHLO":
                self._say("250 mail.example.com")
            elif word == b"RCPT":
                receiver = line.decode().partition("<")[2].partition(">")[0]
                if self.server.refused.get(receiver):
                    self.server.refused[receiver] -= 1
                    self._say("451 come back later")
                    continue
                receivers.append(receiver)
                self._say("250 ok")
            elif word == b"DATA":
                self._take(receivers)
            elif word == b"QUIT":
                self._say(self.server.farewell)
                return
            else:
                self._say("250 ok")

    def _take(self, receivers: list[str]) -> None:
        if self.server.refuse:
            self.server.refuse -= 1
            self._say("451 come back later")
            return
        self._say("354 go on")
        lines = []
        for line in self.rfile:
            if line == b".\r\n":
                break
            lines.append(line)
        mail = message_from_bytes(b"".join(lines), policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.server.receivers.append(receivers)
        self.server.mails.append(mail)
        self._say("250 taken")

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


@contextmanager
def taking_mail() -> Iterator[MailServer]:
    """A mail server that runs."""
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
