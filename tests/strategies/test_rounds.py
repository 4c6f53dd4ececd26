"""Streaming: order, chunks and deadlines, whatever the transport does."""

import time

import pytest
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from strategies.rounds import LATE, answer, chunk_size, chunked, in_order, like, stream


@given(st.permutations(range(8)))
def test_batches_come_out_in_order(order):
    assert list(in_order((i, [i]) for i in order)) == [[i] for i in range(8)]


@given(st.integers(1, 5000))
def test_chunks_depend_on_the_number_of_clients_alone(clients):
    size = chunk_size(clients)
    chunks = chunked(list(range(clients)), size)
    assert [x for c in chunks for x in c] == list(range(clients))
    assert 1 <= size <= 64 and all(len(c) == size for c in chunks[:-1])


def test_messages_made_from_one_are_as_flower_makes_them():
    content, other = RecordDict(), RecordDict()
    first = Message(content, dst_node_id=7, message_type="train", group_id="3")
    made, own = like(first, other, 8), Message(other, dst_node_id=8, message_type="train", group_id="3")
    assert made.content is other and first.content is content and first.metadata.dst_node_id == 7
    first.metadata.__dict__["_message_id"] = "one"
    assert made.metadata.message_id == ""
    first.metadata.delivered_at = "2026-01-01T00:00:00Z"
    reply, usual = answer(first, other), Message(other, reply_to=first)
    for new, flowers in ((made, own), (reply, usual)):
        found, wanted = dict(new.metadata.__dict__), dict(flowers.metadata.__dict__)
        for name in ("_created_at", "_ttl"):
            assert found.pop(name) == pytest.approx(wanted.pop(name), abs=60)
        assert found == wanted and new.__dict__.keys() == flowers.__dict__.keys()


def echo(message, context):
    return Message(RecordDict(), reply_to=message)


def messages(grid, count):
    return [Message(RecordDict(), dst_node_id=100 + i, message_type="train") for i in range(count)]


@pytest.mark.parametrize("shuffle", [None, 1, 2])
def test_replies_keep_the_order_of_their_batch(toy_grid, shuffle):
    grid = toy_grid(10, echo, shuffle=shuffle, at_once=3)
    got = list(in_order(stream(grid, chunked(messages(grid, 10), 4), timeout=10)))
    assert [[r.metadata.src_node_id for r in batch] for batch in got] == [
        [100, 101, 102, 103],
        [104, 105, 106, 107],
        [108, 109],
    ]


def test_silent_clients_are_late_and_so_is_what_was_not_sent(toy_grid):
    grid = toy_grid(6, echo, silent=[100, 101, 102, 103, 104, 105])
    started = time.monotonic()
    got = list(in_order(stream(grid, chunked(messages(grid, 6), 1), timeout=0.2, max_ahead=2)))
    assert time.monotonic() - started < 20
    codes = [r.error.code for batch in got for r in batch]
    assert codes == [LATE] * 6
    assert "not sent" in got[-1][0].error.reason


@pytest.mark.report("U82")
def test_a_transport_that_hangs_does_not_outlive_the_deadline(toy_grid):
    grid = toy_grid(2, echo)
    grid.pull_messages = lambda ids: time.sleep(30) or []
    started = time.monotonic()
    got = list(stream(grid, chunked(messages(grid, 2), 2), timeout=0.3))
    assert time.monotonic() - started < 20
    assert [r.error.code for r in got[0][1]] == [LATE, LATE]


def test_a_transport_that_fails_is_an_error(toy_grid):
    grid = toy_grid(1, echo)

    def fail(ids):
        raise ConnectionError("no server")

    grid.pull_messages = fail
    with pytest.raises(ConnectionError, match="no server"):
        list(stream(grid, chunked(messages(grid, 1), 1), timeout=5))


def test_nothing_to_send_is_no_error(toy_grid):
    assert list(stream(toy_grid(1, echo), [], timeout=1)) == []
