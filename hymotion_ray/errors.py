"""The errors this project raises for its users.

Every message says what was wrong, what was given, what is allowed and what to do about it.
Every class takes one message string, so that it survives pickling between processes.
Bugs of our own are `assert` failures, never one of these.
"""

from __future__ import annotations


class HyMotionError(Exception):
    """Base of all errors meant for users; `exit_code` is what the command line returns for it."""

    exit_code = 2


class ConfigError(HyMotionError):
    """A setting is unknown, of the wrong type or outside what is allowed."""


class InputError(HyMotionError):
    """A file or folder given by the user cannot be read, or is unsafe to read."""


class CheckpointError(InputError):
    """A model folder or checkpoint is missing, damaged, incomplete or of an unknown kind."""


class PromptError(InputError):
    """One prompt row cannot be used. `code` is a short stable word for manifests and tests."""

    def __init__(self, message: str, code: str = "bad_prompt") -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class SourceError(InputError):
    """One motion file or clip cannot be ingested. `code` is a short stable word for tables."""

    def __init__(self, message: str, code: str = "damaged") -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class OutputError(HyMotionError):
    """The output folder or format cannot be used: another run's, or it cannot be written."""


class MissingDependencyError(HyMotionError):
    """An optional package or program is needed; the message names the install line."""


class TextEncoderError(HyMotionError):
    """The text encoder is missing or cannot encode."""

    exit_code = 3


class SamplingError(HyMotionError):
    """The sampler failed on an item (not finite, out of memory), which the message names."""

    exit_code = 3


class ClusterError(HyMotionError):
    """The Ray cluster cannot be reached or cannot place the work."""

    exit_code = 3


class ReplicaLostError(ClusterError):
    """One of several processes that compute together is lost, and what they held with it."""


class TrainingError(HyMotionError):
    """Training cannot go on: numbers that are not finite, ranks that are lost for good."""

    exit_code = 3


class ServiceError(HyMotionError):
    """A serving endpoint refused a request or could not be reached.

    `code` is the short stable word of its answer, `status` the HTTP status (0: no answer).
    """

    exit_code = 3

    def __init__(self, message: str, code: str = "service", status: int = 0) -> None:
        super().__init__(message, code, status)
        self.code, self.status = code, status

    def __str__(self) -> str:
        return str(self.args[0])
