"""The controls, commands and other structs of AMQP 0-10 that we speak, as data: each class is one of them, its fields
in their order on the wire, with the type of each.

On the wire a struct is a code, two octets of flags that say which fields are there, and those fields. A field that is
missing is None; a bit has no octets beside its flag. A control or command stands by itself in its segment; every other
struct stands behind its size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, get_type_hints
from uuid import UUID

from rm_amqp.amqp010.values import FIELDS, Kind, Ranges, Reader, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T", bound="AnyStruct")
_HEAD: Final = struct.Struct(">HH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")

Bit = Annotated[bool, Kind.BIT]
U8 = Annotated[int | None, Kind.UINT8]
U16 = Annotated[int | None, Kind.UINT16]
U32 = Annotated[int | None, Kind.UINT32]
U64 = Annotated[int | None, Kind.UINT64]
Str8 = Annotated[str | None, Kind.STR8]
Str16 = Annotated[str | None, Kind.STR16]
Vbin8 = Annotated[bytes | None, Kind.VBIN8]
Vbin16 = Annotated[bytes | None, Kind.VBIN16]
Vbin32 = Annotated[bytes | None, Kind.VBIN32]
Uuid = Annotated[UUID | None, Kind.UUID]
Numbers = Annotated[Ranges | None, Kind.RANGES]
Map = Annotated[dict[str, Any] | None, Kind.MAP]
Array = Annotated[list[Any] | None, Kind.ARRAY]


@dataclass(frozen=True, slots=True)
class Control:
    """What a connection says, or a session outside of its commands."""

    CODE: ClassVar[int]
    """Class and number, an octet each; so in the other two."""


@dataclass(frozen=True, slots=True)
class Command:
    """What has a number in its session."""

    CODE: ClassVar[int]


@dataclass(frozen=True, slots=True)
class Struct:
    """What is a field of these, or a part of a message's header."""

    CODE: ClassVar[int]


AnyStruct: TypeAlias = Control | Command | Struct
Root = TypeVar("Root", Control, Command, Struct)


# --- connection -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ConnectionStart(Control):
    CODE = 0x0101
    server_properties: Map = None
    mechanisms: Array = None
    locales: Array = None


@dataclass(frozen=True, slots=True)
class ConnectionStartOk(Control):
    CODE = 0x0102
    client_properties: Map = None
    mechanism: Str8 = None
    response: Vbin32 = field(default=None, repr=False)
    locale: Str8 = None


@dataclass(frozen=True, slots=True)
class ConnectionSecure(Control):
    CODE = 0x0103
    challenge: Vbin32 = None


@dataclass(frozen=True, slots=True)
class ConnectionSecureOk(Control):
    CODE = 0x0104
    response: Vbin32 = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ConnectionTune(Control):
    CODE = 0x0105
    channel_max: U16 = None
    max_frame_size: U16 = None
    heartbeat_min: U16 = None
    heartbeat_max: U16 = None


@dataclass(frozen=True, slots=True)
class ConnectionTuneOk(Control):
    CODE = 0x0106
    channel_max: U16 = None
    max_frame_size: U16 = None
    heartbeat: U16 = None


@dataclass(frozen=True, slots=True)
class ConnectionOpen(Control):
    CODE = 0x0107
    virtual_host: Str8 = None
    capabilities: Array = None
    insist: Bit = False


@dataclass(frozen=True, slots=True)
class ConnectionOpenOk(Control):
    CODE = 0x0108
    known_hosts: Array = None


@dataclass(frozen=True, slots=True)
class ConnectionRedirect(Control):
    CODE = 0x0109
    host: Str16 = None
    known_hosts: Array = None


@dataclass(frozen=True, slots=True)
class ConnectionHeartbeat(Control):
    CODE = 0x010A


@dataclass(frozen=True, slots=True)
class ConnectionClose(Control):
    CODE = 0x010B
    reply_code: U16 = None
    reply_text: Str8 = None


@dataclass(frozen=True, slots=True)
class ConnectionCloseOk(Control):
    CODE = 0x010C


# --- session ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SessionAttach(Control):
    CODE = 0x0201
    name: Vbin16 = None
    force: Bit = False


@dataclass(frozen=True, slots=True)
class SessionAttached(Control):
    CODE = 0x0202
    name: Vbin16 = None


@dataclass(frozen=True, slots=True)
class SessionDetach(Control):
    CODE = 0x0203
    name: Vbin16 = None


@dataclass(frozen=True, slots=True)
class SessionDetached(Control):
    CODE = 0x0204
    name: Vbin16 = None
    code: U8 = None


