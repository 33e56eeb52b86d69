"""Errors of the pure cold-start rules. Each names the file, and the tensor where there is one."""

from tonnage_core.errors import BadInputError, TonnageError


class CorruptFileError(TonnageError):
    """A weight file breaks the safetensors format: nothing of it may be used."""

    def __init__(self, file: str, problem: str, *, tensor: str | None = None) -> None:
        where = f"{file}: tensor {tensor!r}" if tensor is not None else file
        super().__init__(f"{where}: {problem}; fetch the file again from its source")
        self.file = file
        self.tensor = tensor
        self.problem = problem


class InconsistentSnapshotError(TonnageError):
    """The files of a snapshot contradict each other, as an index that names a shard that is not there."""


class UnsafeNameError(BadInputError):
    """A file name that could lead out of its directory, or that no file system should be given."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"file name {name[:200]!r} {problem}: refused")
        self.name = name


class QuotaExceededError(TonnageError):
    """The snapshot cannot fit the cache, said before the first byte is fetched."""

    def __init__(self, needed_bytes: int, message: str) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
