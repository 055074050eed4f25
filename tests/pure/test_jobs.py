"""Two programs of different jobs find each other by a file, or both are told why not."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcomm.errors import ConfigError, WaitTimeoutError
from hpcomm.mpmd import jobs
from hpcomm.mpmd.jobs import Meeting, meet_by_file


def entry(name, library="MPICH 5", programs=None):
    return {
        "hpcomm": 1,
        "name": name,
        "library": library,
        "programs": programs or [name],
        "port": f"at {name}",
        "on": "h1",
        "tcp": False,
    }


def both(path, host, guest, timeout_s=10.0):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet_by_file, path, host, timeout_s, is_host=True)
        second = pool.submit(meet_by_file, path, guest, timeout_s, is_host=False)
        return first.result(), second.result()


def test_they_learn_each_others_names_and_the_hosts_port(tmp_path):
    for _ in range(2):  # the place may be used again
        found = both(tmp_path / "port", entry("ocean"), entry("air"))
        assert found == (Meeting("air", "at ocean"), Meeting("ocean", "at ocean"))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("guest", "words"),
    [
        (entry("air", "Open MPI 5"), "'ocean' has MPICH 5, and 'air' Open MPI 5"),
        (
            entry("air") | {"on": "h2", "tcp": True},
            "'ocean' is on h1 and 'air' on h2: `hpcomm run` on one host needs --spawn",
        ),
        (entry("air", programs=["air", "ocean"]), "both jobs have a program 'ocean'"),
    ],
)
def test_both_are_told_why_they_do_not_fit(tmp_path, guest, words):
    for error in both(tmp_path / "port", entry("ocean"), guest):
        assert isinstance(error, ConfigError)
        assert words in str(error)
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_in_vain_is_told_what_to_do(tmp_path):
    path = tmp_path / "port"
    for is_host, words in ((True, "nobody has connected at"), (False, "nobody accepts at")):
        error = meet_by_file(path, entry("ocean"), 0.1, is_host=is_host)
        assert isinstance(error, WaitTimeoutError)
        assert words in str(error)
        assert "start the other job, too" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_what_lies_there_from_earlier_does_not_pass_for_a_partner(tmp_path):
    path = tmp_path / "port"
    path.write_text("else")
    assert "something else than a port" in str(meet_by_file(path, entry("air"), 0.1, is_host=False))
    path.write_text("[" * 100_000)
    assert "something else than a port" in str(meet_by_file(path, entry("air"), 0.1, is_host=False))
    whole = entry("ocean")
    for key in whole:
        for wrong in ({}, {key: None}, {key: [[]]}):
            path.write_text(json.dumps({name: value for name, value in whole.items() if name != key} | wrong))
            said = str(meet_by_file(path, entry("air"), 0.1, is_host=False))
            assert f"{path} is something else than a port" in said, (key, wrong)
    path.write_text(json.dumps(whole))
    assert "remove it, if an earlier job has left it" in str(
        meet_by_file(path, entry("air"), 0.1, is_host=False)
    )
    (tmp_path / "port.hello").write_text('{"hpcomm": 1}')
    assert "somebody else is connecting" in str(meet_by_file(path, entry("air"), 0.1, is_host=False))
    assert "nobody has connected" in str(meet_by_file(path, entry("ocean"), 0.1, is_host=True))


def test_a_folder_that_is_not_there_is_an_error_and_no_wait(tmp_path):
    assert "a folder that both jobs can write" in str(
        meet_by_file(tmp_path / "no" / "port", entry("a"), 9, is_host=True)
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "is_host"), [("port", False), ("port.answer", False), ("port.hello", True)])
def test_a_fifo_at_the_name_of_the_meeting_holds_nobody_up(tmp_path, monkeypatch, name, is_host):
    if is_host:  # which has removed what lay there before
        write = jobs._write
        monkeypatch.setattr(jobs, "_write", lambda *given: os.mkfifo(tmp_path / name) or write(*given))
    else:
        (tmp_path / "port").write_text(json.dumps(entry("ocean"))) if name != "port" else None
        os.mkfifo(tmp_path / name)
    error = meet_by_file(tmp_path / "port", entry("air"), 9, is_host=is_host)
    assert isinstance(error, ConfigError)
    assert "is not a file of this user's alone" in str(error)


@pytest.mark.parametrize("name", ["port", "port.hello", "port.answer"])
@pytest.mark.parametrize("is_host", [True, False])
def test_a_file_of_the_users_at_a_name_of_the_meeting_is_refused_and_kept(tmp_path, name, is_host):
    (tmp_path / "port").write_text(json.dumps(entry("ocean")))
    for text in ("mine\n", "", "[1]", "{}"):
        (tmp_path / name).write_text(text)
        error = meet_by_file(tmp_path / "port", entry("air"), 0.1, is_host=is_host)
        if name != "port.hello" or is_host:
            assert f"{tmp_path / name} is something else than a port" in str(error)
            assert error.where == ("accept" if is_host else "connect")
        assert (tmp_path / name).read_text() == text
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    error = meet_by_file(tmp_path / "port", entry("air"), 0.1, is_host=is_host)
    assert "is not a file of this user's alone" in str(error) or (name == "port.hello" and not is_host)
    assert (tmp_path / name).is_fifo()


def test_what_an_earlier_job_has_left_is_out_of_the_hosts_way(tmp_path):
    (tmp_path / "port").write_text('{"hpcomm": 1}')
    (tmp_path / "port.hello").write_text(json.dumps(entry("air")))
    (tmp_path / "port.answer").write_text('{"error": ""}')
    assert "nobody has connected" in str(meet_by_file(tmp_path / "port", entry("ocean"), 0.1, is_host=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["a link", "another user's"])
def test_a_file_that_another_user_may_have_put_there_is_refused(tmp_path, way):
    """Whoever accepts is sent messages, which are unpickled."""
    path = tmp_path / "port"
    if way == "a link":
        (tmp_path / "trap").write_text('{"hpcomm": 1, "name": "ocean", "port": "at nowhere"}')
        path.symlink_to(tmp_path / "trap")
    elif os.geteuid():
        pytest.skip("only root can give a file away")
    else:
        path.write_text('{"hpcomm": 1, "name": "ocean", "port": "at nowhere"}')
        os.chown(path, 12345, 12345)
    error = meet_by_file(path, entry("air"), 1.0, is_host=False)
    assert isinstance(error, ConfigError)
    assert ("no meeting at" if way == "a link" else "belongs to another user (number 12345)") in str(error)