@dataclass(frozen=True, slots=True)
class SessionRequestTimeout(Control):
    CODE = 0x0205
    timeout: U32 = None


@dataclass(frozen=True, slots=True)
class SessionTimeout(Control):
    CODE = 0x0206
    timeout: U32 = None


@dataclass(frozen=True, slots=True)
class SessionCommandPoint(Control):
    CODE = 0x0207
    command_id: U32 = None
    command_offset: U64 = None


@dataclass(frozen=True, slots=True)
class SessionExpected(Control):
    CODE = 0x0208
    commands: Numbers = None
    fragments: Array = None


@dataclass(frozen=True, slots=True)
class SessionConfirmed(Control):
    CODE = 0x0209
    commands: Numbers = None
    fragments: Array = None


@dataclass(frozen=True, slots=True)
class SessionCompleted(Control):
    CODE = 0x020A
    commands: Numbers = None
    timely_reply: Bit = False


@dataclass(frozen=True, slots=True)
class SessionKnownCompleted(Control):
    CODE = 0x020B
    commands: Numbers = None


@dataclass(frozen=True, slots=True)
class SessionFlush(Control):
    CODE = 0x020C
    expected: Bit = False
    confirmed: Bit = False
    completed: Bit = False


@dataclass(frozen=True, slots=True)
class SessionGap(Control):
    CODE = 0x020D
    commands: Numbers = None


# --- execution --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ExecutionSync(Command):
    CODE = 0x0301


@dataclass(frozen=True, slots=True)
class ExecutionResult(Command):
    CODE = 0x0302
    command_id: U32 = None
    value: Annotated[Struct | None, Kind.STRUCT] = None


@dataclass(frozen=True, slots=True)
class ExecutionException(Command):
    CODE = 0x0303
    error_code: U16 = None
    command_id: U32 = None
    class_code: U8 = None
    command_code: U8 = None
    field_index: U8 = None
    description: Str16 = None
    error_info: Map = None


# --- message ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MessageTransfer(Command):
    CODE = 0x0401
    destination: Str8 = None
    accept_mode: U8 = None
    acquire_mode: U8 = None


@dataclass(frozen=True, slots=True)
class MessageAccept(Command):
    CODE = 0x0402
    transfers: Numbers = None


@dataclass(frozen=True, slots=True)
class MessageReject(Command):
    CODE = 0x0403
    transfers: Numbers = None
    code: U16 = None
    text: Str8 = None


@dataclass(frozen=True, slots=True)
class MessageRelease(Command):
    CODE = 0x0404
    transfers: Numbers = None
    set_redelivered: Bit = False


@dataclass(frozen=True, slots=True)
class MessageAcquire(Command):
    CODE = 0x0405
    transfers: Numbers = None


@dataclass(frozen=True, slots=True)
class MessageSubscribe(Command):
    CODE = 0x0407
    queue: Str8 = None
    destination: Str8 = None
    accept_mode: U8 = None
    acquire_mode: U8 = None
    exclusive: Bit = False
    resume_id: Str16 = None
    resume_ttl: U64 = None
    arguments: Map = None


@dataclass(frozen=True, slots=True)
class MessageCancel(Command):
    CODE = 0x0408
    destination: Str8 = None


@dataclass(frozen=True, slots=True)
class MessageSetFlowMode(Command):
    CODE = 0x0409
    destination: Str8 = None
    flow_mode: U8 = None


@dataclass(frozen=True, slots=True)
class MessageFlow(Command):
    CODE = 0x040A
    destination: Str8 = None
    unit: U8 = None
    value: U32 = None


@dataclass(frozen=True, slots=True)
class MessageFlush(Command):
    CODE = 0x040B
    destination: Str8 = None


@dataclass(frozen=True, slots=True)
class MessageStop(Command):
    CODE = 0x040C
    destination: Str8 = None


@dataclass(frozen=True, slots=True)
class DeliveryProperties(Struct):
    CODE = 0x0401
    discard_unroutable: Bit = False
    immediate: Bit = False
    redelivered: Bit = False
    priority: U8 = None
    delivery_mode: U8 = None
    ttl: U64 = None
    timestamp: U64 = None
    expiration: U64 = None
    exchange: Str8 = None
    routing_key: Str8 = None
    resume_id: Str16 = None
    resume_ttl: U64 = None


@dataclass(frozen=True, slots=True)
class FragmentProperties(Struct):
    CODE = 0x0402
    first: Bit = False
    last: Bit = False
    fragment_size: U64 = None


