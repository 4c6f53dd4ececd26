import pytest

from fedsim.deploy.folder import Deployment, Node
from fedsim.errors import ConfigError

GOOD = 'superlink = "a:1"\npartition_id = 1\nnum_partitions = 3\n'


def write(folder, text):
    (folder / "node.toml").write_text(text)


def test_paths_of_a_node_are_absolute_and_follow_its_folder(tmp_path):
    write(tmp_path, GOOD + 'data = "mine.csv"\n')
    node = Node.read(tmp_path)
    assert node.key == str(tmp_path / "node.key") and node.data == str(tmp_path / "mine.csv") and node.keys == ""


def test_what_is_written_is_read(tmp_path):
    node = Node(superlink="[::1]:8443", partition_id=0, num_partitions=1, app="ab")
    node.write(tmp_path / "node.toml")
    found = Node.read(tmp_path)
    assert (found.superlink, found.partition_id, found.app) == ("[::1]:8443", 0, "ab")


def test_variables_override_the_file(tmp_path):
    write(tmp_path, GOOD)
    node = Node.read(tmp_path, {"FEDSIM_SUPERLINK": "b:2", "FEDSIM_OUT": "/out"})
    assert (node.superlink, node.out) == ("b:2", "/out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partition_id = 0\nnum_partitions = 1\n", "set FEDSIM_SUPERLINK=host:port"),
        (GOOD + "colour = 1\n", "colour = 1: is unknown in node.toml"),
        (GOOD.replace("= 1\n", "= 3\n"), r"must lie in \[0, 3\)"),
        (GOOD.replace("partition_id = 1", 'partition_id = "1"'), "must be of kind int"),
        (GOOD.replace("partition_id = 1", "partition_id = true"), "must be of kind int"),
        ("superlink", "cannot be read"),
    ],
)
def test_refuses_a_bad_file_with_the_remedy(tmp_path, text, message):
    write(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        Node.read(tmp_path)


def test_refuses_folders_that_are_something_else(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no node\.toml"):
        Node.read(tmp_path)
    with pytest.raises(ConfigError, match=r"holds no settings\.toml"):
        Deployment.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"FEDSIM_PORT=\xff\n", "cannot be read"),
        (b"FEDSIM_PORT=http\n", "must be a port"),
        (b"FEDSIM_PORT=0\n", "must be a port"),
        (b"FEDSIM_PORT=99999\n", "must be a port"),
    ],
)
def test_a_damaged_environment_is_refused_by_its_name(tmp_path, content, words):
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        _ = Deployment(tmp_path).port
