"""What tests learn of a gateway that does not start."""

import socket

import pytest

from tests import fork_server, mock_models
from tests.gateway_process import GatewayProcess


def test_gateway_that_is_late_fails_a_test_with_the_end_of_its_log(repository, tmp_path):
    """The rest of a long log would hide it."""
    mock_models.write_with_tokenizer(repository, "m")
    with GatewayProcess(repository, tmp_path / "log") as gateway:
        gateway.log = tmp_path / "long"
        gateway.log.write_text("first line\n" + "x" * 100_000 + "\nlast line\n")
        with pytest.raises(AssertionError) as failed:
            gateway.wait_until_ready(timeout_s=0.01)

    message = str(failed.value)
    assert message.startswith("the gateway did not get ready in 0.01 s; the end of its log:\n")
    assert message.endswith("x\nlast line\n")
    assert len(message) < 10_000


def test_gateway_that_ends_fails_a_test_with_its_exit_code(repository, tmp_path):
    with (
        GatewayProcess(repository, tmp_path / "log", "--no-such-flag") as gateway,
        pytest.raises(AssertionError, match="did not get ready before it ended with 2"),
    ):
        gateway.wait_until_ready()


def test_fork_that_does_not_come_ends_the_wait_for_it(monkeypatch, tmp_path):
    """Each test that starts a gateway would wait for the process that forks."""
    ours, silent = socket.socketpair(type=socket.SOCK_SEQPACKET)
    monkeypatch.setattr(fork_server, "_server", lambda: (ours, None))
    monkeypatch.setattr(fork_server, "_FORK_S", 0.1)
    with (
        ours,
        silent,
        (tmp_path / "log").open("w") as output,
        pytest.raises(RuntimeError, match=r"No process was forked in 0\.1 s"),
    ):
        fork_server.ForkedProcess(["openai-frontend"], output, tmp_path, {})
