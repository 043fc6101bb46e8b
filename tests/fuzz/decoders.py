"""Every decoder of octets or texts that come from elsewhere: its name, how to feed it, valid samples, and the errors
that it declares. Nothing else may come out of it.

`test_decoders.py` feeds each one the neighbours of its samples, with a seed that it prints. `python -m tests.fuzz`
(`make fuzz`) searches with atheris, guided by coverage. A new decoder needs a line in DECODERS.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError
from dtx.amqp.decoding import decode as decode_value
from dtx.amqp.encoding import encode
from dtx.amqp.sasl import ClientPolicy, SaslClient, SaslServer, ServerPolicy
from dtx.amqp.sasl.layer import SaslError
from dtx.amqp.sasl.scram import ClientFinal, ClientFirst, ScramError, ServerFirst, Verifier
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.access.credentials import Credentials, CredentialsError, verifier_of
from dtx.broker.access.permissions import PermissionsError, rule_of_json
from dtx.broker.config import load as broker_config
from dtx.broker.queues.outcomes import read_state
from dtx.broker.queues.selector import Selector, SelectorError, selector_of
from dtx.protocol.addresses import parse_branch_address
from dtx.protocol.commands import CONTROL, COORDINATION, Discharge, Forget, Prepare
from dtx.protocol.replies import decode_reply
from rm_amqp import settings as amqp_settings
from rm_amqp.amqp010 import settings as settings_010
from rm_amqp.amqp010.frames import FrameReader as FrameReader010
from rm_amqp.amqp010.structs import read_command, read_control, read_header
from rm_amqp.amqp010.typed_octets import read_map_message, read_stream_message
from rm_amqp.amqp010.values import WireError as WireError010
from rm_amqp.channel.encoded_commands import read_reply, read_response, read_vote
from rm_amqp.decider.tokens import FoundingMessage, Token, WrongTokenError
from rm_amqp.message import Message
from rm_db.address import Address
from rm_db.mariadb.xid import decode_xids
from rm_db.postgres.gid import decode_gid
from rm_delta.lake import ManifestDamaged, ManifestOfOtherVersion, read_manifest
from rm_openwire import settings as openwire_settings
from rm_openwire import wire as openwire
from rm_openwire.messages import decoded_message
from rm_openwire.primitives import decode_map
from tests.fuzz import endpoint
from tests.tm.log.samples import decision
from tm.config import configuration_from
from tm.log.decider_record import decode_branches, encode_branches
from tm.log.factory import folder_of
from tm.log.records import RecordError, decode, encode_decision
from tm.log.segment import HEADER_SIZE, Header, SegmentDamaged, encode_frame, encode_header, read_segment
from tm.resources import ConfigurationError
from xa import Gtrid, XaError, Xid
from xabridge.console.settings import console_settings
from xabridge.operations.survey_json import decode_survey
from xabridge.outbox.config import OutboxConfig
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.shards import PlannedRead, shard_from_text
from xabridge.pipeline.json_document import read_json
from xabridge.pipeline.json_schema import ddl_of
from xabridge.pipeline.settings import settings_from


@dataclass(frozen=True)
class Decoder:
    """`read` takes any octets, and raises `declared` or nothing."""

    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    samples: tuple[bytes, ...]

    @property
    def ways(self) -> int:
        """How many readers there are, where the first octet chooses one."""
        return getattr(self.read, "ways", 0)

    def try_on(self, octets: bytes) -> bool:
        """Whether the octets are decoded; any other error than those that are declared goes through."""
        try:
            self.read(octets)
        except self.declared:
            return False
        return True


# --- how some are fed -------------------------------------------------------------------------------------------------
XID: Final = Xid(7, b"gtrid", b"bqual")
PASSWORD: Final = verifier_of("alice", "secret", random=lambda size: b"s" * size, iterations=4096)


def text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Of a text; octets that are no UTF-8 are halves of surrogate pairs, which may stand in a str."""
    return lambda octets: read(octets.decode("utf-8", "surrogateescape"))


