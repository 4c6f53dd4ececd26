"""Opening a sum by a committee of clients: one message round more."""

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy import float64
from numpy.typing import NDArray

from crypto import CryptoError, WireError
from crypto.base import Tag
from strategies.errors import CommitteeIncomplete, NoSuchNodes
from strategies.fold import Delivered, delivered
from strategies.nodes import Node
from strategies.outcome import RoundRecord
from strategies.plan import RoundPlan
from strategies.protection import Protection
from strategies.records import read_sealed, sealed_record, wire_bytes
from strategies.rounds import stream

#: A member that does not answer is asked again once; it answers the same total with the same bytes.
_TRIES = 2
_ANSWER_S = 120.0


def open_total(
    grid: Grid,
    nodes: list[Node],
    protection: Protection,
    totals: list[bytes],
    plan: RoundPlan,
    tag: Tag,
    record: RoundRecord,
) -> NDArray[float64]:
    """Ask every member for its partial decryption of the total and fuse them.

    Args:
        grid: reaches the members.
        nodes: all nodes; member m of the committee is the node of partition m.
        protection: knows how many members there are, and fuses.
        totals: the sealed total.
        plan, tag: of the round.
        record: what the members delivered is noted there.

    Raises:
        NoSuchNodes: a member is not connected.
        CommitteeIncomplete: a member did not answer, twice, or answered something else.
    """
    by_partition = {n.partition_id: n for n in nodes}
    absent = [m for m in range(protection.members) if m not in by_partition]
    if absent:
        raise NoSuchNodes(f"committee members {absent} are not connected: all {protection.members} are needed to open")
    content = _content(totals, plan, tag)
    record.committee_download_bytes = wire_bytes(content)
    partials: dict[int, bytes] = {}
    for _ in range(_TRIES):
        asked = [by_partition[m] for m in range(protection.members) if m not in partials]
        partials |= _ask(grid, asked, content, record)
    if len(partials) < protection.members:
        raise CommitteeIncomplete(_explain(record, protection.members))
    try:
        return protection.fuse([partials[m] for m in sorted(partials)], totals[0], plan.secure, tag)
    except CryptoError as error:
        raise CommitteeIncomplete(f"round {plan.round}: the answers do not open the sum: {error}") from error


def _content(totals: list[bytes], plan: RoundPlan, tag: Tag) -> RecordDict:
    config: ConfigRecord = plan.record()
    config["length"] = tag.length
    return RecordDict({"total": sealed_record(totals), "config": config})


def _ask(grid: Grid, nodes: list[Node], content: RecordDict, record: RoundRecord) -> dict[int, bytes]:
    group = str(record.round)
    messages = [Message(content, dst_node_id=n.node_id, message_type="query.partial", group_id=group) for n in nodes]
    found: dict[int, bytes] = {}
    for index, replies in stream(grid, [[m] for m in messages], timeout=_ANSWER_S):
        member = nodes[index].partition_id
        item, partial = _read(replies[0], nodes[index])
        record.committee[member] = item
        if partial is not None:
            found[member] = partial
    return found


def _read(reply: Message, node: Node) -> tuple[Delivered, bytes | None]:
    item = delivered(reply, node.node_id)
    if reply.has_error():
        return item, None
    item.upload_bytes = wire_bytes(reply.content)
    try:
        (partial,) = read_sealed(reply.content.array_records["partial"], 1)
    except (KeyError, WireError) as error:
        item.error = f"no partial decryption in the answer: {error}"
        return item, None
    item.sealed_bytes = len(partial)
    return item, partial


def _explain(record: RoundRecord, members: int) -> str:
    missing = [f"\n  member {m}: {d.error}" for m, d in sorted(record.committee.items()) if d.error]
    return (
        f"round {record.round}: {len(missing)} of {members} committee members did not answer; all are needed to "
        f"open the sum. The model is that of the last good round; start the members again and resume.{''.join(missing)}"
    )
