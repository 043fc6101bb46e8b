"""A key with a pass phrase is refused: nothing asks for it at the terminal, where there may be no one. A server follows
the files of its certificate."""

from __future__ import annotations

import os
import pty
import select
import signal
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rm_amqp.settings import parse
from rm_db import DecidingDatabase, MariaResource
from tm import ConfigurationError
from xa import XaError
from xa.sql.psycopg_connection import guarded
from xa.tls import FollowedContext, end_of_certificate, load_certificate
from xabridge.console.server import Server
from xabridge.console.settings import ConsoleSettings
from xabridge.outbox.rabbitmq import RabbitSettings
from xabridge.testing.contract.client import RMID, ScriptedRegistrar

CERTIFICATES = Path(__file__).parents[1] / "interop" / "certificates"
CERTIFICATE = CERTIFICATES / "broker.pem"
PHRASE = "Marked-Phrase-1"
LIMIT_S = 60
ASKS = b"pass phrase:"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encrypted key."""
    made = tmp_path_factory.mktemp("keys") / "encrypted.key"
    subprocess.run(
        ["openssl", "pkey", "-in", CERTIFICATES / "broker.key", "-aes256", "-passout", f"pass:{PHRASE}", "-out", made],
        check=True,
    )
    return made


def test_an_encrypted_key_is_refused(key: Path) -> None:
    with pytest.raises(OSError, match="encrypted with a pass phrase; write it without one"):
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), CERTIFICATE, key)
    load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), CERTIFICATE, CERTIFICATES / "broker.key")


def test_a_server_follows_the_files_of_its_certificate(tmp_path: Path) -> None:
    """While they don't fit together the former ones go on, and that is said once."""
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def write(file: Path, of: str) -> None:
        aside = tmp_path / "aside"
        aside.write_bytes((CERTIFICATES / of).read_bytes())
        aside.replace(file)

    def made() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_certificate(context, certificate, key)
        return context

    failures: list[OSError] = []
    with pytest.raises(OSError, match="No such file"):
        FollowedContext(made, (certificate, key), failures.append)
    write(certificate, "broker.pem")
    write(key, "broker.key")
    followed = FollowedContext(made, (certificate, key), failures.append)
    first = followed.current
    assert followed.current is first

    write(certificate, "client.pem")
    assert followed.current is followed.current is first
    assert len(failures) == 1
    key.unlink()
    assert followed.current is followed.current is first
    assert len(failures) == 2
    write(key, "client.key")
    assert followed.current is followed.current is not first
    assert len(failures) == 2


def test_every_client_refuses_it(key: Path) -> None:
    with pytest.raises(XaError, match="can't be used: the key is encrypted"):
        parse(f"amqps://a?cert={CERTIFICATE}&key={key}", {}).tls_context()
    with pytest.raises(ValueError, match="can't be used: the key is encrypted"):
        RabbitSettings.parse(f"amqp091s://a?cert={CERTIFICATE}&key={key}", {})
    files = f"ssl_cert={CERTIFICATE}&ssl_key={key}"
    for make, scheme in ((MariaResource, "mariadb"), (DecidingDatabase, "mysql+pymysql")):
        with pytest.raises(XaError, match="can't be used: the key is encrypted"):
            make(ScriptedRegistrar()).open(f"{scheme}://a@127.0.0.1:1/d?ssl_ca={CERTIFICATE}&{files}", RMID)
        with pytest.raises(XaError, match=r"ssl_ca, ssl_cert or ssl_key can't be used: .*No such file"):
            make(ScriptedRegistrar()).open(f"{scheme}://a@127.0.0.1:1/d?ssl_ca=/no/such/file", RMID)
    assert guarded({"sslkey": str(key)}, {})["sslpassword"], "libpq asks where it has none"
    assert guarded({"sslkey": str(key), "sslpassword": "x"}, {})["sslpassword"] == "x"
    assert "sslpassword" not in guarded({}, {})


def test_the_console_refuses_it(key: Path) -> None:
    with pytest.raises(ConfigurationError, match="certificate or key can't be used: the key is encrypted"):
        Server(ConsoleSettings(listen="127.0.0.1:0", certificate=str(CERTIFICATE), key=str(key)), None)


@pytest.mark.slow  # a process; the same refusal: the tests above
def test_a_broker_at_a_terminal_does_not_ask(key: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "xabridge.cli", "broker", "--listen-tls", "127.0.0.1:0", "--anonymous",
        "--certificate", str(CERTIFICATE), "--key", str(key), "--store", f"sqlite:///{tmp_path}/store",
    ]  # fmt: skip
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, command)  # noqa: S606 — our own command
    said = b""
    with suppress(OSError):  # it has ended
        while ASKS not in said and select.select([terminal], [], [], LIMIT_S)[0]:
            said += os.read(terminal, 4096)

    if ASKS in said:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 1, said
    assert b"the key is encrypted" in said


def test_the_end_of_a_certificate_is_what_openssl_says() -> None:
    said = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", CERTIFICATE], capture_output=True, text=True, check=True
    )
    assert end_of_certificate(CERTIFICATE) == ssl.cert_time_to_seconds(said.stdout.strip().removeprefix("notAfter="))


@pytest.mark.parametrize("days", [10, 36_500])
def test_the_end_of_a_certificate_in_either_form_of_a_year(tmp_path: Path, days: int) -> None:
    """Two digits until 2049, four from 2050 on."""
    file = tmp_path / "c.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x")
    made = ("openssl", "req", "-x509", *kind, "-keyout", tmp_path / "k", "-out", file, "-days", str(days))
    subprocess.run(made, capture_output=True, check=True)
    assert end_of_certificate(file) == pytest.approx(time.time() + days * 24 * 3600, abs=120)


def test_a_file_without_a_whole_certificate_has_no_end(tmp_path: Path) -> None:
    """Whatever is cut off or changed is a ValueError, not another error."""
    file, whole = tmp_path / "c.pem", ssl.PEM_cert_to_DER_cert(CERTIFICATE.read_text().partition("\n\n")[0])
    file.write_text("no certificate")
    with pytest.raises(ValueError, match="the file has no certificate"):
        end_of_certificate(file)
    end, refused = end_of_certificate(CERTIFICATE), 0
    for length in range(len(whole)):
        file.write_text(ssl.DER_cert_to_PEM_cert(whole[:length]))
        try:
            assert end_of_certificate(file) == end, "what is cut off stands behind it"
        except ValueError:
            refused += 1
    assert refused > 100
