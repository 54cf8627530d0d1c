"""The lock of a device: a second process waits, says so once, and goes on when the first one dies."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.measure.device_lock import device_lock, lock_path

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys
from tfm_bench.measure.device_lock import device_lock
with device_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Starts a process that wants the device and holds it until its stdin closes."""
    started = []

    def start(device):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, device],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_process_waits_says_so_once_and_outlives_a_killed_holder(hold):
    first = hold("cpu")
    assert first.stdout.readline() == "held\n"
    second = hold("cpu")
    assert second.stderr.readline() == f"another process measures on cpu; waiting for {lock_path('cpu')}\n"
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    assert second.stdout.readline() == "held\n"
    _, said = second.communicate(timeout=20)
    assert (said, second.returncode) == ("", 0)


def test_other_devices_do_not_wait(hold):
    assert hold("cpu").stdout.readline() == "held\n"
    with device_lock("cuda:0"):
        assert hold("cuda:1").stdout.readline() == "held\n"


def test_the_device_is_free_after_an_error_and_nothing_is_said(hold, capfd):
    assert lock_path("NVIDIA H200").name == "tfm-bench.nvidia-h200.lock"
    with pytest.raises(ZeroDivisionError), device_lock("NVIDIA H200"):
        raise ZeroDivisionError
    assert hold("NVIDIA H200").stdout.readline() == "held\n"
    assert capfd.readouterr().err == ""


def is_held(device):
    with lock_path(device).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_cell_holds_its_device_from_warm_up_until_all_is_written(cells, stack_folder, monkeypatch):
    honest, held = cells.runs.generate, []
    write, remove = cells.write_text, cells.PartialFile.remove

    def watched(*arguments, **options):
        held.append(is_held("cpu"))
        return honest(*arguments, **options)

    def watched_write(*arguments):
        held.append(is_held("cpu"))
        write(*arguments)

    def watched_remove(partial):
        remove(partial)
        held.append(is_held("cpu"))

    monkeypatch.setattr(cells.runs, "generate", watched)
    monkeypatch.setattr(cells, "write_text", watched_write)
    monkeypatch.setattr(cells.PartialFile, "remove", watched_remove)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    assert set(held) == {True}
    assert not is_held("cpu")


def sticky(monkeypatch, before_creation=lambda path: None):
    """os.open as in a sticky folder where every lock file is another user's: none that exists is opened to create."""
    honest = os.open

    def refusing(path, flags, *mode):
        if flags & os.O_CREAT:
            before_creation(path)
            if not flags & os.O_EXCL and path.exists():
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return honest(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)


def test_the_lock_file_of_another_user_is_opened_and_not_created(monkeypatch):
    lock_path("cpu").touch(mode=0o444)
    sticky(monkeypatch)
    with device_lock("cpu"):
        assert is_held("cpu")


def test_a_lock_file_that_another_process_makes_meanwhile_is_opened(monkeypatch):
    sticky(monkeypatch, before_creation=lambda path: path.write_text(""))
    with device_lock("cpu"):
        assert is_held("cpu")
