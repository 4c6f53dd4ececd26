"""The grid with the designated node passes the clients' batches on as they are made."""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict

from fedsim.simulation.relay_node import RelayNodeGrid


class Clients:
    """Answers each batch with itself before it asks for the next."""

    run = SimpleNamespace(run_id=1)

    def stream(self, batches: Iterable[Sequence[Message]], **_: Any) -> Iterator[tuple[int, list[Message]]]:
        for index, batch in enumerate(batches):
            yield index, list(batch)


def test_a_batch_is_made_when_the_clients_are_ready_for_it(identity) -> None:
    made: list[int] = []

    def batches() -> Iterator[list[Message]]:
        for node in range(3):
            made.append(node)
            yield [Message(RecordDict(), dst_node_id=node, message_type="train")]

    grid = RelayNodeGrid(Clients(), "fedsim.client_app:app", "/run/helper.sock", {}, 1)  # type: ignore[arg-type]
    answered = [(list(made), index, reply[0].metadata.dst_node_id) for index, reply in grid.stream(batches())]
    assert answered == [([0], 0, 0), ([0, 1], 1, 1), ([0, 1, 2], 2, 2)]
    assert list(grid.stream([])) == []
