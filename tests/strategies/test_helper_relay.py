"""The way to the helper through a designated node: same sums, and a sentence for whatever is not there or not right."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from crypto import CryptoError
from crypto.base import Plan, Tag
from crypto.keys import HELPER, load_key, save_keys
from fedsim.helper import Helper
from fedsim.helper_daemon import Server, listen
from fedsim.protections import helper_task
from strategies import helper_relay
from strategies.errors import HelperLost, NoSuchNodes, TooFewReplies
from strategies.fedavg import FedAvg
from strategies.helper_link import OPEN, OPEN_FIELDS, HelperLink
from strategies.helper_relay import Relay, RelayTransport, pass_on
from strategies.nodes import Node, Participation
from strategies.preamble import PreambleProtection, make_keys, run_id
from strategies.records import NamedArrays, array_record, sealed_record
from tests.strategies.watching import Watch

LENGTH, CLIENTS, C = 100, 4, 1.0
PLAN = Plan(length=LENGTH, clients=CLIENTS, bound=C)
PROTECTION = PreambleProtection(
    run=run_id("relay"),
    rounds=3,
    epsilon=1.0,
    delta=1e-5,
    block_size=128,
    blocks=1,
    noisy=False,
    transport="relay",
    timeout_s=20,
)
#: The toy grid's ids are 100, 101, ...
NODE = 100 + CLIENTS


class Daemon:
    """A helper on a Unix socket, in threads of this process; the server's folder says nothing of where it is."""

    def __init__(self, root):
        self.root, self.address = root, str(root / "helper" / "socket")
        save_keys(root, make_keys())
        self.server = replace(PROTECTION, keys=str(root), role="server")
        self.client = replace(PROTECTION, keys=str(root))
        self.start()

    def start(self):
        key = X25519PrivateKey.from_private_bytes(load_key(self.root, HELPER, "preamble").secret)
        helper = Helper(helper_task(PROTECTION, PLAN), key, self.root / "released.json")
        self.listener = listen(self.address)
        threading.Thread(target=Server(helper, self.listener).serve, daemon=True).start()

    def stop(self):
        self.listener.shutdown(2)
        self.listener.close()


@pytest.fixture
def daemon(tmp_path):
    running = Daemon(tmp_path)
    yield running
    running.stop()


def update(client, arrays, server_round):
    return {"a": arrays["a"] + 0.01 * (client + server_round)}


@pytest.fixture
def federation(toy_grid, toy_handler, daemon):
    """Return a grid of clients and `relays` nodes that relay to the daemon."""

    def make(relays=1, clients=CLIENTS, **more):
        honest = toy_handler(update, protection=daemon.client)

        def handler(message, context):
            if context.node_config["partition-id"] < clients:
                address = None
            elif message.metadata.message_type == "query.hello":
                return Message(RecordDict({"hello": MetricRecord({"relay": 1})}), reply_to=message)
            else:
                address = daemon.address
            if message.metadata.message_type == "query.relay":
                return Message(pass_on(message.content, address), reply_to=message)
            return honest(message, context)

        return toy_grid(clients + relays, handler, **more)

    return make


def run(grid, protection, rounds=2, clients=CLIENTS):
    strategy = FedAvg(
        protection=protection,
        weighting="uniform",
        participation=Participation(min_nodes=clients, connect_s=0.5),
        observer=(watch := Watch()),
    )
    start = array_record(NamedArrays({"a": np.zeros((4, 25))}))
    return strategy.start(grid, start, num_rounds=rounds), watch.records


def test_a_run_through_the_node_is_the_run_itself(federation, daemon):
    grid = federation(shuffle=3)
    result, records = run(grid, daemon.server)
    want = sum(0.01 * (np.mean(range(CLIENTS)) + r) for r in (1, 2))
    np.testing.assert_allclose(result.arrays["a"].numpy(), want, atol=1e-5)
    assert [r.accepted for r in records] == [CLIENTS] * 2
    relayed = [m for m in grid.pushed if m.metadata.message_type == "query.relay"]
    assert {m.metadata.dst_node_id for m in relayed} == {NODE}
    # A greeting, an opening, a batch for each chunk of clients, a total.
    assert len(relayed) == 2 * (2 + CLIENTS + 1)
    assert all(r.helper.received_bytes > CLIENTS * 1000 and r.helper.sent_bytes > 1000 for r in records)
    assert all(r.helper.busy_s > 0 for r in records)