@dataclass(frozen=True, slots=True)
class ReplyTo(Struct):
    exchange: Str8 = None
    routing_key: Str8 = None


@dataclass(frozen=True, slots=True)
class MessageProperties(Struct):
    CODE = 0x0403
    content_length: U64 = None
    message_id: Uuid = None
    correlation_id: Vbin16 = None
    reply_to: Annotated[ReplyTo | None, Kind.REPLY_TO] = None
    content_type: Str8 = None
    content_encoding: Str8 = None
    user_id: Vbin16 = None
    app_id: Vbin16 = None
    application_headers: Map = None


@dataclass(frozen=True, slots=True)
class Acquired(Struct):
    CODE = 0x0404
    transfers: Numbers = None


# --- dtx --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WireXid(Struct):
    """An xid as it is on the wire."""

    CODE = 0x0604
    format: U32 = None
    global_id: Vbin8 = None
    branch_id: Vbin8 = None


XidField = Annotated[WireXid | None, Kind.STRUCT]


@dataclass(frozen=True, slots=True)
class DtxSelect(Command):
    CODE = 0x0601


@dataclass(frozen=True, slots=True)
class DtxStart(Command):
    CODE = 0x0602
    xid: XidField = None
    join: Bit = False
    resume: Bit = False


@dataclass(frozen=True, slots=True)
class DtxEnd(Command):
    CODE = 0x0603
    xid: XidField = None
    fail: Bit = False
    suspend: Bit = False


@dataclass(frozen=True, slots=True)
class DtxCommit(Command):
    CODE = 0x0604
    xid: XidField = None
    one_phase: Bit = False


@dataclass(frozen=True, slots=True)
class DtxForget(Command):
    CODE = 0x0605
    xid: XidField = None


@dataclass(frozen=True, slots=True)
class DtxGetTimeout(Command):
    CODE = 0x0606
    xid: XidField = None


@dataclass(frozen=True, slots=True)
class DtxPrepare(Command):
    CODE = 0x0607
    xid: XidField = None


@dataclass(frozen=True, slots=True)
class DtxRecover(Command):
    CODE = 0x0608


@dataclass(frozen=True, slots=True)
class DtxRollback(Command):
    CODE = 0x0609
    xid: XidField = None


@dataclass(frozen=True, slots=True)
class DtxSetTimeout(Command):
    CODE = 0x060A
    xid: XidField = None
    timeout: U32 = None


@dataclass(frozen=True, slots=True)
class XaResult(Struct):
    CODE = 0x0601
    status: U16 = None


@dataclass(frozen=True, slots=True)
class GetTimeoutResult(Struct):
    CODE = 0x0602
    timeout: U32 = None


@dataclass(frozen=True, slots=True)
class RecoverResult(Struct):
    """The branches in doubt are structs, behind their sizes: `xids_of` reads them."""

    CODE = 0x0603
    in_doubt: Array = None


# --- queue ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class QueueDeclare(Command):
    CODE = 0x0801
    queue: Str8 = None
    alternate_exchange: Str8 = None
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    arguments: Map = None


@dataclass(frozen=True, slots=True)
class QueueDelete(Command):
    CODE = 0x0802
    queue: Str8 = None
    if_unused: Bit = False
    if_empty: Bit = False


@dataclass(frozen=True, slots=True)
class QueueQuery(Command):
    CODE = 0x0804
    queue: Str8 = None


@dataclass(frozen=True, slots=True)
class QueueQueryResult(Struct):
    CODE = 0x0801
    queue: Str8 = None
    alternate_exchange: Str8 = None
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    arguments: Map = None
    message_count: U32 = None
    subscriber_count: U32 = None


# --- reading and writing ----------------------------------------------------------------------------------------------
def _subclasses(root: type[Root]) -> Iterator[type[Root]]:
    for found in root.__subclasses__():
        if "CODE" in vars(found):
            yield found


CONTROLS: Final = {found.CODE: found for found in _subclasses(Control)}
COMMANDS: Final = {found.CODE: found for found in _subclasses(Command)}
STRUCTS: Final = {found.CODE: found for found in _subclasses(Struct)}
"""By their codes: the numbers of commands and of other structs are apart."""


def _layout(of: type[AnyStruct]) -> tuple[tuple[str, Kind], ...]:
    hints = get_type_hints(of, include_extras=True)
    return tuple((field.name, hints[field.name].__metadata__[0]) for field in fields(of))


_LAYOUTS: Final = {of: _layout(of) for of in (*CONTROLS.values(), *COMMANDS.values(), *STRUCTS.values(), ReplyTo)}


