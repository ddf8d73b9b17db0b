"""A real nginx with the files of deploy/nginx, on ports of its own and with a certificate of its own."""

import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli import make_key
from tests.support.server import HeddleProcess, free_port

FILES = Path(__file__).parents[2] / "deploy" / "nginx"
PATH = "/heddle"
_STARTED_WITHIN = 60.0
_TEMPORARY = "".join(f"  {kind}_temp_path temp;\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
_MAIN = "events {}\nhttp {\n  access_log off;\n" + _TEMPORARY + "  include conf.d/*.conf;\n}\n"


def missing() -> str | None:
    """Why there is nothing to test with, None where there is."""
    if not all(map(shutil.which, ("nginx", "openssl"))):
        return "nginx or openssl is not installed: apt-get install nginx openssl"
    return None


class Nginx:
    """One nginx; a context manager that stops it and removes its folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="heddle-nginx-"))
        self.port = free_port()
        self.certificate = self.folder / "heddle.pem"
        self._key = self.folder / "heddle.key"
        self._process: subprocess.Popen[bytes] | None = None
        (self.folder / "temp").mkdir()
        shutil.copytree(FILES, self.folder / "heddle")

    def show(self, http: int, grpc: int) -> "Nginx":
        """Start with site.conf: a server below PATH over TLS, and its gRPC port."""
        self._make_certificate()
        site = _change(
            FILES / "site.conf",
            ("listen 443 ssl http2;", f"listen 127.0.0.1:{self.port} ssl http2;"),
            ("server 127.0.0.1:8470;", f"server 127.0.0.1:{http};"),
            ("grpc://127.0.0.1:4317", f"grpc://127.0.0.1:{grpc}"),
            ("/etc/ssl/certs/heddle.pem", str(self.certificate)),
            ("/etc/ssl/private/heddle.key", str(self._key)),
        )
        (self.folder / "conf.d").mkdir()
        (self.folder / "conf.d" / "heddle.conf").write_text(site, encoding="utf-8")
        return self._start(_MAIN)

    def balance(self, ports: Sequence[int]) -> "Nginx":
        """Start with balancer.conf in front of servers; Debian's nginx is too old to look their addresses up."""
        servers = " ".join(f"server 127.0.0.1:{port} max_fails=2 fail_timeout=2s;" for port in ports)
        return self._start(
            _change(
                FILES / "balancer.conf",
                ("resolver 127.0.0.11 valid=5s;", _TEMPORARY),
                ("server heddle:8470 resolve max_fails=2 fail_timeout=2s;", servers),
                ("listen 8470;", f"listen 127.0.0.1:{self.port};"),
            )
        )

    def log(self) -> str:
        """What nginx complained of."""
        return (self.folder / "error.log").read_text(errors="replace")

    def _make_certificate(self) -> None:
        made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=heddle.example.com", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        places = ["-keyout", str(self._key), "-out", str(self.certificate)]
        subprocess.run(["openssl", "req", "-x509", *made, *names, *places], check=True, capture_output=True)

    def _start(self, configuration: str) -> "Nginx":
        (self.folder / "nginx.conf").write_text(configuration, encoding="utf-8")
        as_root = "user root; " if self.folder.owner() == "root" else ""
        more = f"{as_root}daemon off; pid nginx.pid; worker_processes 1;"
        command = ["nginx", "-p", str(self.folder), "-c", "nginx.conf", "-e", "error.log", "-g", more]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _STARTED_WITHIN
        while not (self.folder / "nginx.pid").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nginx did not start:\n{self.log()}")
            time.sleep(0.02)
        return self

    def __enter__(self) -> "Nginx":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Site:
    """A server with keys behind nginx, and what a client of it needs."""

    server: HeddleProcess
    nginx: Nginx
    key: str

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"https://127.0.0.1:{self.nginx.port}{PATH}"

    @property
    def variables(self) -> dict[str, str]:
        """What makes a client trust the certificate, and who it is."""
        trust = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self.nginx.certificate))
        return {**trust, "WANDB_API_KEY": self.key}

    @property
    def bearer(self) -> dict[str, str]:
        """The key as a header."""
        return {"authorization": f"Bearer {self.key}"}

    @property
    def trust(self) -> ssl.SSLContext:
        """What lets httpx trust the certificate."""
        return ssl.create_default_context(cafile=str(self.nginx.certificate))


@contextmanager
def serve_site(data: Path, **settings: object) -> Iterator[Site]:
    """The server that site.conf is for, and nginx in front of it."""
    key, http, grpc = make_key(data, "ann", "--scope", "admin"), free_port(), free_port()
    with Nginx() as nginx:
        settings |= {"auth": "on", "root_path": PATH, "trusted_proxies": "127.0.0.1", "otlp_grpc_port": grpc}
        url = f"https://127.0.0.1:{nginx.port}{PATH}"
        with HeddleProcess(data, http, public_url=url, **settings) as server:
            nginx.show(http, grpc)
            yield Site(server, nginx, key)


def _change(path: Path, *changes: tuple[str, str]) -> str:
    """A file with ports and places of the test; each must be in it once, outside of comments."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{path.name}: {old}"
        text = text.replace(old, new)
    return text