def file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Of a file with these octets."""
    path = Path(gettempdir(), f"fuzzed-{id(read):x}.toml")

    def of_file(octets: bytes) -> object:
        path.write_bytes(octets)
        try:
            return read(path)
        finally:
            path.unlink()

    return of_file


def each(*reads: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """The first octet says who reads the others."""

    def of_one(octets: bytes) -> object:
        return reads[octets[0] % len(reads)](octets[1:]) if octets else None

    of_one.ways = len(reads)  # type: ignore[attr-defined]
    return of_one


def _nonce(size: int) -> bytes:
    return bytes(range(size))


def _sasl(octets: bytes) -> None:
    """Both sides take anything: what is wrong with it is their `failure`."""
    policy = ServerPolicy(Credentials({"alice": PASSWORD}, b"decoy"), anonymous=True)
    for layer in (
        SaslServer(policy, encrypted=True, certified="CN=node", nonce=_nonce),
        SaslClient(ClientPolicy("alice", "secret"), encrypted=True, hostname="here", nonce=_nonce),
        SaslClient(ClientPolicy(), encrypted=True, hostname="here", nonce=_nonce),
    ):
        layer.feed(octets)
        layer.output()


def _selector(octets: bytes) -> None:
    """A selector, and behind a zero the message that it looks at."""
    written, _, message = octets.partition(b"\0")
    Selector.parse(written.decode("utf-8", "replace")).matches(message)


def _filters(octets: bytes) -> None:
    value = decode_value(octets)
    selector_of(value if type(value) is dict else None)


def _segment(octets: bytes) -> None:
    """A segment whose checks are right, whatever it holds; or one as it is."""
    size, *content = octets[0] if octets else 0, octets[1:]
    whole = content[0]
    if size:
        body = whole[:size].ljust(HEADER_SIZE - 12, b"\0")
        total = HEADER_SIZE + len(whole[size:])
        body = body[:16] + struct.pack(">Q", total) + body[24:]
        magic = b"xabrlog2"
        whole = magic + struct.pack(">I", zlib.crc32(body, zlib.crc32(magic))) + body + whole[size:]
    read_segment(whole)


def _branches(octets: bytes) -> None:
    decode_branches(octets + struct.pack(">I", zlib.crc32(octets)))


def _openwire_message(octets: bytes) -> None:
    found = openwire.decode(octets)
    if isinstance(found, openwire.WireMessage):
        decoded_message(found, 0)


def _rows(octets: bytes) -> None:
    """A row of XA RECOVER; the server says the lengths."""
    list(decode_xids([(1, octets[0] if octets else 0, octets[1] if len(octets) > 1 else 0, octets[2:])]))
    list(decode_xids([(1, 1, 1, octets.decode("latin-1"))]))


# --- samples ----------------------------------------------------------------------------------------------------------
_HEADER: Final = Header(b"12345678", 3, HEADER_SIZE + 512, b"87654321", 2, "node-1")
_PAYLOAD: Final = encode_decision(decision(1))
_SEGMENT: Final = encode_header(_HEADER) + encode_frame(_HEADER.mark, HEADER_SIZE, _PAYLOAD).ljust(512, b"\0")
_HEADER_BODY: Final = encode_header(_HEADER)[12:96]
_SASL: Final = b"AMQP\x03\x01\x00\x00"


def _frame(code: int, *items: object) -> bytes:
    body = encode(Described(Ulong(code), list(items)))  # type: ignore[arg-type]
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


_MESSAGE: Final = Message("body", properties={"color": "red", "weight": 12}, subject="order").encode()
CORPUS: Final = tuple(path.read_bytes() for path in sorted(endpoint.CORPUS.iterdir()) if path.is_file())
_SELECTOR: Final = b"color = 'red' AND weight BETWEEN 1 AND 20 OR name NOT LIKE '%a!_b_%' ESCAPE '!' OR a IN ('b')\0"
_TOKEN: Final = Token(b"12345678", 3, 2, 1, 0, ((b"gtrid", b"record"),), ((b"other", 1),)).encode().encode()
_RULE: Final = b'{"consume": ["orders", "a.*"], "coordinate": "own", "view": true}'
_OPEN: Final = b"amqps://user:pass%40word@[::1]:5671,b:5671?ca=ca.pem&idle_timeout=3"
_CONFIG: Final = b"""node = "n1"
log = "file:///var/lib/log"
timeout_s = 30
[resources]
orders = "postgresql://localhost/orders"
broker = { url = "amqp://localhost", mode = "two-phase" }
[broker]
listen = ["127.0.0.1:5672"]
[broker.permissions.alice]
consume = ["*"]
[broker.queues.orders]
max_deliveries = 3
[outbox]
schema = "public"
batch = 100
[pipeline]
log = "postgresql://localhost/orders"
[console]
listen = "127.0.0.1:8080"
[console.brokers]
b = "amqp://localhost"
"""
_READ: Final = PlannedRead(("a", "b"), (), (("c", "away"),)).as_text().encode()
_MANIFEST: Final = json.dumps(
    {
        "version": 2,
        "application": "a",
        "appends": [
            {
                "table": "t", "id": "1", "schema": "{}", "partitions": ["p"], "number": 3,
                "files": [{"path": "x/y", "size": 1, "rows": 1, "partition": {"p": "1"}, "stats": "{}"}],
            }
        ],
    }
).encode()  # fmt: skip
_SURVEY: Final = json.dumps(
    {
        "node": "n", "configured": 2, "unreachable": {"a": "b"}, "log_trouble": None, "open_decisions": 1,
        "carried_out": 1, "transactions": [],
    }
).encode()  # fmt: skip

_WIRE: Final = (WireError, DecodeError)

DECODERS: Final[dict[str, Decoder]] = {
    "AMQP endpoint": Decoder(endpoint.endpoint, (), CORPUS),
    "AMQP endpoint that answers late": Decoder(endpoint.late_endpoint, (), CORPUS),
    "AMQP values": Decoder(endpoint.values, (), CORPUS),
    "AMQP messages": Decoder(endpoint.messages, (), (*CORPUS, _MESSAGE)),
    "SASL": Decoder(
        _sasl,
        (),
        (
            _SASL + _frame(0x41, Symbol("PLAIN"), b"\0alice\0secret"),
            _SASL + _frame(0x41, Symbol("SCRAM-SHA-256"), b"n,,n=alice,r=abc") + _frame(0x43, b"c=biws,r=abc,p=AAAA"),
            _SASL + _frame(0x40, [Symbol("SCRAM-SHA-256")]) + _frame(0x42, b"r=abcdef,s=AAAA,i=4096"),
            _SASL + _frame(0x40, [Symbol("ANONYMOUS")]) + _frame(0x44, Uint(0)),
        ),
    ),
    "SCRAM": Decoder(
        each(
            ClientFirst.parse, lambda octets: ServerFirst.parse(octets, "abc"), ClientFinal.parse, text(Verifier.parse)
        ),
        (ScramError, SaslError),
        (
            b"\0n,,n=alice,r=abc",
            b"\x01r=abcdef,s=AAAA,i=4096",
            b"\x02c=biws,r=abc,p=AAAA",
            b"\x03" + str(PASSWORD).encode(),
        ),
    ),
    "commands": Decoder(
        each(CONTROL.decode, COORDINATION.decode),
        _WIRE,
        (
            b"\0" + CONTROL.encode(Discharge(b"txn", fail=False)),
            b"\x01" + COORDINATION.encode(Prepare(XID)),
            b"\x01" + COORDINATION.encode(Forget(XID)),
        ),
    ),
    "replies": Decoder(each(decode_reply, read_response, read_reply, read_vote), _WIRE, ()),
    "delivery states": Decoder(
        read_state, _WIRE, (b"\0\x53\x24\x45", b"\0\x53\x34\xc0\x08\x02\xa0\x01a\0\x53\x24\x45")
    ),
    "selectors": Decoder(_selector, (SelectorError,), (_SELECTOR + _MESSAGE,)),
    "filters": Decoder(
        _filters,
        (SelectorError, DecodeError),
        (
            encode({Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")}),
            encode({Symbol("s"): Described(Ulong(0x468C_0000_0004), "a LIKE 'b%'")}),
        ),
    ),
    "xids": Decoder(
        each(text(Xid.parse), text(parse_branch_address), Gtrid.decode, decode_gid, _rows),
        (ValueError,),
        (b"\0" + str(XID).encode(), b"\x02" + decision(1).gtrid, b"\x03" + str(XID).encode(), b"\x04\x01\x01ab"),
    ),
    "permissions": Decoder(text(lambda given: rule_of_json("a", given)), (PermissionsError,), (_RULE,)),
    "users": Decoder(file(Credentials.load), (CredentialsError,), (f"decoy AAAA\n{PASSWORD} alice\n".encode(),)),
    "broker configuration": Decoder(file(lambda path: broker_config(path, {})), (ConfigurationError,), (_CONFIG,)),
    "configuration": Decoder(file(lambda path: configuration_from(path, {})), (ConfigurationError,), (_CONFIG,)),
    "outbox configuration": Decoder(file(lambda path: OutboxConfig.read(path, {})), (ConfigurationError,), (_CONFIG,)),
    "console configuration": Decoder(file(lambda path: console_settings(path, {})), (ConfigurationError,), (_CONFIG,)),
    "pipeline configuration": Decoder(
        file(lambda path: settings_from("p", None, {}, str(path), {})), (PipelineError,), (_CONFIG,)
    ),
    "log segments": Decoder(
        _segment, (SegmentDamaged,), (b"\0" + _SEGMENT, bytes([len(_HEADER_BODY)]) + _HEADER_BODY + _SEGMENT[4096:])
    ),
    "log records": Decoder(lambda octets: list(decode(octets)), (RecordError,), (_PAYLOAD,)),
    "decision records": Decoder(_branches, (ValueError,), (encode_branches(decision(1).branches)[:-4],)),
    "tokens": Decoder(
        each(text(Token.decode), text(FoundingMessage.decode)),
        (WrongTokenError,),
        (b"\0" + _TOKEN, b"\x01" + FoundingMessage(b"12345678", 4).encode().encode()),
    ),
    "AMQP 1.0 messages of clients": Decoder(Message.from_octets, _WIRE, (_MESSAGE,)),
    "AMQP 0-10": Decoder(
        each(
            lambda octets: list(FrameReader010().feed(octets)),
            read_control,
            read_command,
            read_header,
            read_map_message,
            read_stream_message,
        ),
        (WireError010,),
        (b"\0\x0f\0\0\x0e\0\0\0\0\0\0\0\0\x01\x01", b"\x04\0\0\0\0", b"\x05\x02\x01"),
    ),
    "OpenWire": Decoder(
        each(
            lambda octets: list(openwire.FrameReader().feed(octets)),
            openwire.decode,
            openwire.decode_text,
            decode_map,
            _openwire_message,
        ),
        (openwire.DecodeError, XaError),
        (
            b"\0" + openwire.encode(openwire.TextMessage(content=b"\0\0\0\x01a")),
            b"\x04" + openwire.encode(openwire.TextMessage(content=b"\0\0\0\x01a", properties=b"\0\0\0\0"))[4:],
            b"\x02text",
            b"\x03\0\0\0\x01\0\x01a\x01\x01",
        ),
    ),
    "open strings": Decoder(
        each(
            text(lambda given: amqp_settings.parse(given, {})),
            text(lambda given: settings_010.parse(given, {})),
            text(lambda given: openwire_settings.parse(given, {})),
            text(Address.parse),
        ),
        (XaError,),
        (
            b"\0" + _OPEN,
            b"\x01amqp010://a:b@c:1/d",
            b"\x02openwire+ssl://a:b@c:61616",
            b"\x03postgresql://a:b@c/d?xa_pool_size=3",
        ),
    ),
    "URLs of logs": Decoder(text(folder_of), (ValueError,), (b"file:///var/lib/log", b"postgresql://a:b@[::1]/c")),
    "surveys": Decoder(
        lambda octets: decode_survey(json.loads(octets)),
        (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),  # as it says, and JSON
        (_SURVEY,),
    ),
    "ledger": Decoder(
        each(text(PlannedRead.from_text), text(shard_from_text)),
        (PipelineError,),
        (b"\0" + _READ, b'\x01["a", "b", "c"]'),
    ),
    "JSON of bodies": Decoder(
        each(read_json, text(ddl_of)),
        (ValueError,),
        (
            b'\0{"a": [1, 1.5e3, null, "x"]}',
            b'\x01{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}',
        ),
    ),
    "Delta manifests": Decoder(read_manifest, (ManifestDamaged, ManifestOfOtherVersion), (_MANIFEST,)),
}
