"""The leader's account of what it opened, where a leader died in the middle of a line."""

from strategies.verified_fold import Journal


def test_a_line_without_an_end_is_of_a_leader_that_had_not_asked_yet(tmp_path):
    journal = Journal(tmp_path / "releases.csv")
    for server_round in (1, 2):
        journal.note(server_round, "asked")
    with (tmp_path / "releases.csv").open("a") as file:
        file.write("3,as")
    assert journal.last_released() == 2
    journal.note(3, "asked")
    assert (tmp_path / "releases.csv").read_text() == "1,asked\n2,asked\n3,asked\n"


def test_an_account_that_is_all_torn_is_empty(tmp_path):
    (tmp_path / "releases.csv").write_bytes(b"1,ask\xff")
    assert Journal(tmp_path / "releases.csv").last_released() == 0
