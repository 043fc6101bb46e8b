"""The steps of docs/operations.md, "Rotate what is secret": a certificate and the users of databases are replaced while
clients work, and with branches in doubt. Passwords of the broker: `cli/test_managing_a_broker.py`, `console/`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rm_amqp import Message
from tests.xabridge.traffic import Traffic
from xa import TMSUCCESS, XaError, Xid
from xabridge.testing.broker import BrokerProcess

pytestmark = pytest.mark.slow
XID = Xid(1, b"gtrid", b"bqual")


# -- certificates
def make_certificate(folder: Path, name: str) -> Path:
    """A certificate, in place of the one that is there."""
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*make, "-out", folder / "broker.pem", "-keyout", folder / "broker.key"], check=True, capture_output=True
    )
    return folder / "broker.pem"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with TLS, whose certificate is beside its store."""
    flags = {"certificate": make_certificate(tmp_path, "first"), "key": tmp_path / "broker.key"}
    process = BrokerProcess(
        tmp_path, "--listen-tls", "127.0.0.1:0", *(f"--{name}={file}" for name, file in flags.items())
    )
    process.start()
    yield process
    process.kill()


def test_a_certificate_is_replaced_with_a_branch_in_doubt(broker: BrokerProcess, tmp_path: Path) -> None:
    """What is open stays open; who connects from then on sees the new certificate, without a restart."""
    first = tmp_path / "trusted.pem"
    first.write_bytes((tmp_path / "broker.pem").read_bytes())
    url = f"amqps://127.0.0.1:{broker.port}/?timeout=20&ca="
    with ExitStack() as stack:
        opened = stack.enter_context(closing(Traffic(f"{url}{first}")))
        opened.post("orders", Message("a"))
        opened.prepare(XID, "orders", "invoices")

        second = make_certificate(tmp_path, "second")
        with pytest.raises(XaError, match=r"(?i)certificate.verify.failed"):
            Traffic(f"{url}{first}")
        late = stack.enter_context(closing(Traffic(f"{url}{second}")))
        late.rm.commit(XID, 1)
        opened.work(Xid(1, b"another", b"b"), taken_from="invoices")
        opened.rm.end(Xid(1, b"another", b"b"), 1, TMSUCCESS)
