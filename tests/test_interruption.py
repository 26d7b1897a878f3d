"""What a command does at a signal, without Ray; jobs on Ray are in integration/test_sigterm.py."""

from __future__ import annotations

import signal

import click
import pytest
from click.testing import CliRunner

from hymotion_ray.cli_options import Command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unwinds_the_command_and_gives_130(number: int) -> None:
    ended: list[str] = []

    @click.command(cls=Command)
    def work() -> None:
        try:
            signal.raise_signal(number)
            ended.append("went on")
        finally:
            if number == signal.SIGTERM:
                signal.raise_signal(number)  # a second one does not disturb the ending
            ended.append("in order")

    before = signal.getsignal(signal.SIGTERM)
    # A background process's tests inherit that SIGINT is ignored.
    at_first = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = CliRunner().invoke(work)
    finally:
        signal.signal(signal.SIGINT, at_first)
    assert (result.exit_code, ended) == (130, ["in order"])
    assert "interrupted" in result.output
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_shells_background_process_ends_too() -> None:
    """Ctrl-C is ignored there."""

    @click.command(cls=Command)
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert CliRunner().invoke(work).exit_code == 130
    finally:
        signal.signal(signal.SIGINT, before)