def write_fields(value: AnyStruct) -> bytes:
    """The flags and the fields. ValueError, TypeError, struct.error: a field does not fit."""
    flags, pieces = 0, [b""]
    for number, (name, kind) in enumerate(_LAYOUTS[type(value)]):
        item = getattr(value, name)
        if item is None or item is False:
            continue
        flags |= _flag(number)
        if kind is Kind.BIT:
            continue

        if kind is Kind.STRUCT:
            pieces.append(write_struct(item))
        elif kind is Kind.REPLY_TO:
            inner = write_fields(item)
            pieces.append(_U16.pack(len(inner)) + inner)
        else:
            pieces.append(FIELDS[kind][1](item))
    pieces[0] = _U16.pack(flags)
    return b"".join(pieces)


def _flag(number: int) -> int:
    """The flag of a field: those of the first eight are in the first octet."""
    return 1 << (number + 8 if number < 8 else number - 8)


def write_struct(value: Struct) -> bytes:
    """A struct behind its size."""
    inner = _U16.pack(value.CODE) + write_fields(value)
    return _U32.pack(len(inner)) + inner


def read_fields(of: type[T], reader: Reader) -> T:
    """The flags and the fields; WireError."""
    flags: int = reader.number(_U16)
    found: dict[str, Any] = {}
    for number, (name, kind) in enumerate(_LAYOUTS[of]):
        flag = _flag(number)
        if not flags & flag:
            continue
        flags ^= flag
        if kind is Kind.BIT:
            found[name] = True
        elif kind is Kind.STRUCT:
            found[name] = read_struct(reader)
        elif kind is Kind.REPLY_TO:
            inner = reader.within(2)
            found[name] = read_fields(ReplyTo, inner)
            inner.end("reply-to")
        else:
            found[name] = FIELDS[kind][0](reader)

    if flags:
        raise WireError(f"{of.__name__} has no fields for the flags {flags:#06x}")
    return of(**found)


def read_struct(reader: Reader) -> Struct | None:
    """The struct behind its size; None for an empty one, and for one that we don't know."""
    inner = reader.within(4)
    if not inner.left:
        return None
    code: int = inner.number(_U16)
    of = STRUCTS.get(code)
    if of is None:
        return None
    found = read_fields(of, inner)
    inner.end(of.__name__)
    return found


def xids_of(result: RecoverResult) -> Iterator[WireXid]:
    """The xids that are in doubt; WireError where there is something else."""
    for octets in result.in_doubt or ():
        if type(octets) is not bytes:
            raise WireError("what is in doubt is a list of xids")
        reader = Reader(octets)
        code: int = reader.number(_U16)
        if code != WireXid.CODE:
            raise WireError(f"what is in doubt is a list of xids, not of {code:#06x}")
        yield read_fields(WireXid, reader)
        reader.end("an xid")


# --- segments ---------------------------------------------------------------------------------------------------------
SYNC: Final = 1


def write_control(control: Control) -> bytes:
    """The octets of a control's segment."""
    return _U16.pack(control.CODE) + write_fields(control)


def write_command(command: Command, *, sync: bool = False) -> bytes:
    """The octets of a command's segment; with `sync` the peer tells at once when it is complete."""
    return _HEAD.pack(command.CODE, 0x0100 | (SYNC if sync else 0)) + write_fields(command)


def read_control(octets: bytes) -> Control:
    """The control that a segment is; WireError."""
    reader = Reader(octets)
    code: int = reader.number(_U16)
    of = CONTROLS.get(code)
    if of is None:
        raise WireError(f"there is no control {code:#06x}")
    control = read_fields(of, reader)
    reader.end(of.__name__)
    return control


def read_command(octets: bytes) -> tuple[Command, bool]:
    """The command that a segment is, and whether the peer waits for its completion; WireError."""
    reader = Reader(octets)
    code: int = reader.number(_U16)
    of = COMMANDS.get(code)
    if of is None:
        raise WireError(f"there is no command {code:#06x}")
    header = reader.sized(1)
    command = read_fields(of, reader)
    reader.end(of.__name__)
    return command, bool(header and header[0] & SYNC)


def read_header(octets: bytes) -> tuple[DeliveryProperties, MessageProperties]:
    """The two structs of a message's header, which are empty where they are missing; WireError."""
    reader = Reader(octets)
    delivery, properties = DeliveryProperties(), MessageProperties()
    while reader.left:
        found = read_struct(reader)
        if isinstance(found, DeliveryProperties):
            delivery = found
        elif isinstance(found, MessageProperties):
            properties = found
    return delivery, properties
