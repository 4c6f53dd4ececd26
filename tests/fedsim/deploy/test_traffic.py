import json

import pytest

from fedsim.deploy.traffic import read_traffic
from fedsim.errors import FedsimError


def line(path, received=(0, ""), sent=(0, ""), time="100.5", key="k", status="200"):
    names = {"received": str(received[0]), "received_body": str(received[1])}
    names |= {"sent": str(sent[0]), "sent_body": str(sent[1])}
    return json.dumps({"time": time, "client": "c", "key": key, "path": path, "status": status} | names)


def test_objects_other_bodies_and_heads_add_up(tmp_path):
    log = tmp_path / "log"
    lines = [
        line("/v1/fleet/push-object", received=(1200, 1000), sent=(150, 5)),
        line("/v1/fleet/pull-object", received=(260, 60), sent=(2100, 2000)),
        "proxy-1  | " + line("/v1/fleet/pull-messages", received=(230, 30), sent=(140, 0), key="l"),
        line("/v1/fleet/push-object", received=(900, 700), sent=(100, 0), status="500"),
        "nginx started",
    ]
    log.write_text("\n".join(lines))
    found = read_traffic(log)
    assert (found.requests, found.clients) == (4, {"k": 3, "l": 1})
    up, down = found.upload, found.download
    assert (up.objects, up.object_bytes, up.other_bytes) == (1, 1000, 60 + 30 + 700)
    assert (down.objects, down.object_bytes, down.other_bytes) == (1, 2000, 5)
    assert up.http_bytes == 1200 + 260 + 230 + 900 and down.http_bytes == 150 + 2100 + 140 + 100


def test_other_times_are_left_out(tmp_path):
    (tmp_path / "log").write_text("\n".join(line("/x", time=str(t)) for t in (1.0, 2.0, 3.0)))
    assert read_traffic(tmp_path / "log", 1.5, 2.5).requests == 1


@pytest.mark.parametrize("text", ["{}", '{"time": "x"}', "{nonsense}"])
def test_refuses_what_is_no_log(tmp_path, text):
    (tmp_path / "log").write_text(text)
    with pytest.raises(FedsimError, match="is no log of the proxy"):
        read_traffic(tmp_path / "log")
    with pytest.raises(FedsimError, match="is no log of the proxy"):
        read_traffic(tmp_path / "none")


def test_a_file_of_something_else_is_no_log(tmp_path):
    (tmp_path / "log").write_text("a,b\n1,2\n")
    with pytest.raises(FedsimError, match="is no log of the proxy"):
        read_traffic(tmp_path / "log")