def test_bytes_of_the_helper_are_those_of_the_messages(federation, daemon):
    transport = Relay(federation(), NODE).transport(1, 20)
    link = HelperLink(transport, *identity(daemon))
    framed = 4 + 1 + 24
    assert link.received_bytes > framed + 100 and link.sent_bytes > 100


def identity(daemon):
    header = daemon.server.secure_sum(PLAN).header(tag(1))
    return header.key_id, header.params_hash


def tag(server_round):
    return Tag(round=server_round, layout_hash=bytes(16), length=LENGTH)


# ------------------------------------------------------------------------------------------------- who is there


def test_a_run_needs_its_node(federation, daemon):
    with pytest.raises(NoSuchNodes, match=r"4 nodes after 0.5 s: the plan needs 5"):
        run(federation(relays=0), daemon.server)
    with pytest.raises(NoSuchNodes, match=r"none of 5 nodes relays to the helper.*transport = direct"):
        run(federation(relays=0, clients=CLIENTS + 1), daemon.server)


def test_two_designated_nodes_are_refused_by_name(federation, daemon):
    with pytest.raises(NoSuchNodes, match=rf"nodes {NODE}, {NODE + 1} all relay to a helper.*all but one"):
        run(federation(relays=2), daemon.server)


def test_a_node_that_relays_is_no_client(federation, daemon):
    with pytest.raises(NoSuchNodes, match="3 clients beside 2 nodes that relay to a helper: the plan needs 4 clients"):
        run(federation(relays=2, clients=3), daemon.server)


def test_a_node_that_is_not_designated_relays_nothing(federation):
    transport = Relay.among(federation(), [Node(100, 0), Node(101, -1, relay=True)]).transport(1, 20)
    with pytest.raises(HelperLost, match=r"this node relays to no helper.*helper = SOCKET.*ask that one"):
        transport.request(b"\x05")


def test_a_node_that_does_not_answer_is_given_up(toy_grid, toy_handler, monkeypatch):
    monkeypatch.setattr(helper_relay, "_MARGIN_S", 0.1)
    grid = toy_grid(1, lambda message, context: None)
    grid.pull_messages = lambda keys: []
    with pytest.raises(HelperLost, match=r"node that relays to the helper \(100\) gave no answer.*resume the run"):
        RelayTransport(grid, 100, 1, timeout_s=0.1).request(b"\x05")
    failing = toy_grid(1, toy_handler(update))
    with pytest.raises(HelperLost, match="gave no answer"):
        RelayTransport(failing, 100, 1, timeout_s=5).request(b"\x05")


# ------------------------------------------------------------------------------------------------- what it says


def content_of(frames, **relay):
    return RecordDict({"frames": sealed_record(frames), "relay": ConfigRecord(relay)})


