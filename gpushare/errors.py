"""The error tree. A refusal to place a pod is no error but a value (`gpushare.model.ledger`)."""

from dataclasses import dataclass


class GpuShareError(Exception):
    """Base of all errors that this project raises."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong in an object that a user wrote, where, and what to do about it."""

    path: str  # path of the field in Kubernetes' notation, such as `spec.containers[0].resources.limits`
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; {self.fix}"


class InvalidRequestError(GpuShareError):
    """A pod asks for GPUs in a way that cannot be understood or granted: its author's to fix."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        super().__init__("; ".join(str(error) for error in errors))
        self.errors = errors


class WireError(GpuShareError):
    """An annotation, message or file does not have the format that it claims."""


class UnknownGpuError(GpuShareError):
    """A node has no such GPU, or its device plugin reports none."""


class SettingsError(GpuShareError):
    """A flag or environment variable has a value that the program cannot run with."""