BAD = {
    "no frames": (RecordDict({"relay": ConfigRecord({"timeout-s": 5.0})}), "has frames"),
    "no time": (content_of([b"\x05"]), "timeout-s in"),
    "endless time": (content_of([b"\x05"], **{"timeout-s": 1e9}), "timeout-s in"),
    "no number": (content_of([b"\x05"], **{"timeout-s": "long"}), "timeout-s in"),
    "empty frame": (content_of([b"\x05", b""], **{"timeout-s": 5.0}), "frame of 0 bytes"),
    "other arrays": (
        RecordDict(
            {"frames": array_record(NamedArrays({"0": np.zeros(3)})), "relay": ConfigRecord({"timeout-s": 5.0})}
        ),
        "expected 'fedsim/sealed'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_message_gets_a_sentence(daemon, name):
    content, words = BAD[name]
    assert words in pass_on(content, daemon.address).config_records["relay"]["lost"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (None, "relays to no helper"),
        (7, "relays to no helper"),
        ("tls://127.0.0.1:9443", "must be the path of a Unix socket"),
        ("http://x", "must be tls://HOST:PORT or the path"),
        ("/nowhere/socket", "no helper listens at /nowhere/socket"),
    ],
)
def test_a_node_says_what_is_wrong_with_its_own_address(address, words):
    reply = pass_on(content_of([b"\x05"], **{"timeout-s": 5.0}), address)
    assert words in reply.config_records["relay"]["lost"] and not reply.array_records


@pytest.mark.parametrize("reply", [RecordDict(), content_of([b"x"] * 3)])
def test_a_reply_that_is_none_is_refused(toy_grid, reply):
    grid = toy_grid(1, lambda message, context: Message(reply, reply_to=message))
    with pytest.raises(HelperLost, match="relaying node's reply"):
        RelayTransport(grid, 100, 1, timeout_s=5).request(b"\x05")


def test_large_batches_travel_in_several_messages(federation, daemon, monkeypatch):
    monkeypatch.setattr(helper_relay, "MESSAGE_BYTES", 10)
    grid = federation()
    answers = Relay(grid, NODE).transport(1, 20).exchange([b"\x09" + bytes(n) for n in (1, 2, 30, 1)])
    assert len(grid.pushed) == 3 and len(answers) == 4
    assert all(b"operation 9" in answer for answer in answers)


# ------------------------------------------------------------------------------------------------- the daemon behind


def begin(grid, daemon, number, reports):
    """Open a round and seal reports; return the leader's fold with them inside, unsettled."""
    fold = daemon.server.fold(PLAN, tag(number), Relay(grid, NODE))
    relay_more(fold, daemon, number, reports)
    return fold


def relay_more(fold, daemon, number, reports):
    for value in reports:
        parts = daemon.client.sealer(PLAN).seal(np.full(LENGTH, value), tag(number))
        fold._relay(RecordDict({"sealed": sealed_record(parts), "metrics": MetricRecord({"num-examples": 1})}))


def finish(fold, daemon, number):
    fold._settle()
    return daemon.server.opener(PLAN).open(fold.totals(), tag(number))


def test_a_helper_that_is_down_is_found_before_clients_train(federation, daemon):
    daemon.stop()
    grid = federation()
    with pytest.raises(HelperLost, match=r"no helper listens at .*start it again and resume the run"):
        run(grid, daemon.server)
    assert not [m for m in grid.pushed if m.metadata.message_type == "train"]
    daemon.start()


def test_a_helper_that_was_started_again_in_a_round_has_forgotten_it(federation, daemon):
    grid = federation()
    fold = begin(grid, daemon, 1, [0.01, 0.02])
    daemon.stop()
    daemon.start()
    with pytest.raises(HelperLost, match=r"a helper that was started again has forgotten the round.*resume"):
        fold._settle()
    np.testing.assert_allclose(finish(begin(grid, daemon, 1, [0.01, 0.02]), daemon, 1), 0.03, atol=1e-5)


def test_a_helper_that_was_started_again_remembers_what_it_released(federation, daemon):
    grid = federation()
    finish(begin(grid, daemon, 1, [0.01, 0.02]), daemon, 1)
    daemon.stop()
    daemon.start()
    with pytest.raises(HelperLost, match="round 1: round 1 was released already"):
        begin(grid, daemon, 1, [])


def test_replayed_reports_do_not_count_twice(federation, daemon):
    grid = federation()
    fold = begin(grid, daemon, 1, [0.01, 0.02])
    fold._settle()
    batch = next(m for m in reversed(grid.pushed) if len(m.content["frames"]) == 3)
    again = RelayTransport(grid, NODE, 1, 20).exchange([a.data for a in batch.content["frames"].values()])
    assert all(b"seen before" in answer for answer in again[:2])
    np.testing.assert_allclose(finish(fold, daemon, 1), 0.03, atol=1e-5)


def test_a_replayed_opening_spoils_the_round_and_releases_nothing_twice(federation, daemon):
    grid = federation()
    fold = begin(grid, daemon, 1, [0.01, 0.02])
    fold._settle()
    opening = bytes([OPEN]) + OPEN_FIELDS.pack(1, bytes(16), LENGTH)
    RelayTransport(grid, NODE, 1, 20).request(opening)
    with pytest.raises(TooFewReplies, match="no total was released: the sum of no reports"):
        fold.totals()
    fold = begin(grid, daemon, 2, [0.01, 0.02])
    fold._settle()
    RelayTransport(grid, NODE, 2, 20).request(bytes([OPEN]) + OPEN_FIELDS.pack(2, bytes(16), LENGTH))
    relay_more(fold, daemon, 2, [0.03, 0.04])
    with pytest.raises(CryptoError, match="different cohorts"):
        finish(fold, daemon, 2)
    link = HelperLink(RelayTransport(grid, NODE, 3, 20), *identity(daemon))
    with pytest.raises(HelperLost, match="rounds only go up"):
        link.open(tag(2))
    with pytest.raises(HelperLost, match="released"):
        link.add_and_settle([b"x" * 100], b"")


def test_nothing_of_the_helpers_key_passes_the_node(federation, daemon):
    grid = federation()
    finish(begin(grid, daemon, 1, [0.01, 0.02]), daemon, 1)
    secret = load_key(daemon.root, HELPER, "preamble").secret
    moved = [a.data for m in grid.pushed if "frames" in m.content for a in m.content["frames"].values()]
    assert moved and all(secret not in frame for frame in moved)
